"""zlinkpy: stateful distributed services on ZeroMQ. ``import zlinkpy as zl`` is the whole public surface."""

from __future__ import annotations

import importlib
import typing

from zlinkpy.errors import (
    AlreadyExistsError,
    ConfigurationError,
    DataLostError,
    DeadlineExceededError,
    ErrorKind,
    InternalFailureError,
    InvalidOperationError,
    NotConfiguredError,
    NotFoundError,
    ProtocolError,
    RejectedError,
    ShuttingDownError,
    TypeMismatchError,
    UnavailableError,
    ZlinkError,
)
from zlinkpy.execution import JobQueueOptions, JobQueueProfile, Pressure
from zlinkpy.location import LocationOptions
from zlinkpy.messages import MessageContext, Request, message
from zlinkpy.runtime import (
    ChannelStatus,
    FanoutStatus,
    Host,
    HostStatus,
    Mesh,
    MeshSnapshot,
    MeshStatus,
    Observed,
    RawMessage,
    Runtime,
    SecurityOptions,
    ServedChannel,
    Settings,
    SubscribedChannel,
    TerminationOutcome,
    TerminationReason,
    TerminationResult,
)
from zlinkpy.wire import RuntimeState as HostState

if typing.TYPE_CHECKING:
    from zlinkpy.sessions.errors import (
        ConflictingHandlerError,
        ForwardTimeoutError,
        HolderLostError,
        IdempotencyConflictError,
        LeaseLostError,
        NotHolderError,
        ReentrantSubmitError,
        ReservationLostError,
        RouterClosedError,
        SessionBackendError,
        SessionBusyError,
        SessionError,
        SessionEvictedError,
        TurnFailedError,
        UnknownHandlerError,
        UnreadableMessageError,
    )
    from zlinkpy.sessions.event_streams import EventStream
    from zlinkpy.sessions.events import (
        Gap,
        InterruptedAt,
        OutputDelta,
        OutputSnapshot,
        RejectedAt,
        StepFinished,
        StepStarted,
        TraceDelta,
        TurnCompleted,
        TurnEvent,
        TurnFailed,
        TurnStarted,
    )
    from zlinkpy.sessions.futures import SubmitDisposition, TurnFuture
    from zlinkpy.sessions.handlers import SessionHandler
    from zlinkpy.sessions.metrics import SessionMetrics
    from zlinkpy.sessions.payloads import EventCodec
    from zlinkpy.sessions.router import SessionRouter
    from zlinkpy.sessions.spi import LiveSession, TurnContext
    from zlinkpy.sessions.types import (
        ClusterSessionStatus,
        DeploymentMode,
        DispositionKind,
        InterruptReason,
        LiveSessionStatus,
        Part,
        Principal,
        Priority,
        RouterConfig,
        SubmitRequest,
        TurnInput,
        TurnProgress,
        TurnResult,
    )

__all__ = [
    "AlreadyExistsError",
    "ChannelStatus",
    "ClusterSessionStatus",
    "ConfigurationError",
    "ConflictingHandlerError",
    "DataLostError",
    "DeadlineExceededError",
    "DeploymentMode",
    "DispositionKind",
    "ErrorKind",
    "EventCodec",
    "EventStream",
    "FanoutStatus",
    "ForwardTimeoutError",
    "Gap",
    "HolderLostError",
    "Host",
    "HostState",
    "HostStatus",
    "IdempotencyConflictError",
    "InternalFailureError",
    "InterruptReason",
    "InterruptedAt",
    "InvalidOperationError",
    "JobQueueOptions",
    "JobQueueProfile",
    "LeaseLostError",
    "LiveSession",
    "LiveSessionStatus",
    "LocationOptions",
    "Mesh",
    "MeshSnapshot",
    "MeshStatus",
    "MessageContext",
    "NotConfiguredError",
    "NotFoundError",
    "NotHolderError",
    "Observed",
    "OutputDelta",
    "OutputSnapshot",
    "Part",
    "Pressure",
    "Principal",
    "Priority",
    "ProtocolError",
    "RawMessage",
    "ReentrantSubmitError",
    "RejectedAt",
    "RejectedError",
    "Request",
    "ReservationLostError",
    "RouterClosedError",
    "RouterConfig",
    "Runtime",
    "SecurityOptions",
    "ServedChannel",
    "SessionBackendError",
    "SessionBusyError",
    "SessionError",
    "SessionEvictedError",
    "SessionHandler",
    "SessionMetrics",
    "SessionRouter",
    "Settings",
    "ShuttingDownError",
    "StepFinished",
    "StepStarted",
    "SubmitDisposition",
    "SubmitRequest",
    "SubscribedChannel",
    "TerminationOutcome",
    "TerminationReason",
    "TerminationResult",
    "TraceDelta",
    "TurnCompleted",
    "TurnContext",
    "TurnEvent",
    "TurnFailed",
    "TurnFailedError",
    "TurnFuture",
    "TurnInput",
    "TurnProgress",
    "TurnResult",
    "TurnStarted",
    "TypeMismatchError",
    "UnavailableError",
    "UnknownHandlerError",
    "UnreadableMessageError",
    "ZlinkError",
    "message",
]

# The session router takes a quarter of the whole import, and every command of the CLI and every node without sessions
# would wait for it: its names come with their first use.
_SESSION_MODULES = (
    "zlinkpy.sessions.errors",
    "zlinkpy.sessions.event_streams",
    "zlinkpy.sessions.events",
    "zlinkpy.sessions.futures",
    "zlinkpy.sessions.handlers",
    "zlinkpy.sessions.metrics",
    "zlinkpy.sessions.payloads",
    "zlinkpy.sessions.router",
    "zlinkpy.sessions.spi",
    "zlinkpy.sessions.types",
)


def __getattr__(name: str) -> object:
    if name in __all__:
        for module in map(importlib.import_module, _SESSION_MODULES):
            if hasattr(module, name):
                globals()[name] = value = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
