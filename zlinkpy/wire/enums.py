"""The closed numbers of the wire (wire.md §2-§4, §7).

Every enum here is closed: a number that is not a member is a protocol error, never a "future value". Host states and
terminal results keep the numbers of the public API, so no second table translates between them.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Topology(IntEnum):
    """Which service a connection belongs to; fanout has its own record form and functions (`zlinkpy.wire.fanout`)."""

    ROUTE_MESH = 1
    CLIENT_SERVER = 2


class Lane(IntEnum):
    """One of the two connections of a RouteMesh pair (wire.md §8). ClientServer has one connection and no lanes."""

    APPLICATION = 1
    COMPLETION = 2


class Direction(IntEnum):
    """Which way a ClientServer record travels. RouteMesh records travel both ways."""

    TO_SERVER = 1
    TO_CLIENT = 2


class Domain(Enum):
    """Who handles a record: application records reach the job queue, infrastructure records never do."""

    APPLICATION = "A"
    INFRASTRUCTURE = "I"


class Kind(Enum):
    """What a record asks for. `BY_BODY`: an element of the body says whether it is one-way or a request (39)."""

    ONE_WAY = "1"
    REQUEST = "Q"
    REPLY = "R"
    BY_BODY = "1/Q"


class PayloadUse(Enum):
    """Whether raw payload frames follow: never, always, or when the body's last element is not nil."""

    NONE = "no"
    REQUIRED = "yes"
    OPTIONAL = "optional"


class RuntimeState(IntEnum):
    """State of a host as its admission and descriptors say it; the numbers are those of the public host state."""

    PREPARING = 0
    SERVING = 1
    RELOCATING = 2
    RELOCATED = 3
    DRAINING = 4
    STOPPED = 5
    ERROR = 6


class ObjectRole(IntEnum):
    """What a mesh node does with Spots and Actors."""

    NONE = 0
    CLIENT = 1
    SERVER = 2


class RejectReason(IntEnum):
    """Why an admission was refused (wire.md §4)."""

    PROTOCOL_VERSION_UNSUPPORTED = 1
    TOPOLOGY_MISMATCH = 2
    IDENTITY_MISMATCH = 3
    SECURITY_IDENTITY_MISMATCH = 4
    CHANNEL_MISMATCH = 5
    LIFECYCLE_GENERATION_STALE = 6
    DESCRIPTOR_REVISION_STALE = 7
    CAPABILITY_MISMATCH = 8
    RUNTIME_NOT_SERVING = 9
    DUPLICATE_CONNECTION = 10
    INVALID_DESCRIPTOR = 11
    RESOURCE_LIMIT = 12
    NOT_REQUIRED = 13


class CloseReason(IntEnum):
    """Why the sender of a `Close` ends the connection."""

    ORDERLY = 1
    DRAINING = 2
    REPLACED = 3
    PROTOCOL_ERROR = 4


class FlowState(IntEnum):
    """Absolute receive state carried by `ReceiveFlow`."""

    RUNNING = 1
    PAUSED = 2


class FlowOrigin(IntEnum):
    """What started the flow a payload belongs to."""

    INBOUND = 1
    TIMER = 2
    APPLICATION = 3
    LIFECYCLE = 4


class TerminalResult(IntEnum):
    """How a request ended (wire.md §7)."""

    OK = 0
    TIMED_OUT = 101
    NOT_FOUND = 102
    TERMINATED = 103
    PROTOCOL_ERROR = 104
    INTERNAL_ERROR = 105
    REJECTED = 106
    CONFLICT = 107
    BUSY = 108
    NOT_CONNECTED = 109
    INVALID_ARGUMENT = 110
    INVALID_STATE = 111
    NOT_SUPPORTED = 112
    BACKPRESSURED = 113


class FailureCode(IntEnum):
    """The finer reason of results 102 and 104-107; 23-32 are not valid on the wire."""

    NONE = 0
    ACTOR_ROUTE_NOT_FOUND = 1
    ACTOR_CREATE_FAILED = 2
    ACTOR_ALREADY_EXISTS = 3
    ACTOR_TYPE_MISMATCH = 4
    SPOT_CREATE_FAILED = 5
    SPOT_ROUTE_NOT_FOUND = 6
    SPOT_TYPE_MISMATCH = 7
    ACTOR_SESSION_NOT_BOUND = 8
    HANDLER_NOT_FOUND = 9
    ROUTE_HANDLER_NOT_FOUND = 10
    ACTOR_DISPATCH_HANDLER_NOT_FOUND = 11
    PAYLOAD_DECODE_FAILED = 12
    ROUTE_NOT_CONNECTED = 13
    REQUEST_TARGET_NOT_FOUND = 14
    REQUEST_REJECTED = 15
    REQUEST_PROTOCOL_ERROR = 16
    REQUEST_FAILED = 17
    WORKER_QUEUE_FULL = 18
    WORKER_TIMED_OUT = 19
    WORKER_FAILED = 20
    ACTOR_LOCATION_STALE = 21
    ACTOR_CREATE_REJECTED = 22
    SPOT_GENERATION_STALE = 33
    SPOT_MOVING = 34
    RELOCATION_DATA_LOST = 35


class Role(IntEnum):
    """Who sends a relocation record. A coordinator (3) decodes and is refused as a sender everywhere (wire.md §3)."""

    SOURCE = 1
    TARGET = 2
    COORDINATOR = 3


class ObjectKind(IntEnum):
    """What a relocation unit is; a PerActor shell counts as a user Spot."""

    ACTOR = 1
    USER_SPOT = 2
    INSTANCE_SPOT = 3


class MessageKind(IntEnum):
    """Whether an instanceSpot record is a send or a request."""

    SEND = 1
    REQUEST = 2


class FollowKind(IntEnum):
    """Which cached route a messageFollow drops."""

    ACTOR = 1
    SPOT = 2


class RelocationStep(IntEnum):
    """The two steps of a relocation prepare: check and reserve, then transfer."""

    CHECK = 0
    TRANSFER = 1


class RelocationFailureCode(IntEnum):
    """Why a target gave a relocation back."""

    REJECTED = 1
    CRC = 2
    MANIFEST_CONFLICT = 3
    STATE_INCOMPATIBLE = 4
    DEADLINE = 5
    DATA_LOST = 6
    STORE = 7
    SHUTTING_DOWN = 8


class SealResult(IntEnum):
    """What became of a session seal."""

    SEALED = 0
    NOT_BOUND = 1
    STALE = 2
    BUSY = 3


class RelayAckStatus(IntEnum):
    """How a relayed reply was taken."""

    TERMINAL_RECEIVED = 1
    ALREADY_TERMINAL = 2


class RelayCause(IntEnum):
    """Why a reply takes the relay instead of the direct way."""

    READY_BARRIER = 1
    ACTIVATION_FAILURE = 2


class FrozenKind(IntEnum):
    """Kinds of work that travel inside a relocation; the other numbers of the schema are refused."""

    SPOT_SEND = 5
    SPOT_REQUEST = 6
    MULTICAST = 7
    ACTOR_SEND = 9
    ACTOR_REQUEST = 10
    INSTANCE_SPOT = 14


class CreateOutcome(IntEnum):
    """What a creation did."""

    EXISTING = 1
    CREATED = 2
    REJECTED = 3
