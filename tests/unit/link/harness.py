"""Links under test: one against a scripted peer (`Node`), or two back to back over a wire that can misbehave (`Link`).

A link item of the contract holds for four roles (LV §0): a test of one takes `ROLES`. What the peer of a role says of
itself is `said(role)`.

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
    ServicePair,
)
from zlinkpy.wire import (
    REQUIRED_CAPABILITY,
    Admit,
    ClientAdmission,
    Close,
    Direction,
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
    ServerAdmission,
    Topology,
    Update,
    decode,
    encode,
)

PAIR_ID = b"\x01\x02\x03\x04\x05\x06\x07\x08"
MESH_ROLES = ("dialling", "accepting")
SERVICE_ROLES = ("client", "server")
ROLES = (*MESH_ROLES, *SERVICE_ROLES)
UPDATED_ROLES = (*MESH_ROLES, "client")
"""The roles whose peer has revisions: a ClientServer client has none."""
DIALLING_ROLES = ("dialling", "client")
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


def server_admission(
    rid: str = "node-n",
    *,
    generation: int = 7,
    revision: int = 1,
    security: str | None = None,
    channel: str = "orders",
    endpoint: str = "tcp://127.0.0.1:5501",
    state: RuntimeState = RuntimeState.SERVING,
    weight: int = 100,
    limit: int = 16_777_216,
) -> ServerAdmission:
    """What a ClientServer server says of itself, changed where the test says so."""
    return ServerAdmission(
        channel_name=channel,
        server_rid=rid,
        lifecycle_generation=generation,
        descriptor_revision=revision,
        weight=weight,
        runtime_state=state,
        security_identity=f"key-of-{rid}" if security is None else security,
        max_message_bytes=limit,
        advertised_endpoint=endpoint,
    )


def client_admission(
    rid: str = "node-n", *, security: str | None = None, channel: str = "orders", limit: int = 16_777_216
) -> ClientAdmission:
    """What a ClientServer client says of itself; `rid` only makes its key."""
    return ClientAdmission(
        channel_name=channel,
        security_identity=f"key-of-{rid}" if security is None else security,
        max_message_bytes=limit,
    )


def own(role: str, /, rid: str = "node-n", **changes: Any) -> Any:
    """What a node in `role` says of itself."""
    make = {"client": client_admission, "server": server_admission}.get(role, admission)
    return make(rid, **changes)


def said(role: str, /, rid: str = "node-p", **changes: Any) -> Any:
    """What the peer of a node in `role` says of itself."""
    return own({"client": "server", "server": "client"}.get(role, role), rid, **changes)


def lanes_of(role: str) -> tuple[Lane, ...]:
    return (APP,) if role in SERVICE_ROLES else (APP, COMPLETION)


class Node:
    """One link with the shell a mesh or a channel would put around it, logging what it does."""

    def __init__(
        self,
        role: str,
        *,
        local: Any = None,
        peer: Any = None,
        expected: Expectation | None = None,
        judge: Callable[[Any], RejectReason | None] = lambda remote: None,
        probe_ids: Callable[[], int] | None = None,
        flow: FlowState = FlowState.RUNNING,
        prepared: bool = True,
        pair_id: bytes = PAIR_ID,
        owner: LivenessOwner[str, Action] | None = None,
        key: str = "pair",
    ) -> None:
        self.role = role
        self.dials = role in DIALLING_ROLES
        self.lanes = lanes_of(role)
        self.pair_id = pair_id
        self.local = local if local is not None else own(role)
        self.peer = peer if peer is not None else said(role)
        self.expected = expected
        self.flow = flow
        options: dict[str, Any] = {
            "dialler": self.dials,
            "local": lambda: self.local,
            "expected": lambda: self.expected,
            "judge": judge,
            "probe_ids": probe_ids if probe_ids is not None else itertools.count(1).__next__,
            "flow": lambda: self.flow,
            "prepared": prepared,
        }
        self.pair: Any = ServicePair(**options) if role in SERVICE_ROLES else Pair(pair_id=pair_id, **options)
        self.key = key
        self.owner: LivenessOwner[str, Action] = owner if owner is not None else LivenessOwner()
        self.owner.register(key, self.pair)
        self.log: list[tuple[float, Action]] = []
        self.handled: list[object] = []
        self.read: list[object] = []
        """Every record that could be decoded, in the order in which it was read."""
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
            if self.role in SERVICE_ROLES:
                direction = Direction.TO_CLIENT if self.dials else Direction.TO_SERVER
                record = decode(frames, topology=Topology.CLIENT_SERVER, direction=direction)
            else:
                record = decode(frames, topology=Topology.ROUTE_MESH, lane=lane)
        except ProtocolError as error:
            return self.take(self.pair.violated(lane, error, now), now)
        self.read.append(record.command)
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

    def connect(self, now: float = 0.0) -> None:
        """As far as the first lane can carry bytes."""
        self.start(now)
        if self.dials:
            self.opened(APP, now)

    def admit_application(self, now: float = 0.0, peer: Any = None) -> list[Action]:
        self.connect(now)
        return self.receive(APP, self.repeated_handshake(APP, peer), now)

    def admit_completion(self, now: float = 0.0, peer: Any = None) -> list[Action]:
        if self.dials:
            self.opened(COMPLETION, now)
        return self.receive(COMPLETION, self.repeated_handshake(COMPLETION, peer), now)

    def admit(self, now: float = 0.0, last: float | None = None) -> list[Action]:
        """All lanes, the first one at `now`, the last one at `last`; the actions of the last one."""
        last = now if last is None else last
        if self.role in SERVICE_ROLES:
            return self.admit_application(last)
        self.admit_application(now)
        return self.admit_completion(last)

    def repeated_handshake(self, lane: Lane = APP, peer: Any = None) -> Any:
        """The record with which the peer of this role introduces itself, and which it may repeat."""
        kind = Admit if self.dials else Hello
        introduced = peer if peer is not None else self.peer
        return kind(introduced) if self.role in SERVICE_ROLES else kind(introduced, lane, self.pair_id)

    @property
    def evident(self) -> bool:
        """What the owner says of the peer, by its RID where it has one."""
        if self.role == "server":
            return self.owner.is_ready(self.key)
        return self.owner.evidence(self.peer.server_rid if self.role == "client" else self.peer.node_rid)

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
    node.admit(now)
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
    stalled: list[list[list[bytes]] | None] = attrs.field(factory=lambda: [None, None])
    """Per sending end: what waits in the queues because the other end does not read; None while it reads."""
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
        waiting = connection.stalled[end]
        if waiting is not None:
            waiting.append(frames)
            return
        at = max(self.now + connection.latency[end], connection.arrives[end])
        connection.arrives[end] = at

        def arrive() -> None:
            if not connection.cut_backlog[end] and not connection.seen_closed[1 - end]:
                self.nodes[1 - end].deliver(lane, frames, self.now)

        self._at(at, arrive)

    def stall(self, end: int, lane: Lane) -> None:
        """The other end stops reading what `end` sends: queues fill, nothing is lost."""
        self.connections[lane].stalled[end] = []

    def resume(self, end: int, lane: Lane) -> None:
        """The other end reads again, in the order of submission."""
        waiting, self.connections[lane].stalled[end] = self.connections[lane].stalled[end], None
        for frames in waiting or ():
            self.put(end, lane, frames)

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


def service_link(
    *,
    latency: tuple[float, float] = (0.0, 0.0),
    dialler: dict[str, Any] | None = None,
    acceptor: dict[str, Any] | None = None,
) -> Link:
    """A client and a server; the options are `Node`'s."""
    left = Node("client", **{"local": client_admission("node-a"), "key": "b", **(dialler or {})})
    right = Node("server", **{"local": server_admission("node-b"), "key": "a", **(acceptor or {})})
    return Link(left, right, latency=latency)


LINKS = {"RouteMesh": link, "ClientServer": service_link}


def ready_link(topology: str = "RouteMesh", **options: Any) -> Link:
    """Two nodes that are ready with each other."""
    wire = LINKS[topology](**options)
    wire.start()
    wire.run_until(wire.now + 4 * sum(wire.latency))
    assert all(node.pair.ready for node in wire.nodes)
    return wire


__all__ = [
    "APP",
    "COMPLETION",
    "DIALLING_ROLES",
    "LINKS",
    "LINK_COMMANDS",
    "MESH_ROLES",
    "PAIR_ID",
    "ROLES",
    "SERVICE_ROLES",
    "UPDATED_ROLES",
    "Connection",
    "Link",
    "Node",
    "NotReady",
    "Ready",
    "admission",
    "client_admission",
    "lanes_of",
    "link",
    "object_client",
    "own",
    "probed_node",
    "ready_link",
    "ready_node",
    "said",
    "server_admission",
    "service_link",
]
