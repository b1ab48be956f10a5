"""Two lanes of one RouteMesh peer connection, as one connection (wire.md §4, §8, §12; LV §2, §4-§6, §10, §11).

What a pair shares with a ClientServer connection is in `handshake.py`: admission, probes, receive flow. Its own are the
second lane and the phase LEAVING: was ready; what the peer had sent before it left is read to its end (`leaving.py`).

    phase        event                               next       actions
    CONNECTING   start (dialler)                     -          Dial(app), 5 s until its admit
    CONNECTING   opened app (dialler)                -          Send hello
    CONNECTING   hello app, checks pass (acceptor)   ADMITTED   Send admit, Admitted, 5 s until the completion lane's
    CONNECTING   hello app, a check fails            ENDED      Send reject, CloseLane, Ended
    CONNECTING   admit app, checks pass (dialler)    ADMITTED   Admitted, Dial(completion), 5 s until its admit
    CONNECTING   admit app, a check fails            ENDED      Send close, CloseLane, Ended
    CONNECTING   reject (dialler)                    ENDED      CloseLane, Ended
    ADMITTED     opened completion (dialler)         -          Send hello
    ADMITTED     hello completion (acceptor)         [ready]    Send admit
    ADMITTED     admit completion (dialler)          [ready]
    ADMITTED     prepare                             [ready]
    [ready]      both lanes admitted and prepared    READY      Send receiveFlow, Ready; probes and deadline start here
    READY        tick on the grid                    -          Send livenessProbe
    READY        tick at the deadline                ENDED      NotReady, CloseLane both, Ended
    ADMITTED+    livenessProbe                       -          Send livenessAck
    ADMITTED+    livenessAck, update, receiveFlow    -          Updated or RemoteFlow where something is new
    ADMITTED+    update of another node or run       ENDED      Send close 4, NotReady, CloseLane both, Ended
    any          malformed or unexpected record      ENDED      Send close 4, NotReady, CloseLane both, Ended
    READY        close received (not 4)              LEAVING    NotReady, CloseLane(app); the completion lane is read on
    READY        completion lane lost                LEAVING    Send close, NotReady; the application lane is read on
    LEAVING      close received, that lane lost      ENDED      CloseLane what is left, Ended
    LEAVING      tick at the end of the grace,       ENDED      CloseLane what is left, Ended
                 answered (no reply is awaited)
    any          close received, lane lost           ENDED      NotReady, CloseLane what is left, Ended
    any          close, fail                         ENDED      Send close, NotReady, CloseLane both, Ended
    not READY    tick at the 5 s deadline            ENDED      CloseLane both, Ended
    ENDED        anything                            -          nothing

`NotReady` appears only where the pair was ready. `close` always travels on the application lane (wire.md §12).
Rejected: a machine per lane and a third one that joins them: each rule here would be a message between machines.
"""

from __future__ import annotations

from collections.abc import Callable

from zlinkpy.link.actions import Action, CloseLane, LinkCommand, NotReady, Send
from zlinkpy.link.admission import Expectation, check_admission
from zlinkpy.link.checks import admission_of, require
from zlinkpy.link.failure import Failure, reason_of_close
from zlinkpy.link.handshake import HandshakeLink
from zlinkpy.link.lanes import PairPhase
from zlinkpy.link.leaving import Leaving
from zlinkpy.link.revisions import IdentityChange, identity_change
from zlinkpy.wire import (
    Admit,
    Close,
    CloseReason,
    FlowState,
    Hello,
    Lane,
    RejectReason,
    RouteMeshAdmission,
    RuntimeState,
)


class Pair(HandshakeLink[RouteMeshAdmission]):
    """One attempt to be connected with one mesh node.

    Args:
        dialler: True for the side that dials both lanes.
        pair_id: 8 bytes that name the two lanes as one connection; the acceptor takes it from the first `hello`.
        local: gives this node's current admission.
        expected: gives what is known about the peer at the moment of the check, or None.
        judge: the last check of an admission (duplicates, limits): a reason, or None to admit.
        probe_ids: gives probe ids, see `ProbeLiveness`.
        flow: gives this node's current receive-flow state.
        prepared: False when handlers are not prepared yet; `prepare` follows (LV-23).
    """

    __slots__ = ("_leaving", "pair_id")

    def __init__(
        self,
        *,
        dialler: bool,
        pair_id: bytes,
        local: Callable[[], RouteMeshAdmission],
        expected: Callable[[], Expectation | None],
        judge: Callable[[RouteMeshAdmission], RejectReason | None],
        probe_ids: Callable[[], int],
        flow: Callable[[], FlowState],
        prepared: bool = True,
    ) -> None:
        super().__init__(
            dialler=dialler,
            lanes=(Lane.APPLICATION, Lane.COMPLETION),
            local=local,
            expected=expected,
            judge=judge,
            probe_ids=probe_ids,
            flow=flow,
            prepared=prepared,
        )
        self._leaving: Leaving | None = None
        self.pair_id = pair_id

    def __repr__(self) -> str:
        rid = self.remote.node_rid if self.remote else "?"
        return f"<Pair {self.pair_id.hex()} {rid} {self.phase.value} {self._lanes!r}>"

    # -- what others read ----------------------------------------------------------------------------------------------

    @property
    def selectable(self) -> bool:
        """True when new work may go to this peer: ready, and its runtime state is *serving* (LV-123, LV-174)."""
        return self.ready and self._guard is not None and self._guard.current.ext.runtime_state == RuntimeState.SERVING

    @property
    def phase(self) -> PairPhase:
        """The phase, derived from the lanes."""
        return PairPhase.LEAVING if self._leaving is not None and not self._ended else super().phase

    @property
    def awaits_replies(self) -> bool:
        """True while a peer that said `close` may still have replies under way: requests to it are not given up yet."""
        return not self._ended and self._leaving is not None and self._leaving.reading is Lane.COMPLETION

    @property
    def identity(self) -> tuple[str, int] | None:
        """RID and lifecycle generation of the admitted peer."""
        remote = self.remote
        return (remote.node_rid, remote.lifecycle_generation) if remote is not None else None

    def next_deadline(self) -> float | None:
        """When `tick` is due next, or None. Always later than the `now` of the last `tick`."""
        if self._leaving is not None and not self._ended:
            return self._leaving.deadline
        return super().next_deadline()

    # -- events --------------------------------------------------------------------------------------------------------

    def receive(self, lane: Lane, command: LinkCommand, now: float) -> list[Action]:
        """An infrastructure command of wire.md §2 (1-6, 54, 55) was read on `lane`; for all others see `touch`.

        A record read at or after a deadline comes too late to count: the deadline is decided first ([D2], LV-77).
        """
        if self._leaving is None or self._ended:
            return super().receive(lane, command, now)
        self.last_receive = now
        # Only the peer's own last word still means something; probes and updates of a peer that has left do not.
        if isinstance(command, Close) and lane is self._leaving.reading:
            return self._done(self._end(Failure(reason_of_close(command.reason), "closed by the peer", now)))
        return self._done([])

    def answered(self, now: float) -> list[Action]:
        """No request waits for this peer any more: a pair that only awaited replies is over."""
        return self._done(self._end(self._leaving.failure)) if self._leaving is not None and self.awaits_replies else []

    def announce(self, now: float) -> list[Action]:
        """The local admission has a new revision: tell an admitted peer. Telling a revision twice is a no-op.

        Before admission nothing is sent; what changed meanwhile follows right behind the admission.
        """
        return super().announce(now) if self._leaving is None else []

    def tick(self, now: float) -> list[Action]:
        """Do what is due: end at a deadline, or send a probe. Expiry is decided before a probe is emitted ([D2])."""
        if self._leaving is None or self._ended:
            return super().tick(now)
        over = self._leaving.over(now, self.last_receive)
        return self._done(self._end(self._leaving.failure) if over else [])

    # -- what the topology says ----------------------------------------------------------------------------------------

    def _is_established(self) -> bool:
        return self._leaving is None and super()._is_established()

    def _hello(self, admission: RouteMeshAdmission, lane: Lane) -> Hello:
        return Hello(admission, lane, self.pair_id)

    def _admit(self, admission: RouteMeshAdmission, lane: Lane) -> Admit:
        return Admit(admission, lane, self.pair_id)

    def _described(self, admission: object) -> RouteMeshAdmission:
        return admission_of(RouteMeshAdmission, admission, "a RouteMesh admission")

    def _check(self, remote: RouteMeshAdmission) -> RejectReason | None:
        return check_admission(self._local(), remote, self._expected())

    def _require_named(self, lane: Lane, record: Hello | Admit) -> None:
        require(record.lane == lane, f"names lane {record.lane!r} on lane {lane.name.lower()}", "body.lane")
        first_on_completion = lane is Lane.COMPLETION and not self._lanes.is_admitted(lane)
        if isinstance(record, Hello) and first_on_completion:
            # One that names another pair is answered with a reject (`_verdict`).
            admitted = self._lanes.is_admitted(Lane.APPLICATION)
            require(admitted, "completion lane before the application lane was admitted", "prefix.command")
        else:
            require(record.pair_id == self.pair_id, "names another pair", "body.pairId")

    def _verdict(self, lane: Lane, record: Hello | Admit, remote: RouteMeshAdmission) -> RejectReason | None:
        if lane is Lane.APPLICATION:
            return super()._verdict(lane, record, remote)
        if record.pair_id != self.pair_id:
            return RejectReason.IDENTITY_MISMATCH
        change = self._other_lane(remote)
        return change.reject if change is not None else None

    def _on_repeated(self, lane: Lane, remote: RouteMeshAdmission, now: float) -> list[Action]:
        if lane is Lane.APPLICATION:
            return super()._on_repeated(lane, remote, now)
        change = self._other_lane(remote)
        return self._changed_identity(change, now) if change is not None else []

    def _other_lane(self, remote: RouteMeshAdmission) -> IdentityChange | None:
        """The completion lane has to come from the same run of the same node as the application lane."""
        guard = self._admitted_guard()
        change = identity_change(guard.current, remote)
        if change is None:
            guard.check_other_lane(remote)
        return change

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _on_departure(self, reason: CloseReason, failure: Failure, now: float) -> list[Action]:
        if reason != CloseReason.PROTOCOL_ERROR and self._told_ready and self._lanes.exists(Lane.COMPLETION):
            return self._leave(failure, Lane.COMPLETION, now)
        return super()._on_departure(reason, failure, now)

    def _on_lost(self, lane: Lane, failure: Failure, now: float) -> list[Action]:
        """The other lane goes with it (LV-27)."""
        if self._leaving is not None:
            return self._end(self._leaving.failure) if lane is self._leaving.reading else []
        if self._told_ready and lane is Lane.COMPLETION:
            return self._leave(failure, Lane.APPLICATION, now)
        return super()._on_lost(lane, failure, now)

    def _leave(self, failure: Failure, reading: Lane, now: float) -> list[Action]:
        """Out of every selection set now; ended when `reading` has said what it has to say (`Leaving`)."""
        self._leaving = Leaving.begin(failure, reading, now)
        self._told_ready = False
        self.liveness.stop()
        if reading is Lane.COMPLETION:
            return [NotReady(failure), CloseLane(Lane.APPLICATION, linger=False)]
        return [Send(Lane.APPLICATION, Close(CloseReason.ORDERLY)), NotReady(failure)]
