"""Two lanes of one RouteMesh peer connection, as one connection (wire.md §4, §8, §12; LV §2, §4-§6, §10, §11).

One `Pair` is one attempt: it is created for one pairId, ends once, and is never used again. A reconnect is a new
`Pair`, so no probe id, deadline or ready state can survive one (LV-145), and what is still read from an ended one
changes nothing (LV-77, LV-125).

Phases, derived from the state of the two lanes and never stored:

    CONNECTING   the application lane is not admitted
    ADMITTED     it is; the completion lane or the preparation of handlers is missing
    READY        both lanes admitted and handlers prepared (LV-27 [D13]): the one predicate is `Pair.ready` (LV-25)
    LEAVING      was ready; what the peer had sent before it left is read to its end (`leaving.py`)
    ENDED        terminal

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
from typing import assert_never

from zlinkpy.errors import ProtocolError
from zlinkpy.link.actions import (
    Action,
    Admitted,
    CloseLane,
    Dial,
    Ended,
    LinkCommand,
    NotReady,
    Ready,
    RemoteFlow,
    Send,
    Updated,
)
from zlinkpy.link.admission import Expectation, RevisionGuard, check_admission, identity_change
from zlinkpy.link.checks import require, route_mesh
from zlinkpy.link.constants import DIAL_DEADLINE
from zlinkpy.link.failure import Failure, FailureReason, reason_of_close, reason_of_reject
from zlinkpy.link.farewell import close_for_changed_identity, close_for_failure
from zlinkpy.link.lanes import Lanes, LaneState, PairPhase
from zlinkpy.link.leaving import Leaving
from zlinkpy.link.liveness import Expired, ProbeLiveness, SendProbe
from zlinkpy.wire import (
    Admit,
    Close,
    CloseReason,
    FlowState,
    Hello,
    Lane,
    LivenessAck,
    LivenessProbe,
    ReceiveFlow,
    Reject,
    RejectReason,
    RouteMeshAdmission,
    RuntimeState,
    Update,
    close_for,
)


class Pair:
    """One attempt to be connected with one peer.

    Every event method takes the monotonic `now` in seconds and returns the actions to perform, in order; after `Ended`
    it returns an empty list. Nothing here raises on what a peer does.

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

    __slots__ = (
        "_dialler",
        "_ended",
        "_expected",
        "_flow",
        "_guard",
        "_handshake_deadline",
        "_judge",
        "_lanes",
        "_leaving",
        "_local",
        "_prepared",
        "_ready_told",
        "_remote_flow",
        "_told_flow",
        "_told_revision",
        "_watch",
        "failure",
        "last_receive",
        "liveness",
        "pair_id",
    )

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
        self._dialler = dialler
        self._local = local
        self._expected = expected
        self._judge = judge
        self._flow = flow
        self._prepared = prepared
        self._lanes = Lanes(dialler=dialler)
        self._guard: RevisionGuard | None = None
        self._handshake_deadline: float | None = None
        self._told_revision = 0
        self._told_flow: FlowState | None = None
        self._remote_flow = FlowState.RUNNING
        self._ready_told = False
        self._ended = False
        self._leaving: Leaving | None = None
        self._watch: Callable[[], None] | None = None
        self.pair_id = pair_id
        self.liveness = ProbeLiveness(probe_ids)
        """Judges the connection while it is ready; lives on the application lane (LV-58)."""
        self.last_receive: float | None = None
        """When the last record arrived: for diagnostics only, it never decides anything (LV-69, LV-169)."""
        self.failure: Failure | None = None
        """Why the pair ended; None before, and where it ended as not required (LV-36)."""

    def __repr__(self) -> str:
        rid = self.remote.node_rid if self.remote else "?"
        return f"<Pair {self.pair_id.hex()} {rid} {self.phase.value} {self._lanes!r}>"

    # -- what others read ----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """THE predicate (LV-25): both lanes admitted, handlers prepared, not ended. Everyone reads this one."""
        return not self._ended and self._leaving is None and self._prepared and self._lanes.both_admitted

    @property
    def selectable(self) -> bool:
        """True when new work may go to this peer: ready, and its runtime state is *serving* (LV-123, LV-174)."""
        return self.ready and self._guard is not None and self._guard.current.ext.runtime_state == RuntimeState.SERVING

    @property
    def phase(self) -> PairPhase:
        """The phase, derived from the lanes."""
        if self._ended:
            return PairPhase.ENDED
        if self._leaving is not None:
            return PairPhase.LEAVING
        if self.ready:
            return PairPhase.READY
        if self._lanes.is_admitted(Lane.APPLICATION):
            return PairPhase.ADMITTED
        return PairPhase.CONNECTING

    @property
    def awaits_replies(self) -> bool:
        """True while a peer that said `close` may still have replies under way: requests to it are not given up yet."""
        return not self._ended and self._leaving is not None and self._leaving.reading is Lane.COMPLETION

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def remote(self) -> RouteMeshAdmission | None:
        """The newest admission of the peer, or None before it was admitted."""
        return self._guard.current if self._guard is not None else None

    @property
    def identity(self) -> tuple[str, int] | None:
        """RID and lifecycle generation of the admitted peer."""
        remote = self.remote
        return (remote.node_rid, remote.lifecycle_generation) if remote is not None else None

    @property
    def remote_flow(self) -> FlowState:
        return self._remote_flow

    def next_deadline(self) -> float | None:
        """When `tick` is due next, or None. Always later than the `now` of the last `tick`."""
        if self._ended:
            return None
        if self._leaving is not None:
            return self._leaving.deadline
        probe = self.liveness.next_deadline()
        handshake = self._handshake_deadline
        return min((each for each in (probe, handshake) if each is not None), default=None)

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after each event that may have moved the deadline, the identity or the end."""
        self._watch = changed

    # -- events --------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Begin: the dialler dials the application lane; either side gives it DIAL_DEADLINE seconds to be admitted."""
        if self._ended:
            return []
        self._handshake_deadline = now + DIAL_DEADLINE
        actions: list[Action] = []
        if self._dialler:
            self._lanes[Lane.APPLICATION] = LaneState.DIALLING
            actions.append(Dial(Lane.APPLICATION))
        return self._done(actions)

    def opened(self, lane: Lane, now: float) -> list[Action]:
        """A dialled lane can carry bytes (dialler only)."""
        if self._lanes[lane] is not LaneState.DIALLING or self._ended:
            return []
        self._lanes[lane] = LaneState.OPEN
        admission = self._local()
        if lane is Lane.APPLICATION:
            self._told_revision = admission.descriptor_revision
        return self._done([Send(lane, Hello(admission, lane, self.pair_id))])

    def receive(self, lane: Lane, command: LinkCommand, now: float) -> list[Action]:
        """An infrastructure command of wire.md §2 (1-6, 54, 55) was read on `lane`; for all others see `touch`.

        A record read at or after a deadline comes too late to count: the deadline is decided first ([D2], LV-77).
        """
        if self._ended:
            return []
        if self._overdue(now):
            return self.tick(now)
        self._arrived(lane)
        self.last_receive = now
        if self._leaving is not None:
            # Only the peer's own last word still means something; probes and updates of a peer that has left do not.
            if isinstance(command, Close) and lane is self._leaving.reading:
                return self._done(self._end(Failure(reason_of_close(command.reason), "closed by the peer", now)))
            return self._done([])
        try:
            actions = self._dispatch(lane, command, now)
        except ProtocolError as error:
            actions = self._violation(error, now)
        return self._done(actions)

    def touch(self, now: float, lane: Lane = Lane.APPLICATION) -> list[Action]:
        """A record that is not ours arrived: it moves the diagnostic last-receive time and no deadline (LV-69, LV-70).

        Before `lane` is admitted such a record is a violation."""
        if self._ended:
            return []
        if not self._lanes.is_admitted(lane):
            error = ProtocolError("application record before admission", field="prefix.command")
            return self.violated(lane, error, now)
        self.last_receive = now
        return []

    def lost(self, lane: Lane, detail: str, now: float) -> list[Action]:
        """The close of a lane's connection was observed, or its dial failed. The other lane goes with it (LV-27)."""
        if self._ended or not self._lanes.exists(lane):
            return []
        self._lanes[lane] = LaneState.GONE
        failure = Failure(FailureReason.TRANSPORT_ERROR, f"{lane.name.lower()} lane: {detail}", now)
        if self._leaving is not None:
            return self._done(self._end(self._leaving.failure) if lane is self._leaving.reading else [])
        if self._ready_told and lane is Lane.COMPLETION:
            return self._done(self._leave(failure, Lane.APPLICATION, now))
        return self._done(self._end(failure))

    def answered(self, now: float) -> list[Action]:
        """No request waits for this peer any more: a pair that only awaited replies is over."""
        return self._done(self._end(self._leaving.failure)) if self._leaving is not None and self.awaits_replies else []

    def violated(self, lane: Lane, error: ProtocolError, now: float) -> list[Action]:
        """A record on `lane` could not be decoded or was not allowed there (LV [D7])."""
        if self._ended:
            return []
        self._arrived(lane)
        return self._done(self._violation(error, now))

    def prepare(self, now: float) -> list[Action]:
        """Handlers are prepared; a pair that waited for nothing else becomes ready in this call (LV-24)."""
        if self._ended:
            return []
        self._prepared = True
        return self._done(self._when_ready(now))

    def announce(self, now: float) -> list[Action]:
        """The local admission has a new revision: tell an admitted peer. Telling a revision twice is a no-op.

        Before admission nothing is sent; what changed meanwhile follows right behind the admission.
        """
        if self._ended or self._leaving is not None or not self._lanes.is_admitted(Lane.APPLICATION):
            return []
        return self._done(self._tell_revision())

    def set_flow(self, state: FlowState, now: float) -> list[Action]:
        """The local receive-flow state changed (wire.md §12): tell a ready peer. Liveness is untouched."""
        if not self.ready:
            return []
        return self._done(self._tell_flow(state))

    def close(self, reason: CloseReason, now: float) -> list[Action]:
        """End on this side's own decision: orderly, draining or replaced. No liveness failure (LV-18).

        Raises:
            ValueError: for PROTOCOL_ERROR, which is `violated`'s.
        """
        if reason == CloseReason.PROTOCOL_ERROR:
            raise ValueError("a protocol error is reported with violated(), which names the field")
        if self._ended:
            return []
        failure = Failure(reason_of_close(reason), f"closed by this node ({reason.name.lower()})", now)
        return self._done(self._end(failure, parting=Close(reason)))

    def fail(self, failure_reason: FailureReason, detail: str, now: float) -> list[Action]:
        """End because of something known outside the connection, e.g. a descriptor of another generation (LV-121)."""
        if self._ended:
            return []
        return self._done(self._end(Failure(failure_reason, detail, now), parting=close_for_failure(failure_reason)))

    def tick(self, now: float) -> list[Action]:
        """Do what is due: end at a deadline, or send a probe. Expiry is decided before a probe is emitted ([D2])."""
        if self._ended:
            return []
        if self._leaving is not None:
            over = self._leaving.over(now, self.last_receive)
            return self._done(self._end(self._leaving.failure) if over else [])
        if self._handshake_deadline is not None and now >= self._handshake_deadline:
            waiting = Lane.COMPLETION if self._guard is not None else Lane.APPLICATION
            text = f"no admission on the {waiting.name.lower()} lane within {DIAL_DEADLINE:g} s"
            return self._done(self._end(Failure(FailureReason.TRANSPORT_ERROR, text, now)))
        actions: list[Action] = []
        for judgement in self.liveness.tick(now):
            match judgement:
                case SendProbe(probe_id=probe_id):
                    actions.append(Send(Lane.APPLICATION, LivenessProbe(probe_id)))
                case Expired(deadline=deadline):
                    text = f"no answer to a probe until {deadline:.3f}"
                    actions += self._end(Failure(FailureReason.PEER_DEADLINE, text, now))
        return self._done(actions)

    # -- records -------------------------------------------------------------------------------------------------------

    def _dispatch(self, lane: Lane, command: LinkCommand, now: float) -> list[Action]:
        match command:
            case Hello():
                return self._on_hello(lane, command, now)
            case Admit():
                return self._on_admit(lane, command, now)
            case Reject(reason=reason):
                return self._on_reject(lane, reason, now)
            case Close(reason=close):
                require(lane is Lane.APPLICATION, "close on the completion lane", "lane")
                text = f"closed by the peer ({close.name.lower()})"
                if command.field:
                    text += f": {command.field}: {command.problem}"
                failure = Failure(reason_of_close(close), text, now)
                if close != CloseReason.PROTOCOL_ERROR and self._ready_told and self._lanes.exists(Lane.COMPLETION):
                    return self._leave(failure, Lane.COMPLETION, now)
                return self._end(failure)
            case LivenessProbe(probe_id=probe_id):
                self._require_admitted(lane, command)
                return [Send(Lane.APPLICATION, LivenessAck(probe_id))]
            case LivenessAck(probe_id=probe_id):
                self._require_admitted(lane, command)
                self.liveness.acknowledge(probe_id, now)
                return []
            case Update(admission=admission):
                self._require_admitted(lane, command)
                return self._on_revision(route_mesh(admission), now)
            case ReceiveFlow(state=state):
                self._require_admitted(lane, command)
                self._remote_flow = state
                return [RemoteFlow(state)]
        assert_never(command)

    def _require_admitted(self, lane: Lane, command: LinkCommand) -> None:
        """Liveness and updates belong to the application lane, after its admission (LV-55 [D9], LV-58)."""
        require(lane is Lane.APPLICATION, "only the application lane carries this command", "lane")
        text = f"{type(command).__name__} on a connection that is not admitted"
        require(self._lanes.is_admitted(lane), text, "prefix.command")

    def _require_handshake(self, lane: Lane, record: Hello | Admit) -> RouteMeshAdmission:
        """The record names the lane it came on and its sender's lane is open; returns its admission."""
        require(record.lane == lane, f"names lane {record.lane!r} on lane {lane.name.lower()}", "body.lane")
        require(self._lanes.is_usable(lane), "came before the hello it answers", "prefix.command")
        return route_mesh(record.admission)

    def _on_hello(self, lane: Lane, hello: Hello, now: float) -> list[Action]:
        require(not self._dialler, "hello from the accepting side", "prefix.command")
        remote = self._require_handshake(lane, hello)
        same_pair = hello.pair_id == self.pair_id
        if self._lanes.is_admitted(lane):
            require(same_pair, "repeated hello with another pair", "body.pairId")
            return self._on_repeated(lane, remote, now)
        if lane is Lane.APPLICATION:
            require(same_pair, "hello of another pair", "body.pairId")
            reject = self._judgement(remote)
        else:
            admitted = self._lanes.is_admitted(Lane.APPLICATION)
            require(admitted, "completion lane before the application lane was admitted", "prefix.command")
            reject = self._other_lane(remote) if same_pair else RejectReason.IDENTITY_MISMATCH
        if reject is not None:
            return self._refused(reject, f"hello on the {lane.name.lower()} lane", now, Reject(reject), lane)
        admission = self._local()
        admit = Send(lane, Admit(admission, lane, self.pair_id))
        self._lanes[lane] = LaneState.ADMITTED
        if lane is Lane.COMPLETION:
            return [admit, *self._when_ready(now)]
        self._guard = RevisionGuard(remote)
        self._told_revision = admission.descriptor_revision
        self._handshake_deadline = now + DIAL_DEADLINE
        return [admit, Admitted(remote)]

    def _on_admit(self, lane: Lane, admit: Admit, now: float) -> list[Action]:
        require(self._dialler, "admit from the dialling side", "prefix.command")
        remote = self._require_handshake(lane, admit)
        require(admit.pair_id == self.pair_id, "admit does not echo the pair", "body.pairId")
        if self._lanes.is_admitted(lane):
            return self._on_repeated(lane, remote, now)
        reject = self._judgement(remote) if lane is Lane.APPLICATION else self._other_lane(remote)
        if reject is not None:
            # `reject` is the acceptor's word; a dialler that refuses an admit closes.
            farewell = Close(CloseReason.ORDERLY)
            return self._refused(reject, f"admit on the {lane.name.lower()} lane", now, farewell, Lane.APPLICATION)
        self._lanes[lane] = LaneState.ADMITTED
        if lane is Lane.COMPLETION:
            return self._when_ready(now)
        self._guard = RevisionGuard(remote)
        self._lanes[Lane.COMPLETION] = LaneState.DIALLING
        self._handshake_deadline = now + DIAL_DEADLINE
        return [Admitted(remote), *self._tell_revision(), Dial(Lane.COMPLETION)]

    def _on_reject(self, lane: Lane, reason: RejectReason, now: float) -> list[Action]:
        require(self._dialler, "reject from the dialling side", "prefix.command")
        require(self._lanes[lane] is LaneState.OPEN, "reject where no hello waits for an answer", "prefix.command")
        return self._refused(reason, f"the peer rejected the {lane.name.lower()} lane", now)

    def _on_repeated(self, lane: Lane, remote: RouteMeshAdmission, now: float) -> list[Action]:
        """A handshake record on an admitted lane: with the same descriptor it changes nothing at all (LV-71)."""
        if lane is Lane.APPLICATION:
            return self._on_revision(remote, now)
        mismatch = self._other_lane(remote)
        return self._changed_identity(mismatch, now) if mismatch is not None else []

    def _on_revision(self, remote: RouteMeshAdmission, now: float) -> list[Action]:
        guard = self._admitted_guard()
        mismatch = identity_change(guard.current, remote)
        if mismatch is not None:
            return self._changed_identity(mismatch, now)
        return [Updated(remote)] if guard.offer(remote) == "newer" else []

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _admitted_guard(self) -> RevisionGuard:
        assert self._guard is not None, "asked only after the application lane was admitted"
        return self._guard

    def _judgement(self, remote: RouteMeshAdmission) -> RejectReason | None:
        reject = check_admission(self._local(), remote, self._expected())
        return reject if reject is not None else self._judge(remote)

    def _other_lane(self, remote: RouteMeshAdmission) -> RejectReason | None:
        """The completion lane has to come from the same run of the same node as the application lane."""
        guard = self._admitted_guard()
        mismatch = identity_change(guard.current, remote)
        if mismatch is None:
            guard.check_other_lane(remote)
        return mismatch

    def _overdue(self, now: float) -> bool:
        return (self._handshake_deadline is not None and now >= self._handshake_deadline) or self.liveness.expired(now)

    def _arrived(self, lane: Lane) -> None:
        """An accepted completion lane exists from its first record on."""
        if not self._dialler and self._lanes[lane] is LaneState.ABSENT:
            self._lanes[lane] = LaneState.OPEN

    def _when_ready(self, now: float) -> list[Action]:
        if self._lanes.both_admitted:
            self._handshake_deadline = None
        if not self.ready or self._ready_told:
            return []
        self._ready_told = True
        self.liveness.start(now)
        # The flow state goes first, so that no call can take the route before the peer knows it (LV-173).
        return [*self._tell_flow(self._flow()), Ready()]

    def _tell_flow(self, state: FlowState) -> list[Action]:
        if state == self._told_flow:
            return []
        self._told_flow = state
        return [Send(Lane.APPLICATION, ReceiveFlow(state))]

    def _tell_revision(self) -> list[Action]:
        admission = self._local()
        if admission.descriptor_revision <= self._told_revision:
            return []
        self._told_revision = admission.descriptor_revision
        return [Send(Lane.APPLICATION, Update(admission))]

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _refused(
        self,
        reject: RejectReason,
        what: str,
        now: float,
        parting: LinkCommand | None = None,
        parting_lane: Lane = Lane.APPLICATION,
    ) -> list[Action]:
        not_required = reject == RejectReason.NOT_REQUIRED
        failure = None if not_required else Failure(reason_of_reject(reject), f"{what}: {reject.name.lower()}", now)
        return self._end(
            failure, parting=parting, parting_lane=parting_lane, ended=Ended(failure, not_required, reject)
        )

    def _changed_identity(self, mismatch: RejectReason, now: float) -> list[Action]:
        """An admitted peer suddenly speaks for somebody else: not ready at once, with the matching reason (LV-121)."""
        text = f"the peer changed after its admission: {mismatch.name.lower()}"
        parting = close_for_changed_identity(mismatch)
        return self._end(Failure(reason_of_reject(mismatch), text, now), parting=parting)

    def _violation(self, error: ProtocolError, now: float) -> list[Action]:
        parting = close_for(error)
        text = f"{parting.field}: {parting.problem}"
        return self._end(Failure(FailureReason.PROTOCOL_ERROR, text, now), parting=parting)

    def _leave(self, failure: Failure, reading: Lane, now: float) -> list[Action]:
        """Out of every selection set now; ended when `reading` has said what it has to say (`Leaving`)."""
        self._leaving = Leaving.begin(failure, reading, now)
        self.liveness.stop()
        if reading is Lane.COMPLETION:
            return [NotReady(failure), CloseLane(Lane.APPLICATION, linger=False)]
        return [Send(Lane.APPLICATION, Close(CloseReason.ORDERLY)), NotReady(failure)]

    def _end(
        self,
        failure: Failure | None,
        *,
        parting: LinkCommand | None = None,
        parting_lane: Lane = Lane.APPLICATION,
        ended: Ended | None = None,
    ) -> list[Action]:
        """The only way out. What was sent last is given time to leave; without a last word the lanes are cut."""
        actions: list[Action] = []
        last_word = parting_lane if parting is not None and self._lanes.is_usable(parting_lane) else None
        if parting is not None and last_word is not None:
            actions.append(Send(last_word, parting))
        if self._ready_told and failure is not None and self._leaving is None:
            actions.append(NotReady(failure))
        actions += self._lanes.closing(last_word)
        actions.append(ended if ended is not None else Ended(failure))
        self._ended = True
        self.failure = failure
        self._handshake_deadline = None
        self.liveness.stop()
        return actions

    def _done(self, actions: list[Action]) -> list[Action]:
        if self._watch is not None:
            self._watch()
        return actions
