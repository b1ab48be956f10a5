"""Payloads of the control signals: INTERRUPT, EVICT, YIELD, MESSAGE_ENQUEUED.

`token` names the lease that a signal means; a node that holds the session under a higher one ignores it (SR-440).
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from zlinkpy.sessions.payloads.values import Values, guarded, without_nulls
from zlinkpy.sessions.types import InterruptReason


@frozen
class Interrupt:
    """Stop the running turn, or only `turn_id`."""

    reason: InterruptReason
    turn_id: str | None = None
    token: int | None = None

    def payload(self) -> dict[str, Any]:
        """The signal's payload."""
        return without_nulls(reason=self.reason.value, turnId=self.turn_id, token=self.token)

    @classmethod
    def read(cls, payload: object) -> Interrupt | None:
        """From a payload; None, with a warning, when malformed. An unknown reason counts as USER."""
        return guarded(
            "INTERRUPT",
            lambda values: cls(
                InterruptReason.parse(values.text("reason", None)), values.text("turnId", None), _token(values)
            ),
            payload,
        )


@frozen
class Evict:
    """The session is gone."""

    reason: InterruptReason
    token: int | None = None

    def payload(self) -> dict[str, Any]:
        """The signal's payload."""
        return without_nulls(reason=self.reason.value, token=self.token)

    @classmethod
    def read(cls, payload: object) -> Evict | None:
        """From a payload; None, with a warning, when malformed."""
        return guarded(
            "EVICT", lambda values: cls(InterruptReason.parse(values.text("reason", None)), _token(values)), payload
        )


@frozen
class Yield:
    """Hand the session over."""

    token: int | None = None

    def payload(self) -> dict[str, Any]:
        """The signal's payload."""
        return without_nulls(token=self.token)

    @classmethod
    def read(cls, payload: object) -> Yield | None:
        """From a payload; None, with a warning, when malformed."""
        return guarded("YIELD", lambda values: cls(_token(values)), payload)


@frozen
class MessageEnqueued:
    """A message waits in the inbox. Only a doorbell: that the inbox is empty by then is normal."""

    inbox_id: str
    turn_id: str | None = None

    def payload(self) -> dict[str, Any]:
        """The signal's payload."""
        return without_nulls(inboxId=self.inbox_id, turnId=self.turn_id)

    @classmethod
    def read(cls, payload: object) -> MessageEnqueued | None:
        """From a payload; None, with a warning, when malformed."""
        return guarded(
            "MESSAGE_ENQUEUED",
            lambda values: cls(values.text("inboxId", ""), values.text("turnId", None)),
            payload,
        )


def _token(values: Values) -> int | None:
    return values.whole("token", None)
