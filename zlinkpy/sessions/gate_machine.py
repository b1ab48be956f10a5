"""One session on one node: its gate, its lease and the marks that must not get lost. Pure (facts §5; SR §9, §17, §18).

The gate answers "is something of this session going on here", which the lease cannot: a lease lives as long as the
handle, over many turns (SR-145). Who wants to do something takes the gate first and the lease second (SR-149).

    event                  guard                                next, actions
    enter(kind)            gate free                            gate = kind -> True
    enter(kind)            gate taken                           False: forward, wait or leave it to who is in there
    install(lease)         gate taken                           lease held; yielding off
    ring                   accepting, gate free                 doorbell set, DRAIN, in the quiet time WAKE
    ring                   accepting, gate taken                doorbell set, NOTIFY: who leaves looks at the mark
    ring                   closing, lease held                  relay owed, YIELD once
    ring                   closing, no lease                    nothing: not ours to answer (SR-291)
    yield_asked            lease held                           yielding; EVICT; what runs is interrupted by the shell
    yield_asked            no lease, or yielding already        nothing
    handle_closed          lease held, gate free                gate = RETURN; RETURN
    handle_closed          lease held, gate taken               return_pending: who leaves returns it
    return_begun           -                                    lease none, one more return on its way
    return_done            yielding                             quiet for 500 ms, so that the asker gets the lease first
    return_done            doorbell set, closing                relay owed
    return_done, leave     doorbell set, gate free              DRAIN / WAKE; closing, relay owed: RELAY, marks off
    leave                  return_pending, lease, no handle     gate = RETURN; RETURN
    leave                  somebody is expected                 gate = expected: a release does not race with rings
    retry_later            -                                    no DRAIN before then: a store does not answer (SR-433)
    drop_marks             -                                    doorbell, relay owed off (release, delete, EVICT)

`leave` frees the gate before it looks at the marks: a mark set after the last look and before the gate was free is
seen by the leaver, one set later finds the gate free. Neither is lost (SR-208, SR-209).
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from attrs import Factory, define

YIELD_QUIET: Final = 0.5
"""Seconds after a yielded lease came back in which this node neither rings nor takes it: the asker retries every 0.2 s
at the latest (SR-439)."""

LeaseT = TypeVar("LeaseT")


class Gate(Enum):
    """What a session's gate is taken by."""

    TURN = "turn"
    DRAIN = "drain"
    DELETE = "delete"
    RELEASE = "release"
    RETURN = "return"


@define(eq=False)
class Ticket:
    """A place in the line for the gate."""

    kind: Gate
    granted: bool = False


class SeatAction(Enum):
    """What the shell has to do."""

    DRAIN = auto()
    """Take the gate and start a drain pass."""
    WAKE = auto()
    """Ring again at `quiet_until`."""
    NOTIFY = auto()
    """Tell the pass that runs: there may be a NOW message."""
    YIELD = auto()
    """Give the session up: it is rung for while this node closes."""
    EVICT = auto()
    """Drop the handle; what runs is interrupted."""
    RETURN = auto()
    """Give the lease back; the gate is taken for it."""
    RELAY = auto()
    """Publish the doorbell once: this node will not answer it."""


@define(eq=False)
class SessionSeat(Generic[LeaseT]):
    """The state of one session on this node. Only the event loop's thread touches it."""

    session_id: str
    gate: Gate | None = None
    lease: LeaseT | None = None
    returning: int = 0
    """Leases of this session whose return the store has not answered yet."""
    doorbell: bool = False
    relay_owed: bool = False
    return_pending: bool = False
    yielding: bool = False
    quiet_until: float = -math.inf
    """When this node may take the session again after it yielded."""
    retry_at: float = -math.inf
    expected: list[Ticket] = Factory(list)
    """Who waits for the gate, in order; `leave` hands it to the first."""
    generation: int = 0
    """Grows when the session ends here: what was planned for it before is void."""

    @property
    def is_blank(self) -> bool:
        """Nothing is known here: the seat can be forgotten."""
        return (
            self.gate is None
            and self.lease is None
            and not (self.returning or self.doorbell or self.relay_owed or self.return_pending or self.yielding)
            and not self.expected
        )

    def wake_at(self) -> float:
        """When a WAKE is due."""
        return max(self.quiet_until if self.lease is None else -math.inf, self.retry_at)

    def enter(self, kind: Gate) -> bool:
        """Take the gate if it is free (SR-148)."""
        if self.gate is not None:
            return False
        self.gate = kind
        return True

    def install(self, lease: LeaseT) -> None:
        """A lease was won, under the gate."""
        self.lease = lease
        self.return_pending = False
        self.yielding = False

    def ring(self, now: float, *, accepting: bool) -> list[SeatAction]:
        """Somebody says that messages wait."""
        if not accepting:
            if self.lease is None:
                return []
            self.doorbell = True
            if self.relay_owed:
                return []
            self.relay_owed = True
            return [SeatAction.YIELD]
        self.doorbell = True
        return self._answer(now) if self.gate is None else [SeatAction.NOTIFY]

    def yield_asked(self) -> list[SeatAction]:
        """A peer asks for the session, or this node closes while it is rung for."""
        if self.lease is None or self.yielding:
            return []
        self.yielding = True
        return [SeatAction.EVICT]

    def handle_closed(self) -> list[SeatAction]:
        """The handle is gone, or there was none: the lease goes back as soon as nothing goes on."""
        if self.lease is None:
            return []
        if self.gate is not None:
            self.return_pending = True
            return []
        self.gate = Gate.RETURN
        return [SeatAction.RETURN]

    def return_begun(self) -> None:
        """The lease is on its way back."""
        self.lease = None
        self.return_pending = False
        self.returning += 1

    def return_done(self, now: float, *, accepting: bool) -> list[SeatAction]:
        """The store answered, or never will."""
        self.returning -= 1
        if self.yielding:
            self.yielding = False
            self.quiet_until = now + YIELD_QUIET
        if self.doorbell and not accepting:
            # Rung for before this node began to close: whoever is told by nobody else would wait for the next poll.
            self.relay_owed = True
        return self._after(now, accepting=accepting)

    def leave(self, now: float, *, has_handle: bool, accepting: bool) -> list[SeatAction]:
        """Who took the gate is through."""
        self.gate = None
        if self.expected:
            ticket = self.expected.pop(0)
            ticket.granted = True
            self.gate = ticket.kind
            return []
        if self.return_pending and self.lease is not None and not has_handle:
            self.return_pending = False
            self.gate = Gate.RETURN
            return [SeatAction.RETURN]
        self.return_pending = False
        return self._after(now, accepting=accepting)

    def clear_doorbell(self) -> None:
        """Before each collect: what rings from here on is for messages this collect may not see."""
        self.doorbell = False

    def drop_marks(self) -> None:
        """The session is over here (SR-276)."""
        self.doorbell = self.relay_owed = False
        self.generation += 1

    def retry_later(self, at: float) -> None:
        """A store does not answer: keep the mark, and do not ask again before `at`."""
        self.doorbell = True
        self.retry_at = at

    def _after(self, now: float, *, accepting: bool) -> list[SeatAction]:
        if self.gate is not None:
            return []
        if self.relay_owed and self.lease is None and not accepting:
            self.doorbell = self.relay_owed = False
            return [SeatAction.RELAY]
        return self._answer(now) if self.doorbell and accepting else []

    def _answer(self, now: float) -> list[SeatAction]:
        return [SeatAction.WAKE] if now < self.wake_at() else [SeatAction.DRAIN]
