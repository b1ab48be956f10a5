"""The descriptors of a channel's providers: ClientServer servers and Classic fanout publishers (facts §4).

Their clients and subscribers publish nothing: nobody dials them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from zlinkpy.location import keys
from zlinkpy.location.descriptor_kind import DEFAULT_WEIGHT, WEIGHT_MAX, Descriptor, DescriptorKind, valid_weight
from zlinkpy.location.rows import Fields


@frozen(kw_only=True)
class ClientServerDescriptor(Descriptor):
    """One server of a ClientServer channel as published; `rid` is the server's routing id.

    Mutable under one key: `state` and `weight` (0..10,000, else InvalidOperationError, LO-139).
    """

    channel_name: str
    weight: int = field(default=DEFAULT_WEIGHT, validator=valid_weight)

    @property
    def kind(self) -> DescriptorKind[ClientServerDescriptor]:
        return CLIENT_SERVER

    @property
    def scope(self) -> str:
        return self.channel_name


@frozen(kw_only=True)
class FanoutDescriptor(Descriptor):
    """One publisher of a Classic fanout channel as published; `rid` is the publisher's routing id.

    Mutable under one key: `state`.
    """

    channel_name: str

    @property
    def kind(self) -> DescriptorKind[FanoutDescriptor]:
        return FANOUT

    @property
    def scope(self) -> str:
        return self.channel_name


def _dump_server(descriptor: ClientServerDescriptor) -> Mapping[str, object]:
    return {"weight": descriptor.weight}


def _build_server(scope: str, body: Fields, shared: Mapping[str, Any]) -> ClientServerDescriptor:
    return ClientServerDescriptor(channel_name=scope, weight=body.number("weight", 0, WEIGHT_MAX), **shared)


def _dump_publisher(_descriptor: FanoutDescriptor) -> Mapping[str, object]:
    return {}


def _build_publisher(scope: str, _body: Fields, shared: Mapping[str, Any]) -> FanoutDescriptor:
    return FanoutDescriptor(channel_name=scope, **shared)


CLIENT_SERVER = DescriptorKind(
    type=ClientServerDescriptor,
    name="ClientServer server",
    scope_name="channel",
    scope_field="channelName",
    rid_field="serverRoutingIdHex",
    all_prefix=keys.CLIENT_SERVERS_PREFIX,
    prefix=keys.client_server_prefix,
    key=keys.client_server,
    dump=_dump_server,
    build=_build_server,
    mutable=frozenset({"state", "weight"}),
)
FANOUT = DescriptorKind(
    type=FanoutDescriptor,
    name="fanout publisher",
    scope_name="channel",
    scope_field="channelName",
    rid_field="publisherRoutingIdHex",
    all_prefix=keys.FANOUT_PUBLISHERS_PREFIX,
    prefix=keys.fanout_prefix,
    key=keys.fanout,
    dump=_dump_publisher,
    build=_build_publisher,
    mutable=frozenset({"state"}),
)
