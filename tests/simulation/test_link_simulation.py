"""Two ends of a link over a wire that delays, loses and breaks, driven by random events; once for each topology.

The invariants, each in one sentence:

- probe: at any time at most one probe id of a connection is outstanding, and it is repeated until it is answered;
- lanes: a link is never ready without all its lanes admitted and none seen lost;
- end: a pair ends exactly once, with `Ended` as the last action it ever returns;
- edges: `NotReady` comes exactly once for a pair that was ready and never for one that was not;
- flow: the receive-flow state leaves before `Ready` in the same list;
- evidence: no pair is ready 15 s after its last evidence;
- lane use: liveness stays on the application lane, and every record sent is legal where it is sent;
- waking: after a tick nothing is due any more, and the owner knows every deadline;
- settled: once a pair has ended, its peer ends too, no later than its own deadline.

The run prints what it reached and fails when something it is there to reach was never reached.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.link.harness import APP, COMPLETION, LINKS, SERVICE_ROLES, Link, Node, object_client
from zlinkpy.errors import ProtocolError
from zlinkpy.link import (
    DIAL_DEADLINE,
    PEER_DEADLINE,
    Action,
    Ended,
    Expectation,
    FailureReason,
    NotReady,
    Ready,
    RemoteFlow,
    Send,
    Updated,
)
from zlinkpy.wire import (
    Admit,
    ChannelSend,
    CloseReason,
    FlowState,
    Hello,
    Lane,
    LivenessAck,
    LivenessProbe,
    NodeSend,
    PayloadHead,
    ReceiveFlow,
    RejectReason,
    Reply,
    RuntimeState,
    Update,
    encode,
)

EXAMPLES = 400

MESSAGE = NodeSend(PayloadHead("hello"))
MESSAGES = {
    "client": ChannelSend("orders", PayloadHead("hello")),
    "server": Reply(1, 0, 0, None, PayloadHead("hello")),
}

# What the simulation is worth: each of these has to happen at least once.
REACHED = (
    *(f"ended: {reason.value}" for reason in FailureReason if reason is not FailureReason.PUBLISHER_SILENT),
    "ended while connecting",
    "ended while admitted",
    "ended while ready",
    "ready",
    "probe repeated",
    "ack taken",
    "ack ignored",
    "late tick",
    "updated",
    "remote flow",
    "prepared late",
    "refused by the owner",
    "record after the end",
)
ONLY = {"RouteMesh": ("ended: not_required",), "ClientServer": ()}


class Watched:
    """An observer of one node: it keeps its own books from what crosses the boundary and compares."""

    def __init__(self, node: Node, reached: Counter[str]) -> None:
        self.node = node
        self.reached = reached
        self.admitted: set[Lane] = set()
        self.lost: set[Lane] = set()
        self.outstanding: int | None = None
        self.used: set[int] = set()
        self.evidence: float | None = None
        self.ready_told = self.not_ready_told = False
        self.ended = 0
        self.take, self.deliver, self.lose = node.take, node.deliver, node.lost
        node.take = self._take  # type: ignore[method-assign]
        node.deliver = self._deliver  # type: ignore[method-assign]
        node.lost = self._lose  # type: ignore[method-assign]

    def _deliver(self, lane: Lane, frames: list[bytes], now: float) -> list[Action]:
        if self.ended:
            self.reached["record after the end"] += 1
        if frames[0][3] == 2 and self.node.dials and not self.ended:
            self.admitted.add(lane)
        if frames[0][3] == 6 and not self.ended:
            self._acknowledged(frames, now)
        return self.deliver(lane, frames, now)

    def _acknowledged(self, frames: list[bytes], now: float) -> None:
        counts = self.outstanding is not None and frames == encode(LivenessAck(self.outstanding))
        if counts and self.evidence is not None and now < self.evidence + PEER_DEADLINE:
            self.outstanding, self.evidence = None, now
            self.reached["ack taken"] += 1
        else:
            self.reached["ack ignored"] += 1

    def _lose(self, lane: Lane, now: float, detail: str = "disconnected") -> list[Action]:
        if not self.ended:
            self.lost.add(lane)
        return self.lose(lane, now, detail)

    def _take(self, actions: list[Action], now: float) -> list[Action]:
        phase = self._phase()
        for index, action in enumerate(actions):
            assert not self.ended, f"{action} after the end"
            self._count(action, actions[:index], phase, now)
        result = self.take(actions, now)
        self.check(now)
        return result

    def _count(self, action: Action, before: list[Action], phase: str, now: float) -> None:
        reached = self.reached
        match action:
            case Send(lane=lane, command=LivenessProbe(probe_id=probe_id)):
                assert lane is APP
                assert self.ready_told
                assert self.outstanding in (None, probe_id), "a second id while one is outstanding"
                if self.outstanding is None:
                    assert probe_id not in self.used, "an id was used twice"
                    self.used.add(probe_id)
                else:
                    reached["probe repeated"] += 1
                self.outstanding = probe_id
            case Send(lane=lane, command=LivenessAck()):
                assert lane is APP
            case Send(lane=lane, command=Admit()):
                self.admitted.add(lane)
            case Ready():
                assert not self.ready_told, "ready twice"
                assert any(isinstance(a, Send) and isinstance(a.command, ReceiveFlow) for a in before)
                self.ready_told, self.evidence = True, now
                reached["ready"] += 1
            case NotReady():
                assert self.ready_told, "not ready without having been ready"
                assert not self.not_ready_told, "not ready twice"
                self.not_ready_told = True
            case Updated():
                reached["updated"] += 1
            case RemoteFlow():
                reached["remote flow"] += 1
            case Ended(failure=failure, not_required=not_required):
                self.ended += 1
                assert (failure is None) is not_required
                assert self.not_ready_told is self.ready_told
                reached[f"ended: {'not_required' if failure is None else failure.reason.value}"] += 1
                reached[f"ended while {phase}"] += 1

    def _phase(self) -> str:
        if self.ready_told:
            return "ready"
        return "admitted" if APP in self.admitted else "connecting"

    def check(self, now: float) -> None:
        """What has to hold between any two events."""
        pair = self.node.pair
        assert pair.ended is bool(self.ended)
        if pair.ready:
            assert self.admitted == set(self.node.lanes)
            assert not self.lost
            assert self.ready_told
            assert not self.not_ready_told
        assert self.node.owner.is_ready(self.node.key) is pair.ready
        if self.ended:
            assert pair.next_deadline() is None
            assert not pair.ready

    def check_after_ticks(self, now: float) -> None:
        """What has to hold once everything due at `now` was done."""
        self.check(now)
        pair = self.node.pair
        if pair.ready:
            assert self.evidence is not None
            assert now < self.evidence + PEER_DEADLINE, "ready without evidence"
            assert pair.liveness.outstanding == self.outstanding
            assert pair.liveness.deadline == self.evidence + PEER_DEADLINE
        due = pair.next_deadline()
        assert due is None or due > now
        known = self.node.owner.next_deadline()
        assert due is None or (known is not None and known <= due)


ends = st.sampled_from([0, 1])
lanes = st.sampled_from([APP, COMPLETION])
mild = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.3, 1.0, 2.5, 5.0, 5.0, 10.0])),
    st.tuples(st.just("wait"), st.sampled_from([4.0, 5.0, 6.0])),
    st.tuples(st.just("lose next"), st.tuples(ends, lanes)),
    st.tuples(st.just("delay"), st.tuples(ends, st.sampled_from([0.0, 0.4, 1.0]))),
    st.tuples(st.just("message"), ends),
    st.tuples(st.just("forged ack"), ends),
    st.tuples(st.just("prepare"), ends),
    st.tuples(st.just("weight"), ends),
    st.tuples(st.just("drain"), ends),
    st.tuples(st.just("flow"), st.tuples(ends, st.sampled_from(list(FlowState)))),
    st.tuples(st.just("freeze"), st.sampled_from([3.0, 6.0, 12.0])),
)
harsh = st.one_of(
    st.tuples(st.just("wait"), st.just(16.0)),
    st.tuples(st.just("freeze"), st.just(16.0)),
    st.tuples(st.just("cut"), lanes),
    st.tuples(st.just("black hole"), st.tuples(ends, lanes)),
    st.tuples(st.just("delay"), st.tuples(ends, st.just(16.0))),
    st.tuples(st.just("garbage"), st.tuples(ends, lanes)),
    st.tuples(st.just("other peer"), st.tuples(ends, st.sampled_from(["rid", "key", "generation"]))),
    st.tuples(st.just("close"), st.tuples(ends, st.sampled_from([CloseReason.ORDERLY, CloseReason.REPLACED]))),
    st.tuples(st.just("fail"), st.tuples(ends, st.sampled_from(list(FailureReason)))),
    st.tuples(st.just("violated"), st.tuples(ends, lanes)),
)
scripts = st.builds(
    lambda *parts: [event for part in parts for event in part],
    st.lists(mild, max_size=12),
    st.lists(harsh, max_size=1),
    st.lists(mild, max_size=12),
    st.lists(harsh, max_size=2),
    st.lists(mild, max_size=4),
)
latencies = st.tuples(st.sampled_from([0.0, 0.05, 0.8]), st.sampled_from([0.0, 0.05, 0.8]))
# Two kinds of run: an opening that works, so that the script has something to break, and one where anything may fail.
working = st.fixed_dictionaries(
    {
        "prepared": st.sampled_from([(True, True), (True, True), (True, False), (False, False)]),
        "latency": latencies,
        "clients": st.just(False),
        "expected": st.none(),
        "judge": st.none(),
        "dial": st.just("works"),
        "quiet": st.sampled_from([4.0, 7.0, 40.0]),
    }
)
doubtful = st.fixed_dictionaries(
    {
        "prepared": st.tuples(st.booleans(), st.booleans()),
        "latency": latencies,
        "clients": st.booleans(),
        "expected": st.sampled_from([None, "rid", "key", "generation"]),
        "judge": st.sampled_from([None, None, RejectReason.DUPLICATE_CONNECTION, RejectReason.RUNTIME_NOT_SERVING]),
        "dial": st.sampled_from(["works", "refused", "silent", "half"]),
        "quiet": st.sampled_from([0.0, 0.2, 7.0]),
    }
)


def opened(topology: str, opening: dict[str, Any]) -> Link:
    expectation = {
        None: None,
        "rid": Expectation(rid="node-x"),
        "key": Expectation(security_identity="another key"),
        "generation": Expectation(generation=99),
    }[opening["expected"]]
    locals_ = [{}, {}]
    if topology == "RouteMesh" and opening["clients"]:
        locals_ = [{"local": object_client("node-a")}, {"local": object_client("node-b")}]
    wire = LINKS[topology](
        latency=opening["latency"],
        dialler={**locals_[0], "prepared": opening["prepared"][0], "expected": expectation},
        acceptor={**locals_[1], "prepared": opening["prepared"][1], "judge": lambda remote: opening["judge"]},
    )
    if opening["dial"] == "refused":
        wire.refused.add(APP)
    elif opening["dial"] == "silent":
        wire.dialable[APP] = False
    elif opening["dial"] == "half":
        wire.dialable[COMPLETION] = False
    return wire


def step(wire: Link, what: str, argument: Any, reached: Counter[str]) -> None:
    end = argument[0] if isinstance(argument, tuple) else argument if type(argument) is int else 0
    node, now = wire.nodes[end], wire.now
    if node.role in SERVICE_ROLES:  # there is no completion lane to be hit
        argument = _on_one_lane(argument)
    match what:
        case "wait":
            wire.run_until(now + argument)
        case "freeze":  # the process stands still: records and deadlines of that time are met at its end
            wire.now = now + argument
            reached["late tick"] += 1
            wire.run_until(wire.now)
        case "cut":
            wire.cut(argument)
        case "black hole" if argument[1] in wire.connections:
            wire.connections[argument[1]].swallow[end] = True
        case "lose next" if argument[1] in wire.connections:
            wire.connections[argument[1]].drop_next[end] += 1
        case "delay":
            wire.latency[end] = argument[1]
        case "message" if node.pair.remote is not None and not node.pair.ended:
            wire.put(end, APP, encode(MESSAGES.get(node.role, MESSAGE), parts=[b"x"]))
        case "forged ack" if node.pair.remote is not None and not node.pair.ended:
            wire.put(end, APP, encode(LivenessAck(987_654)))
        case "garbage":
            wire.put(end, argument[1], [b"ZM\x01\x05\x00\x91\x00"])
        case "prepare":
            if not node.pair.ready and node.pair.remote is not None:
                reached["prepared late"] += 1
            wire.take(end, node.pair.prepare(now))
        case "weight" if node.role != "client":
            if node.role == "server":
                _revise(node, weight=7)
            else:
                _revise(node, channels=(("lobby", 7),) if node.local.channels else ())
            wire.take(end, node.pair.announce(now))
        case "drain" if node.role != "client":
            if node.role == "server":
                _revise(node, runtime_state=RuntimeState.DRAINING)
            else:
                _revise(node, ext=attrs.evolve(node.local.ext, runtime_state=RuntimeState.DRAINING))
            wire.take(end, node.pair.announce(now))
        case "flow":
            node.flow = argument[1]
            wire.take(end, node.pair.set_flow(argument[1], now))
        case "other peer" if node.pair.remote is not None and not node.pair.ended:
            wire.put(end, APP, encode(_other_peer(node, argument[1])))
        case "close":
            wire.take(end, node.pair.close(argument[1], now))
        case "fail":
            wire.take(end, node.pair.fail(argument[1], "told so", now))
        case "violated":
            wire.take(end, node.pair.violated(argument[1], ProtocolError("no", field="body"), now))
        case _:
            pass


def _on_one_lane(argument: Any) -> Any:
    if isinstance(argument, Lane):
        return APP
    return tuple(APP if isinstance(each, Lane) else each for each in argument) if type(argument) is tuple else argument


def _other_peer(node: Node, what: str) -> Any:
    """What the peer of `node` reads when `node` suddenly speaks for somebody else."""
    rid = "server_rid" if node.role == "server" else "node_rid"
    change = {
        "rid": {rid: "node-x"},
        "key": {"security_identity": "another key"},
        "generation": {"lifecycle_generation": 99},
    }["key" if node.role == "client" else what]
    other = attrs.evolve(node.local, **change)
    return Hello(other) if node.role == "client" else Update(other)


def _revise(node: Node, **changes: Any) -> None:
    node.local = attrs.evolve(node.local, descriptor_revision=node.local.descriptor_revision + 1, **changes)


def simulate(topology: str, opening: dict[str, Any], script: list[tuple[str, Any]], reached: Counter[str]) -> None:
    wire = opened(topology, opening)
    watched = [Watched(node, reached) for node in wire.nodes]
    wire.start()
    script = [("wait", opening["quiet"]), *script]
    for what, argument in script:
        step(wire, what, argument, reached)
        wire.run_until(wire.now)
        for each in watched:
            each.check_after_ticks(wire.now)
    if any(each.ended for each in watched):
        # Whatever the wire hides, the other side finds out by its own deadline, unless it waits for its handlers.
        for end, node in enumerate(wire.nodes):
            wire.take(end, node.pair.prepare(wire.now))
        wire.run_until(wire.now + DIAL_DEADLINE + 2 * PEER_DEADLINE)
        assert [each.ended for each in watched] == [1, 1]
    if opening["judge"] is not None and any(
        isinstance(action, Ended) and action.reject == opening["judge"] for node in wire.nodes for _, action in node.log
    ):
        reached["refused by the owner"] += 1
    for each in watched:
        assert each.ended <= 1
        assert each.node.pair.ended is (each.ended == 1)
        assert len(each.node.owner) == (0 if each.ended else 1)


@pytest.mark.parametrize("topology", LINKS)
def test_two_ends_keep_their_promises_whatever_the_wire_does(topology: str) -> None:
    reached: Counter[str] = Counter()
    hypothesis = settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )

    @hypothesis
    @given(opening=working, script=scripts)
    def connected(opening: dict[str, Any], script: list[tuple[str, Any]]) -> None:
        simulate(topology, opening, script, reached)

    @hypothesis
    @given(opening=doubtful, script=st.lists(mild | harsh, max_size=6))
    def connecting(opening: dict[str, Any], script: list[tuple[str, Any]]) -> None:
        simulate(topology, opening, script, reached)

    connected()
    connecting()
    for name, count in sorted(reached.items()):
        print(f"{count:8} {name}")
    assert [name for name in (*REACHED, *ONLY[topology]) if not reached[name]] == []
