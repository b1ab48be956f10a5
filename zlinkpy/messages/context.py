"""What a handler may know about the message it was given, besides the message."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

NO_METADATA: Mapping[str, str] = MappingProxyType({})
"""The metadata of a message that was sent without any; shared, read-only."""


@frozen(kw_only=True)
class MessageContext:
    """Where one message came from (SA-275). A snapshot: nothing in it changes while the handler runs.

    Attributes:
        mesh_name: The mesh it arrived on, ``None`` on a ClientServer or fanout channel.
        packet_name: The packet name on the wire.
        channel_name: The channel, ``None`` for node-direct messages.
        content_type: How the payload was encoded, in canonical form.
        metadata: What the sender attached; read-only (SA-276).
        correlation_id: Identifies the request on its connection, ``None`` for sends.
        source_rid: The sending node's routing id, node-direct messages and fanout events only.
        topic: The topic, multicast and fanout only.
    """

    mesh_name: str | None
    packet_name: str
    channel_name: str | None = None
    content_type: str = "application/msgpack"
    metadata: Mapping[str, str] = NO_METADATA
    correlation_id: int | None = None
    source_rid: str | None = None
    topic: str | None = None
