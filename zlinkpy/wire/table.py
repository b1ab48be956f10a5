"""The one table of all commands (wire.md §2, §8). Codec, checks, reference page and vectors derive from it.

Adding a command is a class with its layout and a row here. What a row does not say is read off the class: the body,
whether a payload follows, how large frame 0 can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from zlinkpy.wire import calls, control, objects, relocation
from zlinkpy.wire.admission import ClientAdmission, RouteMeshAdmission, ServerAdmission
from zlinkpy.wire.composite import Opt, Struct, struct_of
from zlinkpy.wire.enums import Direction, Domain, Kind, Lane, PayloadUse, Topology
from zlinkpy.wire.limits import ADMISSION_MAX, JOIN_PAYLOAD_MAX, MAGIC, PREFIX_SIZE, WIRE_MAJOR
from zlinkpy.wire.schema import Bounds, WireType

_SLACK = 64
"""Room for what stands beside an admission in frame 0: prefix, array headers, lane and pair id in their longest
forms.
"""


@frozen
class CommandSpec:
    """One row: everything the project knows about a command.

    Attributes:
        id: number in the prefix.
        name: camelCase, the same in every language.
        cls: its record class.
        answers: id of the request a reply belongs to; 0 for the general reply and for what is no reply.
        lanes: RouteMesh lanes it may travel on.
        directions: ClientServer directions; empty where the command does not exist there.
        metadata: whether flag 0x01 is allowed.
        bodies: layout per topology.
        admission: its first element is an admission.
        payload_limit: bytes of all payload parts together; None for no limit of its own.
    """

    id: int
    name: str
    cls: type[Any]
    domain: Domain
    kind: Kind
    answers: int
    lanes: frozenset[Lane]
    directions: frozenset[Direction]
    metadata: bool
    bodies: Mapping[Topology, Struct] = field(repr=False)
    admission: bool = False
    payload_limit: int | None = None

    @property
    def topologies(self) -> frozenset[Topology]:
        return frozenset(self.bodies)

    @property
    def payload(self) -> PayloadUse:
        """Whether raw payload frames follow the body (and the metadata)."""
        name, wire_type = self.bodies[Topology.ROUTE_MESH].fields[-1]
        if name != "payload":
            return PayloadUse.NONE
        return PayloadUse.OPTIONAL if isinstance(wire_type, Opt) else PayloadUse.REQUIRED

    def bounds(self, topology: Topology) -> Bounds:
        """Bounds of frame 0; `size` None only for relocationData, which carries payloads in its body."""
        body = self.bodies[topology].bounds
        if self.admission:
            return evolve(body, size=ADMISSION_MAX + _SLACK)
        return body if body.size is None else evolve(body, size=PREFIX_SIZE + body.size)


_APPLICATION_LANE = frozenset({Lane.APPLICATION})
_COMPLETION_LANE = frozenset({Lane.COMPLETION})
_BOTH_LANES = frozenset(Lane)
_RM_ONLY: frozenset[Direction] = frozenset()
_TO_SERVER = frozenset({Direction.TO_SERVER})
_TO_CLIENT = frozenset({Direction.TO_CLIENT})
_EITHER_WAY = frozenset(Direction)

_A, _I = Domain.APPLICATION, Domain.INFRASTRUCTURE
_ONE, _ASK, _ANSWER = Kind.ONE_WAY, Kind.REQUEST, Kind.REPLY


def _row(
    number: int,
    cls: type[Any],
    domain: Domain,
    kind: Kind,
    *,
    answers: int = 0,
    lanes: frozenset[Lane] = _APPLICATION_LANE,
    cs: frozenset[Direction] = _RM_ONLY,
    metadata: bool = False,
    admission: type[Any] | None = None,
    payload_limit: int | None = None,
) -> CommandSpec:
    """`admission`: the ClientServer class in the admission element, where the command has one."""
    name = cls.__name__[0].lower() + cls.__name__[1:]
    bodies: dict[Topology, Struct] = {Topology.ROUTE_MESH: struct_of(cls)}
    if admission is not None:
        # Lane and pair id exist on RouteMesh only, where they are not optional.
        names = [each for each, _ in bodies[Topology.ROUTE_MESH].fields]
        mesh: dict[str, WireType | None] = {"admission": struct_of(RouteMeshAdmission)}
        mesh |= {each: t.inner for each, t in bodies[Topology.ROUTE_MESH].fields if isinstance(t, Opt)}
        single: dict[str, WireType | None] = dict.fromkeys(names)
        bodies = {
            Topology.ROUTE_MESH: Struct(cls, mesh),
            Topology.CLIENT_SERVER: Struct(cls, single | {"admission": struct_of(admission)}),
        }
    elif cs:
        bodies[Topology.CLIENT_SERVER] = struct_of(cls)
    return CommandSpec(
        number,
        name,
        cls,
        domain,
        kind,
        answers,
        lanes,
        cs,
        metadata,
        bodies,
        admission=admission is not None,
        payload_limit=payload_limit,
    )


COMMANDS: Mapping[int, CommandSpec] = {
    spec.id: spec
    for spec in (
        _row(1, control.Hello, _I, _ASK, lanes=_BOTH_LANES, cs=_TO_SERVER, admission=ClientAdmission),
        _row(2, control.Admit, _I, _ANSWER, answers=1, lanes=_BOTH_LANES, cs=_TO_CLIENT, admission=ServerAdmission),
        _row(3, control.Reject, _I, _ANSWER, answers=1, lanes=_BOTH_LANES, cs=_TO_CLIENT),
        _row(4, control.Update, _I, _ONE, cs=_TO_CLIENT, admission=ServerAdmission),
        _row(5, control.LivenessProbe, _I, _ONE, cs=_EITHER_WAY),
        _row(6, control.LivenessAck, _I, _ONE, cs=_EITHER_WAY),
        _row(16, calls.NodeSend, _A, _ONE, metadata=True),
        _row(17, calls.NodeRequest, _A, _ASK, metadata=True),
        _row(18, calls.ChannelSend, _A, _ONE, cs=_TO_SERVER, metadata=True),
        _row(19, calls.ChannelRequest, _A, _ASK, cs=_TO_SERVER, metadata=True),
        _row(20, calls.Reply, _I, _ANSWER, lanes=_COMPLETION_LANE, cs=_TO_CLIENT),
        _row(21, calls.SpotSend, _A, _ONE, metadata=True),
        _row(22, calls.SpotRequest, _A, _ASK, metadata=True),
        _row(23, calls.LogicalMulticast, _A, _ONE, metadata=True),
        _row(24, calls.ActorSend, _A, _ONE, metadata=True),
        _row(25, calls.ActorRequest, _A, _ASK, metadata=True),
        _row(26, objects.ActorLookup, _I, _ASK),
        _row(27, objects.ActorDestroy, _I, _ASK),
        _row(28, objects.ActorJoin, _I, _ASK, payload_limit=JOIN_PAYLOAD_MAX),
        _row(29, objects.ActorLeft, _I, _ONE),
        _row(30, relocation.RelocationReady, _I, _ANSWER, answers=40, lanes=_COMPLETION_LANE),
        _row(31, relocation.RelocationData, _I, _ONE),
        _row(33, calls.ReplyRelay, _I, _ONE, lanes=_COMPLETION_LANE),
        _row(34, relocation.RelocationCutover, _I, _ONE),
        _row(36, calls.BoundSessionSend, _A, _ONE),
        _row(37, objects.ActorJoined, _I, _ONE),
        _row(38, objects.BoundSessionBind, _I, _ASK),
        _row(39, calls.InstanceSpot, _A, Kind.BY_BODY, metadata=True),
        _row(40, relocation.RelocationPrepare, _I, _ASK),
        _row(42, relocation.SessionRelocationSeal, _I, _ASK),
        _row(43, relocation.SessionRelocationSealed, _I, _ANSWER, answers=42, lanes=_COMPLETION_LANE),
        _row(44, relocation.SessionRelocationRoute, _I, _ONE),
        _row(46, calls.ReplyRelayAck, _I, _ONE, lanes=_COMPLETION_LANE),
        _row(47, objects.UserSpotCreate, _I, _ASK),
        _row(48, objects.UserSpotClose, _I, _ASK),
        _row(49, objects.ActorCreate, _I, _ASK),
        _row(50, objects.MessageFollow, _I, _ONE),
        _row(51, objects.BoundSessionReplaced, _I, _ONE),
        _row(52, relocation.RelocationState, _I, _ONE),
        _row(53, relocation.RelocationFailed, _I, _ANSWER, answers=40, lanes=_COMPLETION_LANE),
        _row(54, control.ReceiveFlow, _I, _ONE, cs=_EITHER_WAY),
        _row(55, control.Close, _I, _ONE, cs=_EITHER_WAY),
    )
}
"""id -> row. Numbers without a row are reserved: neither sent nor accepted."""

_BY_CLASS: dict[type[Any], CommandSpec] = {spec.cls: spec for spec in COMMANDS.values()}


def prefix_of(command_id: int, flags: int) -> bytes:
    """The first five bytes of frame 0."""
    return MAGIC + bytes((WIRE_MAJOR, command_id, flags))


def spec_of(command: object) -> CommandSpec:
    """The row of a command, given as a number, a class or a record. Raises ValueError for anything else."""
    spec = COMMANDS.get(command) if isinstance(command, int) else None
    spec = spec or _BY_CLASS.get(command if isinstance(command, type) else type(command))
    if spec is None:
        raise ValueError(f"{command!r} is no command of the service wire")
    return spec


__all__ = ["COMMANDS", "CommandSpec", "prefix_of", "spec_of"]
