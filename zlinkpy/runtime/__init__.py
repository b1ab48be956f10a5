"""The composition root: a `Host` is registered, runs, is observed and shuts down."""

from __future__ import annotations

from zlinkpy.mesh import ChannelStatus, MeshSnapshot, MeshStatus
from zlinkpy.messages import RawMessage
from zlinkpy.runtime.channel_registration import ServedChannel
from zlinkpy.runtime.fanout_registration import SubscribedChannel
from zlinkpy.runtime.fanout_running import FanoutStatus
from zlinkpy.runtime.host import Host
from zlinkpy.runtime.registration import Mesh
from zlinkpy.runtime.running import Runtime
from zlinkpy.runtime.security import SecurityOptions
from zlinkpy.runtime.settings import Settings
from zlinkpy.runtime.status import (
    BlockedLoop,
    HostStatus,
    Loss,
    Observed,
    StoreStatus,
    TerminationOutcome,
    TerminationReason,
    TerminationResult,
)

__all__ = [
    "BlockedLoop",
    "ChannelStatus",
    "FanoutStatus",
    "Host",
    "HostStatus",
    "Loss",
    "Mesh",
    "MeshSnapshot",
    "MeshStatus",
    "Observed",
    "RawMessage",
    "Runtime",
    "SecurityOptions",
    "ServedChannel",
    "Settings",
    "StoreStatus",
    "SubscribedChannel",
    "TerminationOutcome",
    "TerminationReason",
    "TerminationResult",
]
