"""zlinkpy: stateful distributed services on ZeroMQ. ``import zlinkpy as zl`` is the whole public surface."""

from __future__ import annotations

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
    Host,
    HostStatus,
    Mesh,
    MeshSnapshot,
    MeshStatus,
    Observed,
    RawMessage,
    Runtime,
    SecurityOptions,
    Settings,
    TerminationOutcome,
    TerminationReason,
    TerminationResult,
)
from zlinkpy.wire import RuntimeState as HostState

__all__ = [
    "AlreadyExistsError",
    "ConfigurationError",
    "DataLostError",
    "DeadlineExceededError",
    "ErrorKind",
    "Host",
    "HostState",
    "HostStatus",
    "InternalFailureError",
    "InvalidOperationError",
    "JobQueueOptions",
    "JobQueueProfile",
    "LocationOptions",
    "Mesh",
    "MeshSnapshot",
    "MeshStatus",
    "MessageContext",
    "NotConfiguredError",
    "NotFoundError",
    "Observed",
    "Pressure",
    "ProtocolError",
    "RawMessage",
    "RejectedError",
    "Request",
    "Runtime",
    "SecurityOptions",
    "Settings",
    "ShuttingDownError",
    "TerminationOutcome",
    "TerminationReason",
    "TerminationResult",
    "TypeMismatchError",
    "UnavailableError",
    "ZlinkError",
    "message",
]
