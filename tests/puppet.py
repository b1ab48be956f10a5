"""A puppet: a mesh peer that does exactly what a test says, right or wrong, and keeps what it was told.

It speaks the records of `zlinkpy.wire` and nothing else of the package: no link machine, no liveness, no peer book. It
stands on a *wire*, which is either a transport of a `MemoryNetwork` (virtual time) or `RawSockets`, plain pyzmq ROUTER
sockets (real bytes). Left alone it is a well-behaved peer: it admits, opens its second lane, answers probes.

Records come in on the sink callbacks of the wire and are answered there at once; tests wait with `until`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import Any

import trio
import zmq
from attrs import define, evolve, field
from zmq.utils.monitor import recv_monitor_message

from zlinkpy.errors import ProtocolError
from zlinkpy.wire import (
    REQUIRED_CAPABILITY,
    Admit,
    Close,
    Direction,
    Ext,
    Hello,
    Lane,
    LivenessAck,
    LivenessProbe,
    ObjectRole,
    Record,
    Reject,
    RejectReason,
    RouteMeshAdmission,
    RuntimeState,
    Topology,
    Update,
    decode,
    encode,
)

APP, COMPLETION = Lane.APPLICATION, Lane.COMPLETION
MESH = "play"
LOOK = 0.01
_numbers = count(1)


async def until(condition: Callable[[], Any], seconds: float = 5.0, *, step: float = LOOK) -> None:
    """Look every `step` seconds; more than `seconds` is a failure."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(step)


def admission(
    rid: str,
    endpoint: str,
    *,
    mesh: str = MESH,
    generation: int = 7,
    revision: int = 1,
    security: str = "anonymous",
    channels: dict[str, int] | None = None,
    state: RuntimeState = RuntimeState.SERVING,
    role: ObjectRole = ObjectRole.NONE,
    capabilities: tuple[str, ...] = (REQUIRED_CAPABILITY,),
) -> RouteMeshAdmission:
    """What a puppet says about itself."""
    return RouteMeshAdmission(
        mesh_name=mesh,
        node_rid=rid,
        security_identity=security,
        lifecycle_generation=generation,
        descriptor_revision=revision,
        advertised_endpoint=endpoint,
        channels=tuple(sorted((channels or {}).items())),
        ext=Ext(
            runtime_state=state,
            application_version=0,
            maintenance_wave=None,
            protocol_capabilities=capabilities,
            object_role=role,
            placement_weight=100,
        ),
    )


class PuppetLane:
    """One physical connection of a puppet; the sink of its wire."""

    topology = Topology.ROUTE_MESH
    direction: Direction | None = None

    def __init__(self, puppet: Puppet, lane: Lane, pair: PuppetPair | None) -> None:
        self.puppet = puppet
        self.lane = lane
        self.pair = pair
        self.connection: Any = None
        self.is_open = False
        self.opened_at: float | None = None
        self.closed_at: float | None = None
        self.frames: list[tuple[float, list[bytes]]] = []
        self.records: list[tuple[float, Record]] = []
        self.garbled: list[ProtocolError] = []

    def opened(self, connection: Any) -> None:
        self.connection = connection
        self.is_open = True
        self.opened_at = trio.current_time()
        self.puppet.lane_opened(self)

    def received(self, connection: Any, frames: list[bytes]) -> None:
        now = trio.current_time()
        self.frames.append((now, [bytes(frame) for frame in frames]))
        try:
            record = decode(frames, topology=self.topology, lane=self.lane, direction=self.direction)
        except ProtocolError as error:
            self.garbled.append(error)
            return
        self.records.append((now, record))
        self.puppet.record(self, record)

    def closed(self, connection: Any, cause: str) -> None:
        self.is_open = False
        self.closed_at = trio.current_time()
        self.puppet.lane_closed(self)

    def send(self, command: Any, *parts: bytes) -> None:
        """Send one well-formed record."""
        self.send_raw(encode(command, parts=parts))

    def send_raw(self, frames: Sequence[bytes]) -> None:
        """Send whatever `frames` are. A record the wire does not take is a failure of the test."""
        assert self.connection.send(list(frames)), "the wire is full"

    def close(self) -> None:
        """Hang up without a word."""
        self.connection.close()

    def commands(self, kind: type) -> list[Any]:
        """The records of one kind, in order."""
        return [record.command for _, record in self.records if type(record.command) is kind]

    def times(self, kind: type) -> list[float]:
        """When the records of one kind came."""
        return [at for at, record in self.records if type(record.command) is kind]


@define(eq=False)
class PuppetPair:
    """One peer connection as the puppet sees it."""

    puppet: Puppet
    pair_id: bytes
    dialled: bool
    lanes: dict[Lane, PuppetLane] = field(factory=dict)
    admitted: set[Lane] = field(factory=set)
    ready_at: float | None = None
    """When both lanes were admitted, as far as the puppet knows."""
    remote: RouteMeshAdmission | None = None
    reject: RejectReason | None = None

    @property
    def app(self) -> PuppetLane:
        return self.lanes[APP]

    @property
    def completion(self) -> PuppetLane:
        return self.lanes[COMPLETION]

    @property
    def is_up(self) -> bool:
        """Both lanes admitted and open."""
        return self.ready_at is not None and all(lane.is_open for lane in self.lanes.values())

    @property
    def is_gone(self) -> bool:
        """Every lane there was has been seen closed."""
        return bool(self.lanes) and all(lane.closed_at is not None for lane in self.lanes.values())

    @property
    def probes(self) -> list[int]:
        return [probe.probe_id for probe in self.app.commands(LivenessProbe)]

    @property
    def probe_times(self) -> list[float]:
        return self.app.times(LivenessProbe)

    @property
    def farewell(self) -> Close | None:
        """The `close` record the node said, if any."""
        closes = self.app.commands(Close)
        return closes[-1] if closes else None

    def update(self, **changes: Any) -> None:
        """Announce the next revision of the puppet's admission, with `changes`; keys of `Ext` go there."""
        own = self.puppet.admission
        ext = {name: changes.pop(name) for name in list(changes) if hasattr(own.ext, name)}
        revision = changes.pop("descriptor_revision", own.descriptor_revision + 1)
        self.puppet.admission = evolve(own, descriptor_revision=revision, ext=evolve(own.ext, **ext), **changes)
        self.app.send(Update(self.puppet.admission))

    def say_goodbye(self, close: Close) -> None:
        """Send `close`; the node hangs up."""
        self.app.send(close)

    def hang_up(self) -> None:
        """Close both lanes without a word, as a killed process does."""
        for lane in self.lanes.values():
            lane.close()


class Puppet:
    """One scripted node.

    Attributes:
        admits: answer a `hello` with `admit`.
        opens_completion: as a dialler, dial the second lane after the first was admitted.
        answers_probes: acknowledge every probe at once.
        hears: called with every record before anything else; returning True means: handled, do nothing.
    """

    lane_type = PuppetLane
    pair_type = PuppetPair
    serves = True
    """False for a client of a ClientServer channel."""

    def __init__(self, wire: Any, rid: str, *, endpoint: str = "", **admission_fields: Any) -> None:
        self.wire = wire
        self.rid = rid
        self.admission: Any = admission(rid, endpoint or f"tcp://10.9.9.9:{4000 + next(_numbers)}", **admission_fields)
        self.admits = True
        self.opens_completion = True
        self.answers_probes = True
        self.hears: Callable[[PuppetLane, Record], bool] = lambda lane, record: False
        self.lanes: list[PuppetLane] = []
        """Every connection there was, in the order of their opening."""
        self.pairs: list[PuppetPair] = []
        self.listener: Any = None

    @property
    def endpoint(self) -> str:
        endpoint: str = self.admission.advertised_endpoint
        return endpoint

    @property
    def pair(self) -> PuppetPair:
        """The newest pair."""
        return self.pairs[-1]

    async def listen(self, endpoint: str = "tcp://127.0.0.1:0") -> str:
        """Bind, and advertise what was bound."""
        self.listener = await self.wire.listen(endpoint, self.listener_sink)
        self.admission = evolve(self.admission, advertised_endpoint=self.listener.endpoint)
        return str(self.listener.endpoint)

    def listener_sink(self, connection: Any) -> PuppetLane:
        """The sink of an accepted connection."""
        return self.lane_type(self, APP, None)

    def dial(self, endpoint: str, *, pair_id: bytes | None = None, silent: bool = False) -> PuppetPair:
        """Dial the application lane and say hello (unless `silent`); the rest follows by itself."""
        pair = self.pair_type(self, pair_id or next(_numbers).to_bytes(8, "big"), dialled=True)
        self.pairs.append(pair)
        self._open(pair, APP, endpoint, silent=silent)
        return pair

    def dial_completion(self, pair: PuppetPair, endpoint: str, *, silent: bool = False) -> PuppetLane:
        """Dial a completion lane for `pair`."""
        return self._open(pair, COMPLETION, endpoint, silent=silent)

    async def connect(self, endpoint: str) -> PuppetPair:
        """Dial and wait until both lanes are admitted."""
        pair = self.dial(endpoint)
        await until(lambda: pair.is_up)
        return pair

    def _open(self, pair: PuppetPair, lane: Lane, endpoint: str, *, silent: bool) -> PuppetLane:
        sink = self.lane_type(self, lane, pair)
        sink.silent = silent  # type: ignore[attr-defined]
        sink.target = endpoint  # type: ignore[attr-defined]
        pair.lanes[lane] = sink
        sink.connection = self.wire.dial(endpoint, sink)
        return sink

    # -- what the lanes report

    def lane_opened(self, lane: PuppetLane) -> None:
        self.lanes.append(lane)
        if lane.pair is not None and not getattr(lane, "silent", False):
            lane.send(Hello(self.admission, lane.lane, lane.pair.pair_id))

    def lane_closed(self, lane: PuppetLane) -> None:
        """For subclasses and tests; a lost lane is not answered by anything."""

    def record(self, lane: PuppetLane, record: Record) -> None:
        """Answer a record the way a well-behaved peer does, unless `hears` took it."""
        command = record.command
        if self.hears(lane, record):
            return
        match command:
            case LivenessProbe(probe_id=probe_id) if self.answers_probes:
                lane.send(LivenessAck(probe_id))
            case Hello() if self.admits:
                self._admit(lane, command)
            case Admit(admission=remote):
                self._admitted(lane, remote)
                pair = lane.pair
                assert pair is not None
                if lane.lane is APP and self.opens_completion and COMPLETION not in pair.lanes:
                    self._open(pair, COMPLETION, lane.target, silent=False)  # type: ignore[attr-defined]
            case Reject(reason=reason):
                assert lane.pair is not None
                lane.pair.reject = reason
            case Close() if lane.is_open:
                lane.close()

    def _admit(self, lane: PuppetLane, hello: Hello) -> None:
        assert hello.pair_id is not None
        assert hello.lane is not None
        pair = next((each for each in self.pairs if each.pair_id == hello.pair_id), None)
        if pair is None:
            pair = PuppetPair(self, hello.pair_id, dialled=False)
            self.pairs.append(pair)
        lane.lane, lane.pair = hello.lane, pair
        pair.lanes[hello.lane] = lane
        lane.send(Admit(self.admission, hello.lane, hello.pair_id))
        self._admitted(lane, hello.admission)

    def _admitted(self, lane: PuppetLane, remote: Any) -> None:
        pair = lane.pair
        assert pair is not None
        pair.admitted.add(lane.lane)
        if lane.lane is APP:
            pair.remote = remote
        if len(pair.admitted) == len(Lane) and pair.ready_at is None:
            pair.ready_at = trio.current_time()


# -- the real wire


class _RawConnection:
    """One connection of `RawSockets`: a dialled ROUTER of its own, or one peer of a listening ROUTER."""

    def __init__(self, socket: zmq.Socket[bytes], routing_id: bytes, sink: Any, monitor: zmq.Socket[bytes] | None):
        self._socket = socket
        self.routing_id = routing_id
        self.sink = sink
        self.monitor = monitor
        self.open = monitor is None
        self.done = False

    def send(self, frames: Sequence[bytes]) -> bool:
        self._socket.send_multipart([self.routing_id, *frames], zmq.NOBLOCK)
        return True

    def close(self) -> None:
        """Close the dialled socket; an accepted connection cannot be closed alone from here."""
        if self.monitor is not None and not self.done:
            self.done = True
            self._socket.disable_monitor()
            self.monitor.close(0)
            self._socket.close(200)
            self.sink.closed(self, "closed here")

    def drain(self) -> None:
        """Report what happened since the last look."""
        while self.monitor is not None and not self.done and self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.open = True
                self.sink.opened(self)
            elif event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
                self._receive()
                self.close()
        if not self.done:
            self._receive()

    def _receive(self) -> None:
        while not self._socket.closed and self._socket.poll(0):
            _, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            self.sink.received(self, frames)


class _RawListener:
    def __init__(self, socket: zmq.Socket[bytes], accept: Callable[[Any], Any]) -> None:
        self._socket = socket
        self._accept = accept
        self.endpoint = socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.connections: dict[bytes, _RawConnection] = {}
        self.done = False

    def drain(self) -> None:
        while self._socket.poll(0):
            routing_id, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            connection = self.connections.get(routing_id)
            if connection is None:
                connection = self.connections[routing_id] = _RawConnection(self._socket, routing_id, None, None)
                connection.sink = self._accept(connection)
                connection.sink.opened(connection)
            connection.sink.received(connection, frames)

    def close(self) -> None:
        self.done = True
        self._socket.close(0)


class RawSockets:
    """A wire of plain pyzmq sockets; ``async with RawSockets() as wire``."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connections: list[_RawConnection] = []
        self._listeners: list[_RawListener] = []
        self._nursery_manager = trio.open_nursery()

    async def __aenter__(self) -> RawSockets:
        nursery = await self._nursery_manager.__aenter__()
        nursery.start_soon(self._run)
        self._scope = nursery.cancel_scope
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.cancel()
        try:
            await self._nursery_manager.__aexit__(kind, error, trace)
        finally:
            for connection in self._connections:
                connection.close()
            for listener in self._listeners:
                listener.close()
            self._context.destroy(linger=0)

    async def listen(self, endpoint: str, accept: Callable[[Any], Any]) -> _RawListener:
        await trio.lowlevel.checkpoint()
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint.replace(":0", ":*") if endpoint.endswith(":0") else endpoint)
        self._listeners.append(listener := _RawListener(socket, accept))
        return listener

    def dial(self, endpoint: str, sink: Any) -> _RawConnection:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_CLOSED
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        alias = b"puppet-%d" % next(_numbers)
        socket.setsockopt(zmq.CONNECT_ROUTING_ID, alias)
        socket.connect(endpoint)
        self._connections.append(connection := _RawConnection(socket, alias, sink, monitor))
        return connection

    async def _run(self) -> None:
        while True:
            for each in [*self._listeners, *self._connections]:
                if not getattr(each, "done", False):
                    each.drain()
            await trio.sleep(LOOK)


@contextmanager
def hearing(puppet: Puppet, hears: Callable[[PuppetLane, Record], bool]) -> Iterator[None]:
    """For one block, let `hears` see every record first."""
    before, puppet.hears = puppet.hears, hears
    try:
        yield
    finally:
        puppet.hears = before
