"""What the libzmq this process uses can do, for diagnosis (`zlink doctor`)."""

from __future__ import annotations

import zmq
from attrs import frozen

from zlinkpy.transport.context import batch_is_allowed


@frozen(kw_only=True)
class TransportFeatures:
    """Versions as text, and the optional parts that were compiled in."""

    pyzmq: str
    libzmq: str
    curve: bool
    """Encryption and keys are available."""
    ipc: bool
    batch_threads: bool
    """libzmq's threads interrupt nobody; without, requests cost a third more (docs/decisions/0010)."""


def transport_features() -> TransportFeatures:
    """Ask the loaded libzmq. Opens no socket."""
    return TransportFeatures(
        pyzmq=zmq.pyzmq_version(),
        libzmq=zmq.zmq_version(),
        curve=zmq.has("curve"),
        ipc=zmq.has("ipc"),
        batch_threads=batch_is_allowed(),
    )
