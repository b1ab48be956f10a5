"""One subscriber of a Classic fanout channel: its publishers, each with a socket of its own (LV §7, §8).

Automatic: discovery gives the complete list of publishers (`apply_list`). Manual: the endpoints are given once. Nothing
is ever sent to a publisher, and what PUB/SUB loses (events published before the subscription arrived, beyond a full
queue, during a reconnect) is lost without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import trio
from attrs import frozen

from zlinkpy.fanout.core import FanoutCore
from zlinkpy.fanout.events import EventHandlers
from zlinkpy.fanout.status import SubscriberStatus
from zlinkpy.fanout.subscription import HeardPublisher
from zlinkpy.link import Backoff, Expectation, Failure, PublisherLink
from zlinkpy.telemetry import catalogue, get_logger
from zlinkpy.transport import Subscription, SubscriptionSink, Transport
from zlinkpy.wire import BEACON_TOPIC, FanoutEvent

log = get_logger("zlinkpy.fanout")

SNAPSHOT_PUBLISHER_LIMIT = 256
"""A status lists at most so many publishers; the rest is counted in `omitted` (LV [D12])."""

# A requested close of a SUB socket is observed within moments; waiting longer would be a hang at shutdown.
CLOSE_SECONDS = 2.0


@frozen(kw_only=True)
class ListedPublisher:
    """What discovery says about one publisher."""

    rid: str
    endpoint: str
    lifecycle_generation: int
    security_identity: str | None = None
    """Its public key; None without keys."""
    takes_subscribers: bool = True
    """False for one that is leaving: nobody new connects to it, who is connected stays (LO-175)."""

    @property
    def expectation(self) -> Expectation:
        """Who has to be heard at the endpoint."""
        return Expectation(rid=self.rid, security_identity=self.security_identity, generation=self.lifecycle_generation)


class FanoutSubscriber:
    """This process's subscriber of one channel.

    Args:
        publishers: Endpoints given by hand; empty for automatic discovery.
        key_names: Of these endpoints, the name under which the allow-list has the publisher's key.
        on_status: Called when `status()` would say something new.
    """

    def __init__(
        self,
        core: FanoutCore,
        handlers: EventHandlers,
        *,
        publishers: tuple[str, ...] = (),
        key_names: Mapping[str, str] = MappingProxyType({}),
        on_status: Callable[[], None] = lambda: None,
    ) -> None:
        self._core = core
        self._handlers = handlers
        self._manual = publishers
        self._key_names = key_names
        self._on_status = on_status
        self.channel = handlers.channel
        self.first_dials = True
        """False while the Store has failed for longer than its grace: publishers never reached before are not dialled
        (LO-187)."""
        self._transport: Transport | None = None
        self._heard: dict[str, HeardPublisher] = {}
        # Withdrawn, with a socket that has not been seen closed.
        self._leaving: dict[HeardPublisher, None] = {}
        self._closing = False
        self._idle = trio.Event()

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self, transport: Transport) -> None:
        """Begin to connect to the manual publishers; those of discovery follow with `apply_list`."""
        self._transport = transport
        for endpoint in self._manual:
            self._heard[endpoint] = HeardPublisher(self, endpoint, Expectation())
        self._core.timer.add(self)

    async def aclose(self) -> None:
        """Close every socket and see it closed; bounded."""
        self._closing = True
        self._core.timer.remove(self)
        for key in list(self._heard):
            self._drop(key, self.now())
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            if self._leaving:
                await self._idle.wait()

    def now(self) -> float:
        """Seconds of trio's clock."""
        return trio.current_time()

    def next_deadline(self) -> float | None:
        """Timer source: the next dial."""
        deadlines = (heard.intent.next_deadline() for heard in self._heard.values() if self._may_dial(heard))
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now: float) -> None:
        """Timer source: dial what is due."""
        for heard in list(self._heard.values()):
            if self._may_dial(heard):
                heard.dial_if_due(now)

    def _may_dial(self, heard: HeardPublisher) -> bool:
        return self.first_dials or heard.rid is None or heard.was_ready

    # -- discovery -----------------------------------------------------------------------------------------------------

    def apply_list(self, publishers: Mapping[str, ListedPublisher]) -> None:
        """Take a complete, lease-checked list of the channel's publishers, by RID. Never called with a partial one."""
        now = self.now()
        for rid in list(self._heard):
            if rid not in publishers:
                self._drop(rid, now)
        for rid, publisher in publishers.items():
            heard = self._heard.get(rid)
            if heard is not None:
                heard.retarget(publisher.endpoint, publisher.expectation, now)
            elif publisher.takes_subscribers and not self._closing:
                self._heard[rid] = HeardPublisher(self, publisher.endpoint, publisher.expectation)
        self._core.timer.touch(self.next_deadline())
        self._on_status()

    def _drop(self, key: str, now: float) -> None:
        heard = self._heard.pop(key)
        self._leaving[heard] = None
        heard.withdraw(now)

    # -- what the shells of publishers report --------------------------------------------------------------------------

    def backoff(self) -> Backoff:
        """A fresh reconnect delay."""
        return Backoff(self._core.entropy)

    def open(self, endpoint: str, expected: Expectation, sink: SubscriptionSink) -> Subscription:
        """A new SUB socket for one attempt. Raises ConfigurationError for an endpoint nobody can dial."""
        assert self._transport is not None
        topics = (BEACON_TOPIC, *self._handlers.topics)
        return self._transport.subscribe(endpoint, sink, topics, server_key=self._key_of(endpoint, expected))

    def _key_of(self, endpoint: str, expected: Expectation) -> str | None:
        """The CURVE key to expect at `endpoint`: the operator's word, else the descriptor's; None without keys."""
        keys = self._core.keys
        if keys is None:
            return None
        name = self._key_names.get(endpoint)
        return keys.key_of(name) if name is not None else expected.security_identity

    def started(self, heard: HeardPublisher, link: PublisherLink) -> None:
        """An attempt begins: the host's liveness owner judges it from now on (LV-05)."""
        self._core.liveness.register(heard, link)

    def deadline_moved(self, deadline: float | None) -> None:
        """A machine may have a new deadline."""
        self._core.timer.touch(deadline)

    def became_ready(self, heard: HeardPublisher) -> None:
        """The first valid record came."""
        self._core.telemetry.counter(catalogue.PEER_CONNECTS, scope_kind="channel", scope_name=self.channel)
        log.info("publisher %s of channel %s is ready", heard.rid or heard.intent.endpoint, self.channel)
        self._on_status()

    def lost(self, heard: HeardPublisher, failure: Failure) -> None:
        """A publisher that was ready is not any more; no other one notices (LV-82)."""
        self._core.telemetry.counter(
            catalogue.PEER_DISCONNECTS, scope_kind="channel", scope_name=self.channel, reason=failure.reason.value
        )
        log.info(
            "publisher %s of channel %s is not ready any more: %s (%s)",
            heard.rid or heard.intent.endpoint,
            self.channel,
            failure.reason.value,
            failure.detail,
        )
        self._on_status()

    def settled(self, heard: HeardPublisher) -> None:
        """A socket of it was seen closed, or it never had one."""
        if heard.is_gone:
            self._leaving.pop(heard, None)
            if self._closing and not self._leaving:
                self._idle.set()

    def event(self, event: FanoutEvent, size: int, subscription: Subscription) -> None:
        """Queue an event for its handler, or wait for a permit for it: then its publisher is read no further."""
        if not self._core.taking:
            return
        job = self._handlers.job(event)
        if job is not None:
            self._core.ingress.accept(job, size, subscription, None)

    # -- observation ---------------------------------------------------------------------------------------------------

    @property
    def ready_publishers(self) -> int:
        """How many publishers are heard."""
        return sum(heard.ready for heard in self._heard.values())

    def status(self) -> SubscriberStatus:
        """Where every publisher stands; a bounded copy."""
        everyone = list(self._heard.values())
        return SubscriberStatus(
            channel_name=self.channel,
            ready_publishers=self.ready_publishers,
            publishers=tuple(heard.snapshot() for heard in everyone[:SNAPSHOT_PUBLISHER_LIMIT]),
            omitted=max(0, len(everyone) - SNAPSHOT_PUBLISHER_LIMIT),
        )
