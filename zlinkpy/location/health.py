"""Which kinds of store operation work, and since when they do not (LO-187, LO-193). Pure.

Kinds are kept apart on purpose: renewals that succeed say nothing about scans that fail, and a status that mixed them
would be green while nobody finds anybody.
"""

from __future__ import annotations

from enum import Enum

from attrs import define, frozen


class StoreOperation(Enum):
    """The kinds of store work a location runtime does by itself."""

    LEASE = "owner lease"
    DESCRIPTOR_WRITE = "descriptor publication"
    DESCRIPTOR_READ = "descriptor list"
    LEASE_READ = "lease reads"


@frozen
class OperationHealth:
    """One kind: `failing_since` is None while it works; `unavailable` once it failed for the whole grace."""

    operation: StoreOperation
    failing_since: float | None
    last_error: str
    unavailable: bool


@define
class _Record:
    failing_since: float | None = None
    last_error: str = ""


class StoreHealth:
    """Failures per kind. `grace` in seconds; times are those of one monotonic clock."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._records = {operation: _Record() for operation in StoreOperation}

    def failed(self, operation: StoreOperation, now: float, error: str) -> None:
        """Note a failure; the first one of a row of failures sets the time."""
        record = self._records[operation]
        record.last_error = error
        if record.failing_since is None:
            record.failing_since = now

    def succeeded(self, operation: StoreOperation) -> None:
        """Note a success of this kind; the others keep their state."""
        self._records[operation].failing_since = None

    def report(self, now: float) -> tuple[OperationHealth, ...]:
        """Every kind; `last_error` outlives the recovery, for people."""
        return tuple(
            OperationHealth(operation, record.failing_since, record.last_error, self._over(record, now))
            for operation, record in self._records.items()
        )

    def unavailable(self, now: float) -> tuple[StoreOperation, ...]:
        """The kinds that have failed for the whole grace."""
        return tuple(operation for operation, record in self._records.items() if self._over(record, now))

    def _over(self, record: _Record, now: float) -> bool:
        return record.failing_since is not None and now >= record.failing_since + self._grace
