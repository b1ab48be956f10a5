"""The fanout channels of a host that runs: what `Runtime` passes on to publishers and subscribers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import trio
from attrs import frozen

from zlinkpy.errors import ConfigurationError, InvalidOperationError, NotFoundError, ShuttingDownError
from zlinkpy.fanout import FanoutPublisher, FanoutSubscriber, PublisherOptions, PublisherStatus, SubscriberStatus
from zlinkpy.mesh import ConnectionReport, MeshCore, ago
from zlinkpy.runtime.fanout_plan import SubscriberPlan
from zlinkpy.telemetry import get_logger
from zlinkpy.wire import RuntimeState

log = get_logger("zlinkpy.runtime")

# A task that publishes in a tight loop gives way to others after so many events (architecture.md §4).
EVENTS_PER_CHECKPOINT = 64


@frozen(kw_only=True)
class FanoutStatus:
    """A fanout channel at one instant, in the role or roles this host has."""

    channel_name: str
    publisher: PublisherStatus | None
    subscriber: SubscriberStatus | None


class FanoutParts:
    """The publishers and subscribers of one host, by channel."""

    def __init__(self, core: MeshCore, on_status: Callable[[], None]) -> None:
        self._core = core
        self._on_status = on_status
        self._publishers: dict[str, FanoutPublisher] = {}
        self._subscribers: dict[str, FanoutSubscriber] = {}
        self._events = 0

    def add_publisher(self, options: PublisherOptions) -> FanoutPublisher:
        """Build one channel's publisher."""
        self._publishers[options.channel] = publisher = FanoutPublisher(self._core, options)
        return publisher

    def add_subscriber(self, plan: SubscriberPlan) -> FanoutSubscriber:
        """Build one channel's subscriber."""
        subscriber = FanoutSubscriber(
            self._core,
            plan.handlers,
            publishers=plan.publishers,
            key_names=plan.key_names,
            on_status=self._on_status,
        )
        self._subscribers[subscriber.channel] = subscriber
        return subscriber

    def state_changed(self) -> None:
        """The host's state is part of what publishers publish about themselves (LO-175)."""
        for publisher in self._publishers.values():
            if publisher.on_content is not None:
                publisher.on_content()

    async def publish(self, channel: str, topic: str | None, event: object, metadata: Mapping[str, str] | None) -> None:
        """See `Runtime.publish`."""
        publisher = self._publishers.get(channel)
        if publisher is None:
            raise NotFoundError(
                f"channel {channel!r} is not published by this process; add host.fanout_publisher({channel!r})"
            )
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._core.accepting:
            if self._core.runtime_state is RuntimeState.PREPARING:
                raise InvalidOperationError("the host is not running yet; publish inside `async with host.run()`")
            raise ShuttingDownError("this host is shutting down and publishes nothing more")
        publisher.publish(topic, event, metadata)
        self._events += 1
        if self._events >= EVENTS_PER_CHECKPOINT:
            self._events = 0
            # The event is out: cancellation may no longer pretend otherwise.
            await trio.lowlevel.cancel_shielded_checkpoint()

    def endpoint(self, channel: str) -> str:
        """What this host's publisher of `channel` advertises. Raises NotFoundError."""
        publisher = self._publishers.get(channel)
        if publisher is None:
            raise NotFoundError(f"this host does not publish the fanout channel {channel!r}")
        assert publisher.endpoint is not None
        return publisher.endpoint

    def ready_publishers(self, channel: str) -> int:
        """How many publishers this host hears. Raises NotFoundError for a channel it does not subscribe to."""
        subscriber = self._subscribers.get(channel)
        if subscriber is None:
            raise NotFoundError(f"this host does not subscribe to the fanout channel {channel!r}")
        return subscriber.ready_publishers

    def status(self, channel: str) -> FanoutStatus:
        """See `Runtime.fanout_status`."""
        publisher, subscriber = self._publishers.get(channel), self._subscribers.get(channel)
        if publisher is None and subscriber is None:
            known = ", ".join(sorted({*self._publishers, *self._subscribers})) or "none"
            raise ConfigurationError(f"fanout channel {channel!r} is not registered in this host (it has: {known})")
        return FanoutStatus(
            channel_name=channel,
            publisher=publisher.status() if publisher is not None else None,
            subscriber=subscriber.status() if subscriber is not None else None,
        )

    def reports(self, now: float) -> Iterator[ConnectionReport]:
        """What ``zlink peers`` shows of the subscriptions."""
        for channel, subscriber in self._subscribers.items():
            for heard in subscriber.status().publishers:
                failure = heard.last_failure
                yield ConnectionReport(
                    kind="fanout",
                    name=channel,
                    peer=heard.rid,
                    endpoint=heard.endpoint,
                    phase=heard.phase.value,
                    dials=heard.dials,
                    last_failure=failure.reason.value if failure is not None else None,
                    failure_detail=failure.detail if failure is not None else None,
                    failed_ago=ago(failure.at if failure is not None else None, now),
                    heard_ago=ago(heard.last_receive, now),
                )

    @property
    def omitted(self) -> int:
        """How many connections `reports` leaves out."""
        return sum(subscriber.status().omitted for subscriber in self._subscribers.values())

    async def aclose(self) -> bool:
        """Close every socket. Returns False when one could not be closed in order; it has been logged."""
        clean = True
        parts: tuple[FanoutPublisher | FanoutSubscriber, ...]
        parts = (*self._subscribers.values(), *self._publishers.values())
        for part in parts:
            try:
                await part.aclose()
            except Exception:
                clean = False
                log.exception("closing fanout channel %s failed", part.channel)
        return clean
