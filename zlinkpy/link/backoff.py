"""Delays between two attempts on one endpoint: doubling, bounded, spread (wire.md §12).

The spread is drawn from the injected entropy, so a seed replays it. Jitter is applied to each delay and not summed into
the base: the sequence of bases is the same for everyone and can be read off a log.
"""

from __future__ import annotations

from zlinkpy.entropy import Entropy
from zlinkpy.link.constants import BACKOFF_FIRST, BACKOFF_JITTER, BACKOFF_MAX


class Backoff:
    """The retry delays of one endpoint, reset when a connection becomes ready (not when it merely connects)."""

    __slots__ = ("_base", "_entropy")

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._base = BACKOFF_FIRST

    def next_delay(self) -> float:
        """Seconds to wait before the next attempt; each call doubles the next one up to BACKOFF_MAX."""
        base = self._base
        self._base = min(base * 2, BACKOFF_MAX)
        return base * self._entropy.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)

    def reset(self) -> None:
        """Start from BACKOFF_FIRST again."""
        self._base = BACKOFF_FIRST
