"""Randomness as an argument, so that a seed replays a run exactly (architecture rule 5)."""

from __future__ import annotations

import os
import random
import uuid
from typing import Protocol

GENERATION_MAX = 2**63 - 1


class Entropy(Protocol):
    """Where ids, generations and jitter come from."""

    def generation(self) -> int:
        """A non-zero 63-bit number (wire type `gen`)."""
        ...

    def token(self, size: int) -> bytes:
        """`size` random bytes."""
        ...

    def uuid4(self) -> str:
        """A lower-case canonical UUID v4."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high], for jitter."""
        ...


class SystemEntropy:
    """The operating system's generator: what production uses (wire.md §4: generations come from a CSPRNG)."""

    def generation(self) -> int:
        return (int.from_bytes(os.urandom(8), "big") & GENERATION_MAX) or 1

    def token(self, size: int) -> bytes:
        return os.urandom(size)

    def uuid4(self) -> str:
        return str(uuid.uuid4())

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * (int.from_bytes(os.urandom(7), "big") >> 3) / (1 << 53)


class SeededEntropy:
    """A replayable source for simulations and tests."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def generation(self) -> int:
        return self._random.randint(1, GENERATION_MAX)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def uuid4(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
