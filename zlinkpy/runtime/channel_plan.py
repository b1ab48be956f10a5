"""From registered ClientServer channels and settings to what a start needs (SA §A, wire.md §9, §11). No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from zlinkpy.entropy import Entropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.mesh import (
    ClientOptions,
    HandlerTable,
    ServerOptions,
    check_max_message_bytes,
    plan_listener,
)
from zlinkpy.messages import Codecs, HandlerSpec
from zlinkpy.runtime.channel_registration import ServedChannel, UsedChannel, where_of
from zlinkpy.runtime.plan import ChannelRole, HostOptions, check_channel_settings, chosen, plan_rid
from zlinkpy.runtime.registration import check_timeout

if TYPE_CHECKING:
    from zlinkpy.runtime.settings import ClientServerSettings

# Which role a setting is for; `max_message_bytes` is for both.
_OF_SERVER = ("listen", "advertise_host", "rid_prefix", "weight")
_OF_CLIENT = ("servers", "default_request_timeout")


@frozen(kw_only=True)
class ServerPlan:
    """One server, ready to be started."""

    options: ServerOptions
    handlers: HandlerTable


@frozen(kw_only=True)
class ChannelPlans:
    """The ClientServer channels of a host."""

    servers: tuple[ServerPlan, ...] = ()
    clients: tuple[ClientOptions, ...] = ()


def plan_channels(
    served: Mapping[str, ServedChannel],
    used: Mapping[str, UsedChannel],
    settings: Mapping[str, ClientServerSettings],
    host: HostOptions,
    *,
    on_meshes: Mapping[str, str],
    codecs: Codecs,
    entropy: Entropy,
) -> ChannelPlans:
    """Check what concerns more than one registration and build the plans. `on_meshes`: channel name -> its mesh."""
    for name in (*served, *used):
        if name in on_meshes:
            raise ConfigurationError(
                f"channel {name!r} is registered on the mesh {on_meshes[name]!r} and as a ClientServer channel; one "
                "channel name has one send path in a process"
            )
    roles = (
        ChannelRole(served, _OF_SERVER, "serve", "serve_client_server"),
        ChannelRole(used, _OF_CLIENT, "use", "use_client_server"),
    )
    for name, given in settings.items():
        check_channel_settings("ClientServer", where_of(name), name, given, roles)
    return ChannelPlans(
        servers=tuple(_server(each, settings.get(name), host, codecs, entropy) for name, each in served.items()),
        clients=tuple(_client(each, settings.get(name), host) for name, each in used.items()),
    )


def _server(
    channel: ServedChannel,
    settings: ClientServerSettings | None,
    host: HostOptions,
    codecs: Codecs,
    entropy: Entropy,
) -> ServerPlan:
    where = where_of(channel.name)
    handlers = HandlerTable(where, codecs)
    for registration in channel.handlers:
        handlers.add(HandlerSpec.inspect(registration.function, registration.kind), registration.channel)
    prefix = chosen(settings, "rid_prefix", channel.rid_prefix)
    options = ServerOptions(
        channel=channel.name,
        rid=plan_rid(channel.rid, prefix, where, host=host, entropy=entropy),
        listener=host.security.check_bind(
            plan_listener(
                chosen(settings, "listen", channel.listen),
                chosen(settings, "advertise_host", channel.advertise_host),
                where,
            ),
            where,
        ),
        security_identity=host.security.identity,
        weight=chosen(settings, "weight", channel.weight),
        max_message_bytes=check_max_message_bytes(
            chosen(settings, "max_message_bytes", channel.max_message_bytes), where
        ),
    )
    return ServerPlan(options=options, handlers=handlers)


def _client(channel: UsedChannel, settings: ClientServerSettings | None, host: HostOptions) -> ClientOptions:
    where = where_of(channel.name)
    servers, key_names = host.security.endpoints(chosen(settings, "servers", channel.servers), f"{where}.servers")
    discovers = host.location_store is not None
    if not servers and not discovers:
        raise ConfigurationError(
            f"{where}: nothing says where its servers are; name their endpoints in servers, or set location_store"
        )
    timeout = chosen(settings, "default_request_timeout", channel.default_request_timeout)
    return ClientOptions(
        channel=channel.name,
        servers=tuple(dict.fromkeys(servers)),
        key_names=key_names,
        security_identity=host.security.identity,
        discovers=discovers,
        max_message_bytes=check_max_message_bytes(
            chosen(settings, "max_message_bytes", channel.max_message_bytes), where
        ),
        default_request_timeout_ms=check_timeout(
            timeout if timeout is not None else host.default_request_timeout, f"{where}.default_request_timeout"
        ),
    )
