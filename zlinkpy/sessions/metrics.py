"""Counting what a router does (SR §24).

An application gives any object that has some of the hooks of `SessionMetrics`. The router holds one `MetricsPort`: for
a hook that the object lacks or inherits unchanged it has an empty function, so a hook nobody uses costs one call of
it; the others are fenced, because a counter must never end a turn (SR-378).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from zlinkpy.sessions.types import DispositionKind
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")


class SessionMetrics:
    """The hooks; override what is wanted. All are called on the event loop and must not block."""

    def on_lease_acquire_succeeded(self, latency: float) -> None:
        """A submit may run here: claim won, or lease reused. `latency` in seconds (SR-371)."""

    def on_lease_acquire_rejected(self, latency: float) -> None:
        """A submit goes to somebody else: session held elsewhere, or busy here (SR-371)."""

    def on_lease_extend_succeeded(self) -> None:
        """A renewal succeeded."""

    def on_lease_extend_failed(self) -> None:
        """A lease was lost."""

    def on_cache_hit(self) -> None:
        """A pass found its handle."""

    def on_cache_miss(self) -> None:
        """A pass had to open a handle."""

    def on_cache_eviction(self, reason: str) -> None:
        """A handle went: IDLE, LRU or EXPLICIT_RELEASE (SR-270)."""

    def on_submit_outcome(self, kind: DispositionKind) -> None:
        """A submit returned."""

    def on_holder_loss_recovered(self) -> None:
        """This node announced a lost holder (SR-375)."""

    def on_reservation_takeover_refused(self) -> None:
        """A message ran without its reservation (SR-376)."""

    def on_forward_doorbell_rerung(self) -> None:
        """A waiting forward rang again (SR-230)."""

    def on_orphan_rescued(self) -> None:
        """A scan found messages nobody waits for and this node runs them (SR-407)."""


HOOKS: Final = tuple(name for name in vars(SessionMetrics) if name.startswith("on_"))


def _nothing(*_: Any) -> None:
    """A hook that nobody uses."""


class MetricsPort(SessionMetrics):
    """What the router calls; see the module."""

    def __init__(self, provider: object | None) -> None:
        for name in HOOKS:
            hook = getattr(provider, name, None)
            inherited = getattr(type(provider), name, None) is getattr(SessionMetrics, name)
            setattr(self, name, _nothing if hook is None or inherited else _fenced(name, hook))


def _fenced(name: str, hook: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        try:
            hook(*arguments)
        except Exception:
            log.exception("the metrics hook %s raised", name)

    return call
