"""Connections that carry whole records: ZeroMQ, and an in-memory twin for simulation."""

from zlinkpy.transport.curve import generate_key_pair, key_pair_of
from zlinkpy.transport.interface import (
    Connection,
    ConnectionClosed,
    Listener,
    Pattern,
    Publisher,
    Sink,
    Subscription,
    SubscriptionSink,
    Transport,
    TransportStatistics,
)
from zlinkpy.transport.memory_network import MemoryNetwork
from zlinkpy.transport.memory_transport import MemoryTransport
from zlinkpy.transport.zmq_transport import ZmqTransport

__all__ = [
    "Connection",
    "ConnectionClosed",
    "Listener",
    "MemoryNetwork",
    "MemoryTransport",
    "Pattern",
    "Publisher",
    "Sink",
    "Subscription",
    "SubscriptionSink",
    "Transport",
    "TransportStatistics",
    "ZmqTransport",
    "generate_key_pair",
    "key_pair_of",
]
