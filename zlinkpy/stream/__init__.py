"""STREAM: the gateway for external clients."""

from zlinkpy.stream.heartbeat_machine import (
    CloseSession,
    Heartbeat,
    HeartbeatOptions,
    SendPing,
    SendPong,
    SilenceReason,
)

__all__ = ["CloseSession", "Heartbeat", "HeartbeatOptions", "SendPing", "SendPong", "SilenceReason"]
