"""What an application registers of Classic fanout before a host runs: publishers and subscribers. Does no I/O.

A channel's two roles are registered apart and may both be in one process; the subscriber then hears its own process
through the socket, like any other publisher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attrs import define, field

from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.mesh import plan_listener
from zlinkpy.messages import check_handler
from zlinkpy.runtime.registration import check_channel_name, check_two_ids
from zlinkpy.runtime.security import split_name
from zlinkpy.wire import check_topic

F = TypeVar("F", bound=Callable[..., Any])


def where_of(channel: str) -> str:
    """How errors name a fanout channel."""
    return f"fanout.{channel}"


@define(eq=False)
class PublishedChannel:
    """A fanout channel this host publishes. Made by `Host.fanout_publisher`."""

    name: str
    listen: str
    advertise_host: str | None
    rid_prefix: str | None
    rid: str | None


@define(eq=False)
class EventRegistration:
    """A decorated function, to be inspected when the host starts: forward names resolve then."""

    function: Callable[..., Any]
    topic: str | None
    is_raw: bool


@define(eq=False)
class SubscribedChannel:
    """A fanout channel this host subscribes to. Made by `Host.fanout_subscriber`, whose arguments are documented
    there."""

    name: str
    publishers: tuple[str, ...]
    _frozen: Callable[[], bool]
    handlers: list[EventRegistration] = field(factory=list)

    def on_event(self, topic: str | None = None) -> Callable[[F], F]:
        """Decorator: handle the events of `topic`; the first parameter's annotation names the message.

        Args:
            topic: Compared whole; None: the packet's name.

        Raises ConfigurationError for a topic that is not 1..255 bytes of UTF-8 or is the framework's (LV-87), and for
        what is no handler.
        """
        return self._handler(topic, is_raw=False)

    def on_raw_event(self, topic: str | None = None) -> Callable[[F], F]:
        """Decorator: handle the events of `topic` that no other handler takes, as `RawMessage`, whatever their packet.

        For tools and gateways. `topic` None: every topic. Raises as `on_event`.
        """
        return self._handler(topic, is_raw=True)

    def _handler(self, topic: str | None, *, is_raw: bool) -> Callable[[F], F]:
        if self._frozen():
            raise InvalidOperationError(f"{where_of(self.name)}: the host has started; registrations are fixed")
        if topic is not None:
            try:
                check_topic(topic)
            except (ValueError, TypeError) as error:
                raise ConfigurationError(f"{where_of(self.name)}: {error}") from None

        def decorate(function: F) -> F:
            if not is_raw:
                check_handler(function, "send")
            self.handlers.append(EventRegistration(function, topic, is_raw))
            return function

        return decorate


def publish_channel(
    name: str, *, listen: str, advertise_host: str | None, rid_prefix: str | None, rid: str | None
) -> PublishedChannel:
    """Check one publisher's own arguments and build its registration."""
    where = where_of(check_channel_name(name))
    plan_listener(listen, advertise_host, where)
    check_two_ids(rid, rid_prefix, where)
    return PublishedChannel(name, listen, advertise_host, rid_prefix, rid)


def subscribe_channel(name: str, frozen: Callable[[], bool], *, publishers: Sequence[str]) -> SubscribedChannel:
    """Check one subscriber's own arguments and build its registration."""
    where = where_of(check_channel_name(name))
    if isinstance(publishers, str):
        raise ConfigurationError(f"{where}.publishers: give a sequence of endpoints, not the one text {publishers!r}")
    for publisher in publishers:
        split_name(publisher, f"{where}.publishers")
    return SubscribedChannel(name, tuple(publishers), frozen)
