"""Pairs under test: one against a scripted peer (`Node`), or two back to back over a wire that can misbehave (`Link`).

Records cross the wire as bytes of the real codec. The wire delays, loses and cuts; it never reorders within a lane,
because a ZeroMQ connection does not. Time is a number that only `Link.run_until` and the tests move.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import attrs

from zlinkpy.errors import ProtocolError
from zlinkpy.link import (
    Action,
    CloseLane,
    Dial,
    Ended,
    Expectation,
    LivenessOwner,
    NotReady,
    Pair,
    Ready,
    Send,
)
from zlinkpy.wire import (
    REQUIRED_CAPABILITY,
    Admit,
    Close,
    Ext,
    FlowState,
    Hello,
    Lane,
    LivenessAck,
    LivenessProbe,
    ObjectRole,
    ReceiveFlow,
    Reject,
    RejectReason,
    RouteMeshAdmission,
    RuntimeState,
    Topology,
    Update,
    decode,
    encode,
)

PAIR_ID = b"\x01\x02\x03\x04\x05\x06\x07\x08"
ROLES = ("dialling", "accepting")
APP, COMPLETION = Lane.APPLICATION, Lane.COMPLETION
LINK_COMMANDS = (Hello, Admit, Reject, Update, LivenessProbe, LivenessAck, ReceiveFlow, Close)


def admission(
    rid: str = "node-n",
    *,
    generation: int = 7,
    revision: int = 1,
    security: str | None = None,
    mesh: str = "play",
    endpoint: str = "tcp://127.0.0.1:5501",
    channels: tuple[tuple[str, int], ...] = (("lobby", 100),),
    state: RuntimeState = RuntimeState.SERVING,
    version: int = 1,
    wave: str | None = None,
    capabilities: tuple[str, ...] = (REQUIRED_CAPABILITY,),
    role: ObjectRole = ObjectRole.NONE,
    weight: int = 100,
) -> RouteMeshAdmission:
    """A valid admission, changed where the test says so."""
    return RouteMeshAdmission(
        mesh_name=mesh,
        node_rid=rid,
        security_identity=f"key-of-{rid}" if security is None else security,
        lifecycle_generation=generation,
        descriptor_revision=revision,
        advertised_endpoint=endpoint,
        channels=channels,
        ext=Ext(
            runtime_state=state,
            application_version=version,
            maintenance_wave=wave,
            protocol_capabilities=capabilities,
            object_role=role,
            placement_weight=weight,
        ),
    )


def object_client(rid: str, **changes: Any) -> RouteMeshAdmission:
    """An Object Client that serves no RouteMesh channel: two of them need no connection."""
    return admission(rid, role=ObjectRole.CLIENT, channels=changes.pop("channels", ()), **changes)


class Node:
    """One pair with the shell a mesh would put around it, logging what it does."""

    def __init__(
        self,
        role: str,
        *,
        local: RouteMeshAdmission | None = None,
        peer: RouteMeshAdmission | None = None,
        expected: Expectation | None = None,
        judge: Callable[[RouteMeshAdmission], RejectReason | None] = lambda remote: None,
        probe_ids: Callable[[], int] | None = None,
        flow: FlowState = FlowState.RUNNING,
        prepared: bool = True,
        pair_id: bytes = PAIR_ID,
        owner: LivenessOwner[str, Action] | None = None,
        key: str = "pair",
    ) -> None:
        self.role = role
        self.local = local if local is not None else admission("node-n")
        self.peer = peer if peer is not None else admission("node-p")
        self.expected = expected
        self.flow = flow
        self.pair = Pair(
            dialler=role == "dialling",
            pair_id=pair_id,
            local=lambda: self.local,
            expected=lambda: self.expected,
            judge=judge,
            probe_ids=probe_ids if probe_ids is not None else itertools.count(1).__next__,
            flow=lambda: self.flow,
            prepared=prepared,
        )
        self.key = key
        self.owner: LivenessOwner[str, Action] = owner if owner is not None else LivenessOwner()
        self.owner.register(key, self.pair)
        self.log: list[tuple[float, Action]] = []
        self.handled: list[object] = []
        self.perform: Callable[[Action, float], None] = lambda action, now: None

    # -- events

    def take(self, actions: list[Action], now: float) -> list[Action]:
        for action in actions:
            self.log.append((now, action))
            if isinstance(action, Send):
                encode(action.command)  # whatever a machine sends must be a legal record
            self.perform(action, now)
        return actions

    def start(self, now: float = 0.0) -> list[Action]:
        return self.take(self.pair.start(now), now)

    def opened(self, lane: Lane, now: float = 0.0) -> list[Action]:
        return self.take(self.pair.opened(lane, now), now)

    def receive(self, lane: Lane, command: Any, now: float) -> list[Action]:
        return self.deliver(lane, encode(command), now)

    def deliver(self, lane: Lane, frames: list[bytes], now: float) -> list[Action]:
        """What the shell does with a record: decode, then the machine or a handler."""
        try:
            record = decode(frames, topology=Topology.ROUTE_MESH, lane=lane)
        except ProtocolError as error:
            return self.take(self.pair.violated(lane, error, now), now)
        if isinstance(record.command, LINK_COMMANDS):
            return self.take(self.pair.receive(lane, record.command, now), now)
        actions = self.take(self.pair.touch(now, lane), now)
        if not self.pair.ended:
            self.handled.append(record.command)
        return actions

    def lost(self, lane: Lane, now: float, detail: str = "disconnected") -> list[Action]:
        return self.take(self.pair.lost(lane, detail, now), now)

    def tick(self, now: float) -> list[Action]:
        """One turn of the owner at `now`."""
        actions: list[Action] = []
        for key, due in self.owner.tick(now):
            if key == self.key:
                actions += self.take(due, now)
        return actions

    def run_until(self, now: float) -> None:
        """Tick at every deadline up to and including `now`."""
        while (due := self.owner.next_deadline()) is not None and due <= now:
            self.tick(due)
            later = self.owner.next_deadline()
            assert later is None or later > due, f"still due at {due} after a tick"

    # -- the scripted peer's part of the handshake

    def admit_application(self, now: float = 0.0, peer: RouteMeshAdmission | None = None) -> list[Action]:
        said = peer if peer is not None else self.peer
        self.start(now)
        if self.role == "accepting":
            return self.receive(APP, Hello(said, APP, self.pair.pair_id), now)
        self.opened(APP, now)
        return self.receive(APP, Admit(said, APP, self.pair.pair_id), now)

    def admit_completion(self, now: float = 0.0, peer: RouteMeshAdmission | None = None) -> list[Action]:
        said = peer if peer is not None else self.peer
        if self.role == "accepting":
            return self.receive(COMPLETION, Hello(said, COMPLETION, self.pair.pair_id), now)
        self.opened(COMPLETION, now)
        return self.receive(COMPLETION, Admit(said, COMPLETION, self.pair.pair_id), now)

    def repeated_handshake(self, lane: Lane = APP, peer: RouteMeshAdmission | None = None) -> Any:
        """The record the peer of this role would repeat."""
        kind = Hello if self.role == "accepting" else Admit
        return kind(peer if peer is not None else self.peer, lane, self.pair.pair_id)

    # -- what happened

    def actions(self, kind: type[Any]) -> list[Any]:
        return [action for _, action in self.log if isinstance(action, kind)]

    def sent(self, kind: type[Any]) -> list[tuple[float, Any]]:
        return [(at, a.command) for at, a in self.log if isinstance(a, Send) and isinstance(a.command, kind)]

    @property
    def probes(self) -> list[tuple[float, int]]:
        return [(at, probe.probe_id) for at, probe in self.sent(LivenessProbe)]

    @property
    def end(self) -> Ended:
        (ended,) = self.actions(Ended)
        return ended

    @property
    def closed_lanes(self) -> set[Lane]:
        return {action.lane for action in self.actions(CloseLane)}


def ready_node(role: str, now: float = 0.0, **options: Any) -> Node:
    """A node whose pair became ready at `now` (T of the contract)."""
    node = Node(role, **options)
    node.admit_application(now)
    node.admit_completion(now)
    assert node.pair.ready
    return node


def probed_node(role: str, now: float = 0.0, **options: Any) -> tuple[Node, int]:
    """The given of LV §6: ready at T = `now`, probe x outstanding since T+5, deadline T+15."""
    node = ready_node(role, now, **options)
    node.run_until(now + 5)
    ((_, probe_id),) = node.probes
    return node, probe_id


@attrs.define
class Connection:
    """One physical connection between the two nodes of a `Link`; index 0 is the dialler's end."""

    lane: Lane
    latency: list[float]
    """Per sending end, shared with the link until a test slows one lane down."""
    state: str = "dialling"  # then open, then closed
    was_open: bool = False
    swallow: list[bool] = attrs.field(factory=lambda: [False, False])
    """Per sending end: what it sends vanishes, the close included (a black hole)."""
    drop_next: list[int] = attrs.field(factory=lambda: [0, 0])
    arrives: list[float] = attrs.field(factory=lambda: [0.0, 0.0])
    """Per sending end: when the last record arrives; a later one is never earlier."""
    cut_backlog: list[bool] = attrs.field(factory=lambda: [False, False])
    seen_closed: list[bool] = attrs.field(factory=lambda: [False, False])


class Link:
    """A dialler and an acceptor over a wire."""

    def __init__(self, dialler: Node, acceptor: Node, *, latency: tuple[float, float] = (0.0, 0.0)) -> None:
        self.nodes = (dialler, acceptor)
        self.now = 0.0
        self.latency = list(latency)
        self.dialable = {APP: True, COMPLETION: True}
        self.refused: set[Lane] = set()
        self.connections: dict[Lane, Connection] = {}
        self.carried: list[tuple[float, int, Lane, Any]] = []
        """Every record put on a lane: when, by which end, where, what."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._deferred: list[tuple[int, CloseLane]] = []
        for end, node in enumerate(self.nodes):
            node.perform = lambda action, now, end=end: self._perform(end, action)

    def start(self) -> None:
        for node in self.nodes:
            node.start(self.now)

    def run_until(self, until: float) -> None:
        """Let everything happen that is due up to `until`, in order of time."""
        while True:
            dues = [node.owner.next_deadline() for node in self.nodes] + [self._events[0][0] if self._events else None]
            due = min((at for at in dues if at is not None), default=None)
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            for node in self.nodes:
                node.tick(self.now)
                later = node.owner.next_deadline()
                assert later is None or later > self.now, f"still due at {self.now} after a tick"
        self.now = max(self.now, until)

    def take(self, end: int, actions: list[Action]) -> None:
        """Perform what a direct call on one of the pairs returned."""
        self.nodes[end].take(actions, self.now)

    def put(self, end: int, lane: Lane, frames: list[bytes]) -> None:
        """Put one record on a lane as `end` would."""
        connection = self.connections.get(lane)
        if connection is None or connection.state != "open":
            return
        if connection.drop_next[end]:
            connection.drop_next[end] -= 1
            return
        if connection.swallow[end]:
            return
        at = max(self.now + connection.latency[end], connection.arrives[end])
        connection.arrives[end] = at

        def arrive() -> None:
            if not connection.cut_backlog[end] and not connection.seen_closed[1 - end]:
                self.nodes[1 - end].deliver(lane, frames, self.now)

        self._at(at, arrive)

    def cut(self, lane: Lane) -> None:
        """The physical connection breaks; both ends see it, what was under way is gone."""
        connection = self.connections.get(lane)
        if connection is None or connection.state == "closed":
            return
        connection.state = "closed"
        connection.cut_backlog = [True, True]
        for end in (0, 1):
            self._at(self.now, lambda end=end: self._seen_closed(connection, end, "connection reset"))

    # -- performing

    def _at(self, at: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), call))

    def _perform(self, end: int, action: Action) -> None:
        match action:
            case Dial(lane=lane):
                self._dial(lane)
            case Send(lane=lane, command=command):
                self.carried.append((self.now, end, lane, command))
                self.put(end, lane, encode(command))
            case CloseLane():
                self._close(end, action)

    def _dial(self, lane: Lane) -> None:
        connection = self.connections[lane] = Connection(lane, self.latency)
        if lane in self.refused:
            self._at(self.now, lambda: self._seen_closed(connection, 0, "connection refused"))
        elif self.dialable[lane]:
            self._at(self.now + self.latency[0] + self.latency[1], lambda: self._open(connection))

    def _open(self, connection: Connection) -> None:
        if connection.state == "dialling":
            connection.state, connection.was_open = "open", True
            self.nodes[0].opened(connection.lane, self.now)

    def _close(self, end: int, action: CloseLane) -> None:
        connection = self.connections.get(action.lane)
        if connection is None or connection.seen_closed[end]:
            return
        if action.after is not None and not self.connections[action.after].seen_closed[end]:
            self._deferred.append((end, action))
            return
        connection.state = "closed"
        connection.cut_backlog[end] = connection.cut_backlog[end] or not action.linger
        at = max(self.now + connection.latency[end], connection.arrives[end]) if action.linger else self.now
        self._at(max(self.now, at), lambda: self._seen_closed(connection, end, "closed here"))
        if not connection.swallow[end]:
            far = max(self.now + connection.latency[end], connection.arrives[end])
            self._at(far, lambda: self._seen_closed(connection, 1 - end, "disconnected"))

    def _seen_closed(self, connection: Connection, end: int, detail: str) -> None:
        if connection.seen_closed[end]:
            return
        connection.state = "closed"
        connection.seen_closed[end] = True
        if end == 0 or connection.was_open:
            self.nodes[end].lost(connection.lane, self.now, detail)
        waiting = [(at, action) for at, action in self._deferred if at == end and action.after is connection.lane]
        for item in waiting:
            self._deferred.remove(item)
            self._close(*item)


def link(
    *,
    latency: tuple[float, float] = (0.0, 0.0),
    dialler: dict[str, Any] | None = None,
    acceptor: dict[str, Any] | None = None,
) -> Link:
    """Two nodes, `node-a` dials `node-b`; the options are `Node`'s."""
    left = Node("dialling", **{"local": admission("node-a"), "key": "b", **(dialler or {})})
    right = Node("accepting", **{"local": admission("node-b"), "key": "a", **(acceptor or {})})
    return Link(left, right, latency=latency)


def ready_link(**options: Any) -> Link:
    """Two nodes that are ready with each other."""
    wire = link(**options)
    wire.start()
    wire.run_until(wire.now + 4 * sum(wire.latency))
    assert all(node.pair.ready for node in wire.nodes)
    return wire


__all__ = [
    "APP",
    "COMPLETION",
    "LINK_COMMANDS",
    "PAIR_ID",
    "ROLES",
    "Connection",
    "Link",
    "Node",
    "NotReady",
    "Ready",
    "admission",
    "link",
    "object_client",
    "probed_node",
    "ready_link",
    "ready_node",
]
