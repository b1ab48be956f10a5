"""A link that two nodes agree on: `hello` and `admit`, probes, receive flow, farewell (wire.md §4, §12; LV §2, §4-§6).

Shared by the RouteMesh pair and the ClientServer connection, on however many lanes. All records but those of the
handshake travel on the application lane, which a one-lane link simply has. Phases, derived and never stored:

    CONNECTING   the application lane is not admitted
    ADMITTED     it is; another lane or the preparation of handlers is missing
    READY        all lanes admitted and handlers prepared (LV-27 [D13]): the one predicate is `ready` (LV-25)
    ENDED        terminal

The transitions stand in the modules of the two topologies. Rejected: topology as a value asked in every method. What
differs is few and whole: which admission, which checks, what goes into a `hello`, what follows a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, assert_never

from zlinkpy.errors import ProtocolError
from zlinkpy.link.actions import Action, Admitted, Ended, LinkCommand, Ready, RemoteFlow, Send, Updated
from zlinkpy.link.admission import Expectation
from zlinkpy.link.checks import require
from zlinkpy.link.constants import DIAL_DEADLINE
from zlinkpy.link.failure import Failure, FailureReason, reason_of_close, reason_of_reject
from zlinkpy.link.farewell import close_for_changed_identity, close_for_failure
from zlinkpy.link.lanes import Lanes, LaneState, PairPhase
from zlinkpy.link.liveness import Expired, ProbeLiveness, SendProbe
from zlinkpy.link.machine import LinkMachine
from zlinkpy.link.revisions import AdmissionT, IdentityChange, RevisionGuard, identity_change, revision_of
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
    Update,
    close_for,
)


class HandshakeLink(LinkMachine, Generic[AdmissionT]):
    """One attempt to be connected with one peer that says who it is; used through `Pair` and `ServicePair`.

    Args:
        dialler: True for the side that dials the lanes.
        lanes: the application lane first.
        local: gives this node's current admission.
        expected: gives what is known about the peer at the moment of the check, or None.
        judge: the last check of an admission (duplicates, limits): a reason, or None to admit.
        probe_ids: gives probe ids, see `ProbeLiveness`.
        flow: gives this node's current receive-flow state.
        prepared: False when handlers are not prepared yet; `prepare` follows (LV-23).
    """

    __slots__ = (
        "_expected",
        "_flow",
        "_guard",
        "_judge",
        "_local",
        "_prepared",
        "_remote_flow",
        "_told_flow",
        "_told_revision",
        "liveness",
    )

    def __init__(
        self,
        *,
        dialler: bool,
        lanes: Sequence[Lane],
        local: Callable[[], AdmissionT],
        expected: Callable[[], Expectation | None],
        judge: Callable[[AdmissionT], RejectReason | None],
        probe_ids: Callable[[], int],
        flow: Callable[[], FlowState],
        prepared: bool,
    ) -> None:
        super().__init__(Lanes(dialler=dialler, lanes=lanes))
        self._local = local
        self._expected = expected
        self._judge = judge
        self._flow = flow
        self._prepared = prepared
        self._guard: RevisionGuard[AdmissionT] | None = None
        self._told_revision = 0
        self._told_flow: FlowState | None = None
        self._remote_flow = FlowState.RUNNING
        self.liveness = ProbeLiveness(probe_ids)
        """Judges the connection while it is ready; lives on the application lane (LV-58)."""

    # -- what others read ----------------------------------------------------------------------------------------------

    @property
    def phase(self) -> PairPhase:
        """The phase, derived from the lanes."""
        phase = super().phase
        if phase is PairPhase.CONNECTING and self._lanes.is_admitted(Lane.APPLICATION):
            return PairPhase.ADMITTED
        return phase

    @property
    def remote(self) -> AdmissionT | None:
        """The newest admission of the peer, or None before it was admitted."""
        return self._guard.current if self._guard is not None else None

    @property
    def remote_flow(self) -> FlowState:
        return self._remote_flow

    def next_deadline(self) -> float | None:
        """When `tick` is due next, or None. Always later than the `now` of the last `tick`."""
        if self._ended:
            return None
        probe = self.liveness.next_deadline()
        dial = self._dial_deadline
        return min((each for each in (probe, dial) if each is not None), default=None)

    # -- events --------------------------------------------------------------------------------------------------------

    def opened(self, lane: Lane, now: float) -> list[Action]:
        """A dialled lane can carry bytes (dialler only)."""
        if self._lanes[lane] is not LaneState.DIALLING or self._ended:
            return []
        self._lanes[lane] = LaneState.OPEN
        admission = self._local()
        if lane is Lane.APPLICATION:
            self._told_revision = revision_of(admission)
        return self._done([Send(lane, self._hello(admission, lane))])

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

    def lost(
        self, lane: Lane, detail: str, now: float, reason: FailureReason = FailureReason.TRANSPORT_ERROR
    ) -> list[Action]:
        """The close of a lane's connection was observed, or its dial failed. Other lanes go with it (LV-27).

        `reason` is SECURITY_MISMATCH where keys were the matter, as only the transport can tell."""
        if self._ended or not self._lanes.exists(lane):
            return []
        self._lanes[lane] = LaneState.GONE
        failure = Failure(reason, f"{self._lanes.called(lane)}: {detail}", now)
        return self._done(self._on_lost(lane, failure, now))

    def violated(self, lane: Lane, error: ProtocolError, now: float) -> list[Action]:
        """A record on `lane` could not be decoded or was not allowed there (LV [D7])."""
        if self._ended:
            return []
        self._arrived(lane)
        return self._done(self._violation(error, now))

    def prepare(self, now: float) -> list[Action]:
        """Handlers are prepared; a link that waited for nothing else becomes ready in this call (LV-24)."""
        if self._ended:
            return []
        self._prepared = True
        return self._done(self._when_ready(now))

    def announce(self, now: float) -> list[Action]:
        """The local admission has a new revision: tell an admitted peer. Telling a revision twice is a no-op.

        Before admission nothing is sent; what changed meanwhile follows right behind the admission.
        """
        if self._ended or not self._lanes.is_admitted(Lane.APPLICATION):
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
        if self._dial_deadline is not None and now >= self._dial_deadline:
            waiting = next(lane for lane in self._lanes if not self._lanes.is_admitted(lane))
            text = f"no admission on the {self._lanes.called(waiting)} within {DIAL_DEADLINE:g} s"
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

    # -- what a topology says ------------------------------------------------------------------------------------------

    def _hello(self, admission: AdmissionT, lane: Lane) -> Hello:
        raise NotImplementedError

    def _admit(self, admission: AdmissionT, lane: Lane) -> Admit:
        raise NotImplementedError

    def _described(self, admission: object) -> AdmissionT:
        """`admission` as what the peer of this link has to be; raises ProtocolError for any other kind."""
        raise NotImplementedError

    def _check(self, remote: AdmissionT) -> RejectReason | None:
        """The ordered checks of wire.md §4 but the last."""
        raise NotImplementedError

    def _require_named(self, lane: Lane, record: Hello | Admit) -> None:
        """What a handshake record has to say of the connection it came on."""

    def _verdict(self, lane: Lane, record: Hello | Admit, remote: AdmissionT) -> RejectReason | None:
        """Whether `lane` may be admitted."""
        reject = self._check(remote)
        return reject if reject is not None else self._judge(remote)

    def _on_repeated(self, lane: Lane, remote: AdmissionT, now: float) -> list[Action]:
        """A handshake record on an admitted lane: with the same descriptor it changes nothing at all (LV-71)."""
        return self._on_revision(remote, now)

    def _on_lost(self, lane: Lane, failure: Failure, now: float) -> list[Action]:
        return self._end(failure)

    def _on_departure(self, reason: CloseReason, failure: Failure, now: float) -> list[Action]:
        """The peer said `close`. On one lane nothing can have been overtaken by it."""
        return self._end(failure)

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
                return self._on_departure(close, Failure(reason_of_close(close), text, now), now)
            case LivenessProbe(probe_id=probe_id):
                self._require_admitted(lane, command)
                return [Send(Lane.APPLICATION, LivenessAck(probe_id))]
            case LivenessAck(probe_id=probe_id):
                self._require_admitted(lane, command)
                self.liveness.acknowledge(probe_id, now)
                return []
            case Update(admission=admission):
                self._require_admitted(lane, command)
                return self._on_update(admission, now)
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

    def _introduced(self, lane: Lane, record: Hello | Admit) -> AdmissionT:
        """The admission in a handshake record that may come now."""
        self._require_named(lane, record)
        require(self._lanes.is_usable(lane), "came before the hello it answers", "prefix.command")
        return self._described(record.admission)

    def _on_hello(self, lane: Lane, hello: Hello, now: float) -> list[Action]:
        require(not self._lanes.dialler, "hello from the accepting side", "prefix.command")
        remote = self._introduced(lane, hello)
        if self._lanes.is_admitted(lane):
            return self._on_repeated(lane, remote, now)
        reject = self._verdict(lane, hello, remote)
        if reject is not None:
            return self._refused(reject, f"hello on the {self._lanes.called(lane)}", now, Reject(reject), lane)
        admission = self._local()
        if lane is Lane.APPLICATION:
            self._told_revision = revision_of(admission)
        return [Send(lane, self._admit(admission, lane)), *self._on_admitted(lane, remote, now)]

    def _on_admit(self, lane: Lane, admit: Admit, now: float) -> list[Action]:
        require(self._lanes.dialler, "admit from the dialling side", "prefix.command")
        remote = self._introduced(lane, admit)
        if self._lanes.is_admitted(lane):
            return self._on_repeated(lane, remote, now)
        reject = self._verdict(lane, admit, remote)
        if reject is not None:
            # `reject` is the acceptor's word; a dialler that refuses an admit closes.
            farewell = Close(CloseReason.ORDERLY)
            return self._refused(reject, f"admit on the {self._lanes.called(lane)}", now, farewell, Lane.APPLICATION)
        return self._on_admitted(lane, remote, now)

    def _on_reject(self, lane: Lane, reason: RejectReason, now: float) -> list[Action]:
        require(self._lanes.dialler, "reject from the dialling side", "prefix.command")
        require(self._lanes[lane] is LaneState.OPEN, "reject where no hello waits for an answer", "prefix.command")
        return self._refused(reason, f"the peer rejected the {self._lanes.called(lane)}", now)

    def _on_admitted(self, lane: Lane, remote: AdmissionT, now: float) -> list[Action]:
        self._lanes[lane] = LaneState.ADMITTED
        actions: list[Action] = []
        if lane is Lane.APPLICATION:
            self._guard = RevisionGuard(remote)
            self._dial_deadline = now + DIAL_DEADLINE
            actions = [Admitted(remote), *self._tell_revision(), *self._dial_next()]
        if self._lanes.all_admitted:
            self._dial_deadline = None
        return [*actions, *self._when_ready(now)]

    def _on_update(self, admission: object, now: float) -> list[Action]:
        return self._on_revision(self._described(admission), now)

    def _on_revision(self, remote: AdmissionT, now: float) -> list[Action]:
        guard = self._admitted_guard()
        change = identity_change(guard.current, remote)
        if change is not None:
            return self._changed_identity(change, now)
        return [Updated(remote)] if guard.offer(remote) == "newer" else []

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _is_established(self) -> bool:
        return self._prepared and self._lanes.all_admitted

    def _admitted_guard(self) -> RevisionGuard[AdmissionT]:
        assert self._guard is not None, "asked only after the application lane was admitted"
        return self._guard

    def _overdue(self, now: float) -> bool:
        return (self._dial_deadline is not None and now >= self._dial_deadline) or self.liveness.expired(now)

    def _arrived(self, lane: Lane) -> None:
        """An accepted further lane exists from its first record on."""
        if not self._lanes.dialler and self._lanes[lane] is LaneState.ABSENT:
            self._lanes[lane] = LaneState.OPEN

    def _when_ready(self, now: float) -> list[Action]:
        if not self.ready or self._told_ready:
            return []
        self._told_ready = True
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
        if revision_of(admission) <= self._told_revision:
            return []
        self._told_revision = revision_of(admission)
        return [Send(Lane.APPLICATION, Update(admission))]

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self.liveness.stop()

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

    def _changed_identity(self, change: IdentityChange, now: float) -> list[Action]:
        """An admitted peer suddenly speaks for somebody else: not ready at once, with the matching reason (LV-121)."""
        text = f"the peer changed after its admission: {change.reject.name.lower()}"
        parting = close_for_changed_identity(change)
        return self._end(Failure(reason_of_reject(change.reject), text, now), parting=parting)

    def _violation(self, error: ProtocolError, now: float) -> list[Action]:
        parting = close_for(error)
        text = f"{parting.field}: {parting.problem}"
        return self._end(Failure(FailureReason.PROTOCOL_ERROR, text, now), parting=parting)
