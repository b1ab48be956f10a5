"""STATUS payloads: a handle's status as broadcast. Options stay at home (SR-360)."""

from __future__ import annotations

from typing import Any

from zlinkpy.sessions.payloads.values import Values, from_millis, guarded, to_millis, without_nulls
from zlinkpy.sessions.types import LiveSessionStatus, SessionTotals, StatusSnapshot, TurnProgress


def encode_status(snapshot: StatusSnapshot) -> dict[str, Any]:
    """The payload of a STATUS signal."""
    status, totals = snapshot.status, snapshot.status.totals
    return without_nulls(
        phase=status.phase,
        interruptible=status.interruptible,
        queueDepth=status.queue_depth,
        totals={
            "turns": totals.turns,
            "failedTurns": totals.failed_turns,
            "interruptedTurns": totals.interrupted_turns,
            "events": totals.events,
        },
        turn=None if status.turn is None else _turn_fields(status.turn),
        observedAtMillis=snapshot.observed_at,
        seq=snapshot.seq,
    )


def decode_status(payload: object) -> StatusSnapshot | None:
    """The snapshot; None, with a warning, for a malformed payload. A total an older node lacks is 0 (SR-361)."""
    return guarded("STATUS", _snapshot, payload)


def _turn_fields(turn: TurnProgress) -> dict[str, Any]:
    return {"turnId": turn.turn_id, "elapsedMillis": to_millis(turn.elapsed), "iteration": turn.iteration}


def _snapshot(values: Values) -> StatusSnapshot:
    totals, turn = Values(values.mapping("totals", {})), values.mapping("turn", None)
    status = LiveSessionStatus(
        phase=values.text("phase"),
        interruptible=values.flag("interruptible"),
        queue_depth=values.whole("queueDepth"),
        totals=SessionTotals(
            totals.whole("turns", 0),
            totals.whole("failedTurns", 0),
            totals.whole("interruptedTurns", 0),
            totals.whole("events", 0),
        ),
        turn=None if turn is None else _turn(Values(turn)),
    )
    return StatusSnapshot(status, values.whole("observedAtMillis"), values.whole("seq"))


def _turn(values: Values) -> TurnProgress:
    return TurnProgress(
        values.text("turnId"), from_millis(values.whole("elapsedMillis", 0)), values.whole("iteration", 0)
    )
