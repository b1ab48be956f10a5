"""From registered fanout channels and settings to what a start needs (wire.md §9, §11). No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from zlinkpy.entropy import Entropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.fanout import EventHandlers, PublisherOptions
from zlinkpy.mesh import plan_listener
from zlinkpy.messages import Codecs, HandlerSpec
from zlinkpy.runtime.fanout_registration import PublishedChannel, SubscribedChannel, where_of
from zlinkpy.runtime.plan import ChannelRole, HostOptions, check_channel_settings, chosen, plan_rid
from zlinkpy.telemetry import Telemetry

if TYPE_CHECKING:
    from zlinkpy.runtime.settings import FanoutSettings

# Which role a setting is for.
_OF_PUBLISHER = ("listen", "advertise_host", "rid_prefix")
_OF_SUBSCRIBER = ("publishers",)


@frozen(kw_only=True)
class SubscriberPlan:
    """One subscriber, ready to be started."""

    handlers: EventHandlers
    publishers: tuple[str, ...]
    """Endpoints given by hand; empty: those of the store."""
    key_names: Mapping[str, str]
    """Of these endpoints, the names under which the allow-list has their keys."""


@frozen(kw_only=True)
class FanoutPlans:
    """The fanout channels of a host."""

    publishers: tuple[PublisherOptions, ...] = ()
    subscribers: tuple[SubscriberPlan, ...] = ()


def plan_fanout(
    published: Mapping[str, PublishedChannel],
    subscribed: Mapping[str, SubscribedChannel],
    settings: Mapping[str, FanoutSettings],
    host: HostOptions,
    *,
    elsewhere: Mapping[str, str],
    codecs: Codecs,
    telemetry: Telemetry,
    entropy: Entropy,
) -> FanoutPlans:
    """Check what concerns more than one registration and build the plans.

    Args:
        elsewhere: channel name -> what else it is registered as, for people.
    """
    for name in (*published, *subscribed):
        if name in elsewhere:
            raise ConfigurationError(
                f"channel {name!r} is registered {elsewhere[name]} and as a fanout channel; one channel name has one "
                "send path in a process"
            )
    roles = (
        ChannelRole(published, _OF_PUBLISHER, "publish", "fanout_publisher"),
        ChannelRole(subscribed, _OF_SUBSCRIBER, "subscribe to", "fanout_subscriber"),
    )
    for name, given in settings.items():
        check_channel_settings("fanout", where_of(name), name, given, roles)
    return FanoutPlans(
        publishers=tuple(_publisher(each, settings.get(name), host, entropy) for name, each in published.items()),
        subscribers=tuple(
            _subscriber(each, settings.get(name), host, codecs, telemetry) for name, each in subscribed.items()
        ),
    )


def _publisher(
    channel: PublishedChannel, settings: FanoutSettings | None, host: HostOptions, entropy: Entropy
) -> PublisherOptions:
    where = where_of(channel.name)
    listener = host.security.check_bind(
        plan_listener(
            chosen(settings, "listen", channel.listen),
            chosen(settings, "advertise_host", channel.advertise_host),
            where,
        ),
        where,
    )
    prefix = chosen(settings, "rid_prefix", channel.rid_prefix)
    return PublisherOptions(
        channel=channel.name,
        rid=plan_rid(channel.rid, prefix, where, host=host, entropy=entropy),
        bind=str(listener.bind),
        advertised=listener.advertised,
        security_identity=host.security.identity,
    )


def _subscriber(
    channel: SubscribedChannel,
    settings: FanoutSettings | None,
    host: HostOptions,
    codecs: Codecs,
    telemetry: Telemetry,
) -> SubscriberPlan:
    where = where_of(channel.name)
    handlers = EventHandlers(channel.name, codecs, telemetry)
    for registration in channel.handlers:
        if registration.is_raw:
            handlers.add_raw(HandlerSpec.raw(registration.function), registration.topic)
        else:
            handlers.add(HandlerSpec.inspect(registration.function, "send"), registration.topic)
    publishers, key_names = host.security.endpoints(
        chosen(settings, "publishers", channel.publishers), f"{where}.publishers"
    )
    if not publishers and host.location_store is None:
        raise ConfigurationError(
            f"{where}: nothing says where its publishers are; name their endpoints in publishers, or set location_store"
        )
    # Endpoints given by hand stand for themselves: mixed with those of the store, one publisher would be heard twice
    # (wire.md §9).
    return SubscriberPlan(handlers=handlers, publishers=tuple(dict.fromkeys(publishers)), key_names=key_names)
