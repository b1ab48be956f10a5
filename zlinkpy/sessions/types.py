"""The values of the session router: requests, results, leases, records, entries, signals, status, settings.

All are frozen. Durations are seconds (float); instants (`…_at`) are whole milliseconds, on the clock of the store that
wrote them unless said otherwise, and are compared with instants of the same store only. Mappings are copied when a
value is made and cannot be assigned to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from attrs import Attribute, Factory, evolve, field, fields, frozen

from zlinkpy.errors import ConfigurationError

PART_TYPES: Final = frozenset({"text", "image", "audio", "video", "document"})
"""What a `Part` can be. A newer node may know more: a reader then falls back to the text (SR-074)."""

COLLECT_LIMIT: Final = 1024
"""Messages in one batch; what is left stays for the next collect (SR-078)."""

DELIVERY_MEMORY: Final = 600.0
"""Seconds for which an inbox remembers a delivery id (SR-424)."""

BATCH_MEMORY: Final = 300.0
"""Seconds for which an inbox can repeat a batch (SR-426)."""

FENCE_MEMORY: Final = 7 * 86_400.0
"""Seconds for which a lease store remembers the last token of a session nobody holds."""

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


def frozen_mapping(value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A read-only copy; None and nothing are the same."""
    return MappingProxyType(dict(value)) if value else _EMPTY


def _tuple(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(values)


_NESTING: Final = 32


def plain_data(value: object, path: str, depth: int = 0) -> None:
    """Check that `value` survives being sent: str, bool, int, float, bytes, None, lists and maps with str keys.

    Raises:
        ValueError: Anything else, integers beyond 64 bits, text that is no Unicode, 32 levels; the text has the path.
    """
    match value:
        case None | bool() | float() | bytes():
            return
        case int() if -(2**63) <= value < 2**64:
            return
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{path} holds half a surrogate pair") from None
            return
        case Mapping() | list() | tuple() if depth < _NESTING:
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, part in items:
                if isinstance(value, Mapping) and not isinstance(key, str):
                    raise ValueError(f"{path} has the key {key!r}, which is not a str")
                plain_data(part, f"{path}[{key!r}]", depth + 1)
            return
        case _:
            raise ValueError(f"{path} cannot be sent to another node: {type(value).__name__}")


class Priority(IntEnum):
    """Order of queued inputs; NOW may be offered to the running turn (SR-184)."""

    NOW = 0
    NEXT = 1
    LATER = 2


class DispositionKind(Enum):
    """Which node runs a submitted turn."""

    EXECUTED_LOCALLY = "executed_locally"
    FORWARDED = "forwarded"


class DeploymentMode(Enum):
    """SINGLE_NODE fills absent stores with in-memory ones; DISTRIBUTED refuses to start without all of them."""

    SINGLE_NODE = "single_node"
    DISTRIBUTED = "distributed"


class InterruptReason(Enum):
    """Why a turn is interrupted. An unknown name counts as USER."""

    USER = "USER"
    SESSION_RELEASED = "SESSION_RELEASED"
    SYSTEM_SHUTDOWN = "SYSTEM_SHUTDOWN"
    LEASE_LOST = "LEASE_LOST"
    HOLDER_LOST = "HOLDER_LOST"

    @classmethod
    def parse(cls, name: object) -> InterruptReason:
        """The reason called `name`; USER for anything this build does not know."""
        return cls.__members__.get(name, cls.USER) if isinstance(name, str) else cls.USER


class SignalKind(Enum):
    """What a signal says. EVENT and STATUS travel on the events channel, the others on the control channel."""

    INTERRUPT = "INTERRUPT"
    EVICT = "EVICT"
    YIELD = "YIELD"
    MESSAGE_ENQUEUED = "MESSAGE_ENQUEUED"
    TURN_RESULT = "TURN_RESULT"
    EVENT = "EVENT"
    STATUS = "STATUS"

    @property
    def is_control(self) -> bool:
        """True for the kinds of the control channel."""
        return self not in (SignalKind.EVENT, SignalKind.STATUS)


class FailureCode(Enum):
    """Why a turn has no result, as announced to those who wait for it. An unknown name counts as FAILED."""

    FAILED = "FAILED"
    REJECTED = "REJECTED"
    HOLDER_LOST = "HOLDER_LOST"
    NOT_HOLDER = "NOT_HOLDER"
    UNREADABLE = "UNREADABLE"
    LEASE_LOST = "LEASE_LOST"


class IdempotencyStatus(Enum):
    """IN_FLIGHT: reserved or running. DONE: the result is kept."""

    IN_FLIGHT = "I"
    DONE = "D"


class Write(Enum):
    """Answer of a fenced write: done, no record there (nothing changed), or a newer holder exists (nothing changed)."""

    OK = "ok"
    ABSENT = "absent"
    FENCED = "fenced"


class MarkDone(Enum):
    """Answer of `IdempotencyStore.mark_done` (SR-402)."""

    APPLIED = "applied"
    REFUSED = "refused"
    ABSENT = "absent"


class StatusSource(Enum):
    """Where a `ClusterSessionStatus` comes from (SR-365)."""

    LOCAL_HOLDER = "local_holder"
    REMOTE_PROJECTION = "remote_projection"
    UNKNOWN = "unknown"


@frozen
class Principal:
    """On whose behalf a turn runs. Carried, never judged (SR-025)."""

    type: str
    id: str
    display_name: str | None = None


@frozen
class Part:
    """One attachment of an input: what it is (`PART_TYPES`), its media type, its bytes (UTF-8 for ``text``)."""

    type: str
    media_type: str
    data: bytes = field(repr=False)

    def __attrs_post_init__(self) -> None:
        if self.type not in PART_TYPES:
            raise ValueError(f"a part is one of {', '.join(sorted(PART_TYPES))}, not {self.type!r}")


@frozen
class TurnInput:
    """What a turn is asked: text, and attachments in order."""

    text: str
    parts: tuple[Part, ...] = field(default=(), converter=_tuple)

    @property
    def rendering(self) -> str:
        """The input as text alone, for readers that cannot take the parts (SR-073)."""
        notes = [
            part.data.decode("utf-8", "replace") if part.type == "text" else f"[{part.type}: {part.media_type}]"
            for part in self.parts
        ]
        return "\n".join([self.text, *notes] if self.text else notes)


TextInput: TypeAlias = TurnInput
"""`TextInput(text)` is a `TurnInput` without parts (SR-023)."""


def as_input(value: TurnInput | str) -> TurnInput:
    """`value`, with a str taken as text."""
    return TurnInput(value) if isinstance(value, str) else value


_NO_INPUT: Final = TurnInput("")


def handler_id(handler_ref: str, variant: str | None = None) -> str:
    """``handler:<ref>`` or ``handler:<ref>:<variant>``: the key of a handler in the registry (SR-022).

    Raises:
        ValueError: A blank ref or variant, or one with a colon.
    """
    for what, part in (("handler_ref", handler_ref), ("handler_variant", variant)):
        if part is not None and (not part.strip() or ":" in part):
            raise ValueError(f"{what} is not blank and has no ':', this is {part!r}")
    return f"handler:{handler_ref}" if variant is None else f"handler:{handler_ref}:{variant}"


@frozen
class SubmitRequest:
    """One input for one session. The first three are required.

    `options`, `open_attributes` and `handler_variant` count when the node opens a handle and are never sent to another
    node; `submit_options` (plain data: str, bool, int, float, bytes, None, lists, maps with str keys) goes with the
    turn.

    Raises:
        ValueError: A required field is missing, or the handler variant is blank or has a colon (SR-020, SR-022).
    """

    session_id: str = ""
    handler_ref: str = ""
    input: TurnInput = field(default=_NO_INPUT, converter=as_input)
    handler_variant: str | None = None
    options: Mapping[str, Any] = field(default=_EMPTY, converter=frozen_mapping)
    submit_options: Mapping[str, Any] = field(default=_EMPTY, converter=frozen_mapping)
    open_attributes: Mapping[str, Any] = field(default=_EMPTY, converter=frozen_mapping)
    idempotency_key: str | None = None
    priority: Priority = field(default=Priority.NEXT, converter=Priority)
    initiator: Principal | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("session_id", "handler_ref"):
            if not getattr(self, name):
                raise ValueError(f"a submit request needs {name}")
        if self.input is _NO_INPUT or not isinstance(self.input, TurnInput):
            raise ValueError("a submit request needs input: a TurnInput or a str")
        if self.idempotency_key is not None and not self.idempotency_key:
            raise ValueError("idempotency_key is not empty; leave it out for none")
        plain_data(self.submit_options, "submit_options")
        handler_id(self.handler_ref, self.handler_variant)

    @property
    def handler_id(self) -> str:
        """The handler's key in the registry."""
        return handler_id(self.handler_ref, self.handler_variant)


@frozen
class TurnResult:
    """How a turn ended by its own account. `artifacts` never cross to another node (SR-355)."""

    success: bool
    answer: str | None = None
    error_message: str | None = None
    completion: str = "completed"
    streamed: bool = False
    artifacts: tuple[Any, ...] = field(default=(), converter=_tuple)


@frozen
class InboundMessage:
    """An input on its way to the holder of its session, as an inbox keeps it.

    `id` and `delivered_at` are the inbox's: what a sender writes into `id` is ignored, and a `delivered_at` that is
    set is kept, which is how a message is put back into its old place. `epoch` is the epoch of the idempotency entry
    that the message belongs to.
    """

    session_id: str
    handler_ref: str
    input: TurnInput = field(converter=as_input)
    priority: Priority = field(default=Priority.NEXT, converter=Priority)
    initiator: Principal | None = None
    delivered_at: int | None = None
    idempotency_key: str | None = None
    turn_id: str | None = None
    handler_variant: str | None = None
    submit_options: Mapping[str, Any] = field(default=_EMPTY, converter=frozen_mapping)
    epoch: str | None = None
    id: str = ""


@frozen
class UnreadableEntry:
    """An inbox entry that could not be decoded, and whom it was for as far as that could be read. Never its bytes."""

    id: str
    turn_id: str | None
    idempotency_key: str | None
    reason: str


@frozen
class CollectedBatch:
    """What one collect took out of an inbox: priority first, then order of arrival."""

    messages: tuple[InboundMessage, ...] = field(default=(), converter=_tuple)
    unreadable: tuple[UnreadableEntry, ...] = field(default=(), converter=_tuple)

    @property
    def is_empty(self) -> bool:
        """True when nothing at all was taken."""
        return not self.messages and not self.unreadable


@frozen
class SessionLease:
    """A session held by one node. `token` rises with every lease of the session, whoever gets it; it is the fence."""

    session_id: str
    holder_id: str
    token: int
    acquired_at: int
    duration: float


@frozen
class LeaseHolder:
    """Who holds a session now, and for how many more seconds unless the lease is extended."""

    holder_id: str
    token: int
    expires_in: float


@frozen
class SessionRecordView:
    """A session's record as it was read. `version` counts commits; `handler_ref` None means not bound yet."""

    session_id: str
    handler_ref: str | None = None
    state: bytes | None = field(default=None, repr=False)
    version: int = 0
    attrs: Mapping[str, Any] = field(default=_EMPTY, converter=frozen_mapping)


@frozen
class Acquired:
    """The claim won; the record exists and is bound."""

    lease: SessionLease
    record: SessionRecordView


@frozen
class HeldElsewhere:
    """Somebody holds the session; the record was not touched."""

    holder: LeaseHolder | None


@frozen
class HandlerConflict:
    """The session belongs to another handler; the lease was given back."""

    bound: str
    requested: str


ClaimResult: TypeAlias = Acquired | HeldElsewhere | HandlerConflict


@frozen
class IdempotencyEntry:
    """What is known of one idempotency key.

    `holder_id` names the attempt that runs it, None while it waits in an inbox or is done; `epoch` is the reserver id
    of the attempt that inserted the entry and stays through hand-overs. `ttl` is the life from `touched_at` on, in
    seconds. `stale` means: held, in flight, and untouched for longer than that.
    """

    key: str
    session_id: str
    input_hash: str
    status: IdempotencyStatus
    holder_id: str | None
    epoch: str
    result: TurnResult | None
    created_at: int
    touched_at: int
    ttl: float
    stale: bool = False


@frozen
class Inserted:
    """The key was free and is now reserved by the caller."""

    entry: IdempotencyEntry


@frozen
class Existing:
    """The key is taken; the entry as it is."""

    entry: IdempotencyEntry


@frozen
class SessionSignal:
    """One message on the signal bus. `payload` holds flat primitives and no None (facts in docs/sessions.md).

    `origin_node` and `origin_instance` together say which router sent it: workers of one host may share a node id.
    """

    session_id: str
    kind: SignalKind
    origin_node: str
    payload: Mapping[str, Any] = field(default=_EMPTY, converter=frozen_mapping)
    origin_instance: str = ""


@frozen
class SessionTotals:
    """Counts over the life of a handle."""

    turns: int = 0
    failed_turns: int = 0
    interrupted_turns: int = 0
    events: int = 0


@frozen
class TurnProgress:
    """The turn that runs now: its id, seconds since it began, the handler's own iteration count."""

    turn_id: str
    elapsed: float = 0.0
    iteration: int = 0


@frozen
class LiveSessionStatus:
    """What a handle says of itself. `options` stay on the node (SR-360)."""

    phase: str
    interruptible: bool = False
    queue_depth: int = 0
    totals: SessionTotals = SessionTotals()
    turn: TurnProgress | None = None
    options: Mapping[str, Any] = field(default=_EMPTY, converter=frozen_mapping)


@frozen
class StatusSnapshot:
    """A status as broadcast: when it was taken (epoch milliseconds of the sender) and its number at the sender."""

    status: LiveSessionStatus
    observed_at: int
    seq: int


@frozen
class ClusterSessionStatus:
    """What this node knows of a session's status; for people, never to decide anything (SR-367)."""

    source: StatusSource
    status: LiveSessionStatus | None = None
    origin_node: str | None = None
    observed_at: int | None = None


def _positive(_: object, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigurationError(f"{attribute.name} is a positive number of seconds, not {value!r}")


def _not_negative(_: object, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigurationError(f"{attribute.name} is 0 or a positive number of seconds, not {value!r}")


def _half_secondary(config: RouterConfig) -> float:
    return max(1.0, config.idempotency_secondary_ttl / 2)


@frozen(kw_only=True)
class RouterConfig:
    """The settings of a session router; seconds unless the name says otherwise (SR-001).

    Raises:
        ConfigurationError: A value that cannot work; the text names the field (SR-008, SR-009).
    """

    idle_ttl: float = field(default=600.0, validator=_positive)
    max_cached_sessions: int = 1000
    lock_lease: float = field(default=30.0, validator=_positive)
    lock_extend_interval: float = field(default=10.0, validator=_positive)
    status_heartbeat_interval: float = field(default=10.0, validator=_positive)
    holder_loss_sweep_interval: float = field(default=15.0, validator=_positive)
    cache_sweep_interval: float = field(default=60.0, validator=_positive)
    idempotency_primary_ttl: float = field(default=86_400.0, validator=_positive)
    idempotency_secondary_ttl: float = field(default=30.0, validator=_positive)
    idempotency_forward_ttl: float = field(default=300.0, validator=_positive)
    release_interrupt_timeout: float = field(default=5.0, validator=_positive)
    relay_close_drain_timeout: float = field(default=2.0, validator=_not_negative)
    status_broadcast: bool = False
    legacy_yield_shim: bool = True
    stale_retention: float = field(default=60.0, validator=_positive)
    forward_poll_interval: float = field(default=Factory(_half_secondary, takes_self=True), validator=_positive)
    forward_rering_interval: float = field(default=Factory(_half_secondary, takes_self=True), validator=_positive)
    orphan_scan_interval: float = field(default=30.0, validator=_positive)
    orphan_age: float = field(default=45.0, validator=_positive)
    mode: DeploymentMode = DeploymentMode.SINGLE_NODE

    def __attrs_post_init__(self) -> None:
        count = self.max_cached_sessions
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigurationError(f"max_cached_sessions is a whole number from 1 on, not {count!r}")
        if self.lock_extend_interval >= self.lock_lease:
            raise ConfigurationError(
                f"lock_extend_interval ({self.lock_extend_interval:g} s) must be shorter than lock_lease "
                f"({self.lock_lease:g} s): a lease that is extended when it ends is lost"
            )

    def scaled(self, factor: float) -> RouterConfig:
        """The same settings with every duration multiplied by `factor`; for tests on a real clock."""
        durations = {
            attribute.name: getattr(self, attribute.name) * factor
            for attribute in fields(type(self))
            if attribute.validator in (_positive, _not_negative)
        }
        return evolve(self, **durations)
