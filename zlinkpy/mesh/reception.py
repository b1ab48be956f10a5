"""The door of a mesh node: what an accepted connection says first, and who may come in (wire.md §4, LV [D9]).

The first record must be a `hello`; anything else ends that one connection. A `hello` of a node that discovery has not
shown yet is held until the next complete list instead of being refused: two nodes that start together would otherwise
begin their life with a rejection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.link import DIAL_DEADLINE
from zlinkpy.mesh.peer_link import CLOSE_LINGER, LaneSink
from zlinkpy.telemetry import catalogue, get_logger
from zlinkpy.transport import Connection
from zlinkpy.wire import (
    Close,
    CloseReason,
    Hello,
    Lane,
    Reject,
    RejectReason,
    RouteMeshAdmission,
    Topology,
    decode,
    encode,
)

if TYPE_CHECKING:
    from zlinkpy.mesh.route_mesh import RouteMesh

log = get_logger("zlinkpy.mesh")


@frozen(eq=False)
class _Held:
    """A handshake that waits for discovery to show its node."""

    sink: LaneSink
    connection: Connection
    hello: Hello
    remote: RouteMeshAdmission
    deadline: float


class Reception:
    """Accepted connections that no link owns yet."""

    def __init__(self, mesh: RouteMesh) -> None:
        self._mesh = mesh
        self._held: list[_Held] = []

    def first_record(self, sink: LaneSink, connection: Connection, frames: list[bytes]) -> None:
        """Read the first record of an accepted connection and decide."""
        mesh = self._mesh
        try:
            if any(held.sink is sink for held in self._held):
                raise ProtocolError("a record before the hello was answered", field="prefix.command")
            hello = decode(frames, topology=Topology.ROUTE_MESH, lane=Lane.APPLICATION).command
            if not isinstance(hello, Hello) or not isinstance(hello.admission, RouteMeshAdmission):
                raise ProtocolError("the first record must be a hello", field="prefix.command")
        except ProtocolError as error:
            self.closed(sink)
            self._refuse(connection, error)
            return
        own = mesh.pair_link(hello.pair_id or b"")
        if own is not None and own.dialler and hello.admission.node_rid == mesh.rid:
            # A configured endpoint leads back to this node, under a name that does not look like its own.
            own.leads_home = True
        if mesh.closing:
            self._reject(connection, RejectReason.RUNTIME_NOT_SERVING)
        elif hello.lane is Lane.COMPLETION:
            link = mesh.pair_link(hello.pair_id or b"")
            if link is None or Lane.COMPLETION in link.lanes:
                self._reject(connection, RejectReason.INVALID_DESCRIPTOR)
            elif connection.peer_key != link.peer_key:
                # Somebody else's lane for a pair whose id he learnt.
                self._reject(connection, RejectReason.SECURITY_IDENTITY_MISMATCH)
            else:
                link.adopt(sink, Lane.COMPLETION, connection)
                link.perform(link.pair.receive(Lane.COMPLETION, hello, mesh.now()))
        elif mesh.is_unknown(hello.admission):
            held = _Held(sink, connection, hello, hello.admission, mesh.now() + DIAL_DEADLINE)
            self._held.append(held)
            mesh.core.timer.touch(held.deadline)
            if mesh.refresh_discovery is not None:
                mesh.refresh_discovery()
        elif own is not None:
            self._reject(connection, RejectReason.DUPLICATE_CONNECTION)
        else:
            mesh.begin_accepted(sink, connection, hello)

    def settle(self, now: float) -> None:
        """A new list is there, or time has passed: answer what can be answered."""
        held, self._held = self._held, []
        for item in held:
            if self._mesh.pair_link(item.hello.pair_id or b"") is not None:
                self._reject(item.connection, RejectReason.DUPLICATE_CONNECTION)
            elif not self._mesh.is_unknown(item.remote):
                self._mesh.begin_accepted(item.sink, item.connection, item.hello)
            elif now < item.deadline:
                self._held.append(item)
            elif self._mesh.is_listed(item.remote.node_rid):
                # The node is known, this run of it is not: the checks of the admission name the reason (LV-22).
                self._mesh.begin_accepted(item.sink, item.connection, item.hello)
            else:
                remote = item.remote
                self._mesh.refusals.tell(
                    f"node {remote.node_rid} at {remote.advertised_endpoint}",
                    RejectReason.INVALID_DESCRIPTOR,
                    "no complete list of nodes has shown it",
                )
                self._reject(item.connection, RejectReason.INVALID_DESCRIPTOR)

    def next_deadline(self) -> float | None:
        """When the oldest held handshake has waited long enough."""
        return min((held.deadline for held in self._held), default=None)

    def tick(self, now: float) -> None:
        """Refuse the handshakes that nobody vouched for in time."""
        if any(held.deadline <= now for held in self._held):
            self.settle(now)

    def closed(self, sink: LaneSink) -> None:
        """An accepted connection went away before any link owned it."""
        self._held = [held for held in self._held if held.sink is not sink]

    def close(self) -> None:
        """The node stops: let nobody wait at the door."""
        for held in self._held:
            held.connection.close()
        self._held.clear()

    def _refuse(self, connection: Connection, error: ProtocolError) -> None:
        self._mesh.refusals.tell_malformed(connection.endpoint, error)
        self._count("protocol_error")
        connection.post(encode(Close(CloseReason.PROTOCOL_ERROR, error.field or "body", error.problem[:256])))
        connection.close(linger=CLOSE_LINGER)

    def _reject(self, connection: Connection, reason: RejectReason) -> None:
        log.info("rejecting a connection: %s", reason.name.lower())
        self._count("rejected")
        connection.post(encode(Reject(reason)))
        connection.close(linger=CLOSE_LINGER)

    def _count(self, reason: str) -> None:
        mesh = self._mesh
        mesh.core.telemetry.counter(catalogue.PEER_REFUSALS, scope_kind="mesh", scope_name=mesh.name, reason=reason)
