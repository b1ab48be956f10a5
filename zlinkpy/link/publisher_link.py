"""A subscriber's view of one publisher (LV §7, §8, §14): one SUB socket, one publisher, one attempt.

A publisher is heard or not; nothing is ever sent to it. It is ready from the first valid record, an event or a beacon,
and stays so while one comes every 15 s (LV-92, LV-93, LV-96). Before the first one it has no such deadline ([D3]): a
publisher whose topics nobody publishes yet still sends beacons, one that sends nothing at all is *connecting*.

    phase        event                               next       actions
    CONNECTING   start                               -          Dial, 5 s until the transport is connected
    CONNECTING   opened                              -          no deadline from here to the first record
    CONNECTING   tick at the 5 s deadline            ENDED      CloseLane, Ended (transport_error, LV-176)
    CONNECTING   record or beacon                    READY      Ready; 15 s to the next one
    READY        record or beacon                    -          nothing; 15 s from now
    READY        tick at the deadline                ENDED      NotReady, CloseLane, Ended (publisher_silent)
    any          record of another publisher         ENDED      NotReady, CloseLane, Ended (identity_mismatch)
    any          violated                            ENDED      NotReady, CloseLane, Ended (protocol_error)
    any          lost                                ENDED      NotReady, Ended (transport_error)
    any          withdraw                            ENDED      NotReady, CloseLane, Ended (orderly_close)
    any          fail                                ENDED      NotReady, CloseLane, Ended (the reason given)
    ENDED        anything                            -          nothing

`NotReady` appears only where the publisher was ready. `Dial` and `CloseLane` name the application lane and mean the SUB
socket. A record read at or after the deadline comes too late: the deadline is decided first ([D2]).

Rejected: leaving the dial unbounded because of [D3]. A host name that does not resolve raises no event at all, and the
subscription would stay *connecting* for ever without anything having been tried twice.
"""

from __future__ import annotations

from zlinkpy.errors import ProtocolError
from zlinkpy.link.actions import Action, Ready
from zlinkpy.link.constants import DIAL_DEADLINE, PEER_DEADLINE
from zlinkpy.link.failure import Failure, FailureReason
from zlinkpy.link.lanes import Lanes, LaneState
from zlinkpy.link.machine import LinkMachine
from zlinkpy.wire import Lane


class PublisherLink(LinkMachine):
    """One attempt to hear one publisher.

    Args:
        identity: RID and lifecycle generation from its descriptor; None for an endpoint given by hand. What is written
            in a record is a claim and never becomes an identity: a publisher of a manual endpoint has none.
    """

    __slots__ = ("_deadline", "_identity")

    def __init__(self, *, identity: tuple[str, int] | None = None) -> None:
        super().__init__(Lanes(dialler=True))
        self._identity = identity
        self._deadline: float | None = None

    def __repr__(self) -> str:
        rid = self._identity[0] if self._identity is not None else "?"
        return f"<PublisherLink {rid} {self.phase.value}>"

    # -- what others read ----------------------------------------------------------------------------------------------

    @property
    def identity(self) -> tuple[str, int] | None:
        """RID and lifecycle generation as the descriptor says, None for a manual endpoint."""
        return self._identity

    @property
    def deadline(self) -> float | None:
        """When the publisher counts as silent; None before its first valid record."""
        return self._deadline

    def next_deadline(self) -> float | None:
        """When `tick` is due next, or None. Always later than the `now` of the last `tick`."""
        return self._dial_deadline if self._deadline is None else self._deadline

    # -- events --------------------------------------------------------------------------------------------------------

    def opened(self, now: float) -> list[Action]:
        """The SUB socket is connected to the publisher. It may still have nothing to say (LV-91)."""
        if self._ended or self._lanes[Lane.APPLICATION] is not LaneState.DIALLING:
            return []
        self._connected()
        return self._done([])

    def record(self, source_rid: str, now: float) -> list[Action]:
        """A well-formed event came, whether or not anybody subscribed to its topic (LV-89).

        Args:
            source_rid: who published it. Another one than the descriptor's ends the link: the endpoint has a new owner,
                who is heard through a link of its own.

        Returns:
            the actions; deliver the event only if the link is `ready` afterwards (LV-94).
        """
        if self._ended:
            return []
        if self._identity is not None and source_rid != self._identity[0] and not self._overdue(now):
            text = f"an event of {source_rid} where {self._identity[0]} publishes"
            return self._done(self._end(Failure(FailureReason.IDENTITY_MISMATCH, text, now)))
        return self._heard(now)

    def beacon(self, now: float) -> list[Action]:
        """The exact beacon came (LV-93). It is evidence and nothing else: no event, no answer (LV-101, LV-102)."""
        return self._heard(now)

    def lost(self, detail: str, now: float, reason: FailureReason = FailureReason.TRANSPORT_ERROR) -> list[Action]:
        """The close of the connection was observed, or its dial failed; see `HandshakeLink.lost`."""
        if self._ended or not self._lanes.exists(Lane.APPLICATION):
            return []
        self._lanes[Lane.APPLICATION] = LaneState.GONE
        return self._done(self._end(Failure(reason, detail, now)))

    def violated(self, error: ProtocolError, now: float) -> list[Action]:
        """A record was malformed: no receipt, and this publisher's connection ends ([D7], LV-105..108)."""
        text = f"{error.field}: {error.problem}"
        return self.fail(FailureReason.PROTOCOL_ERROR, text, now)

    def withdraw(self, now: float) -> list[Action]:
        """The descriptor or the manual endpoint is gone: a record that still comes changes nothing (LV-94)."""
        return self.fail(FailureReason.ORDERLY_CLOSE, "it is no publisher of this channel any more", now)

    def fail(self, failure_reason: FailureReason, detail: str, now: float) -> list[Action]:
        """End because of something known outside the connection, e.g. a descriptor of another generation."""
        return [] if self._ended else self._done(self._end(Failure(failure_reason, detail, now)))

    def tick(self, now: float) -> list[Action]:
        """Do what is due: end at a deadline."""
        if self._ended or not self._overdue(now):
            return []
        if self._deadline is not None:
            failure = Failure(FailureReason.PUBLISHER_SILENT, f"no record until {self._deadline:.3f}", now)
        else:
            failure = Failure(FailureReason.TRANSPORT_ERROR, f"no connection within {DIAL_DEADLINE:g} s", now)
        return self._done(self._end(failure))

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _is_established(self) -> bool:
        return self._deadline is not None

    def _heard(self, now: float) -> list[Action]:
        if self._told_ready and self._deadline is not None and now < self._deadline:
            # The usual case, thousands of times a second. Nobody is told: who waits for the old deadline asks again.
            self.last_receive = now
            self._deadline = now + PEER_DEADLINE
            return []
        if self._ended or not self._lanes.exists(Lane.APPLICATION):
            return []
        if self._overdue(now):
            return self.tick(now)
        self._connected()
        self.last_receive = now
        self._deadline = now + PEER_DEADLINE
        self._told_ready = True
        return self._done([Ready()])

    def _connected(self) -> None:
        self._lanes[Lane.APPLICATION] = LaneState.OPEN
        self._dial_deadline = None

    def _overdue(self, now: float) -> bool:
        due = self.next_deadline()
        return due is not None and now >= due

    def _stop(self) -> None:
        self._deadline = None
