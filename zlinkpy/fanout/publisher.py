"""One publisher of a Classic fanout channel: a bound PUB socket, its beacons, its events (LV §7).

    state     event                       next      action
    NEW       start                       OPEN      bind; the first beacon leaves at that instant (B)
    OPEN      publish                     -         one record to whoever is connected; what a subscriber cannot take
                                                    is lost to it
    OPEN      the timer, on B, B+5, …     -         one beacon
    OPEN      aclose                      CLOSED    no beacon follows; what was published is flushed, bounded
    CLOSED    publish                     -         ShuttingDownError

Publishing is fire and forget: PUB knows neither who listens nor who could not keep up. Who has to know uses a request.
Beacons ride on the same socket, so they share the events' fate on purpose: a subscriber that cannot be reached with
events must not be told that its publisher is fine (LV-99, LV-100).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import trio
from attrs import frozen

from zlinkpy.errors import InvalidOperationError, ShuttingDownError
from zlinkpy.fanout.core import FanoutCore
from zlinkpy.fanout.status import PublisherStatus
from zlinkpy.link import BeaconSchedule
from zlinkpy.messages import Shape, validate_metadata
from zlinkpy.telemetry import catalogue
from zlinkpy.transport import Publisher, Transport
from zlinkpy.wire import BEACON_FRAMES, FanoutEvent, RuntimeState, check_topic, encode_fanout

# How long what was published last may take to leave at the end.
CLOSE_LINGER = 1.0

# Topics and packets are few; a publisher that makes up topics without end must not keep a head for each.
_HEADS_KEPT = 1024

K = TypeVar("K")


@frozen(kw_only=True)
class PublisherOptions:
    """What a publisher is told at its start and cannot change afterwards."""

    channel: str
    rid: str
    bind: str
    advertised: Callable[[str], str]
    """Bound endpoint -> what subscribers connect to."""
    security_identity: str = "anonymous"


class FanoutPublisher:
    """This process's publisher of one channel."""

    def __init__(self, core: FanoutCore, options: PublisherOptions) -> None:
        self._core = core
        self._options = options
        self.channel = options.channel
        self.rid = options.rid
        self.generation = core.entropy.generation()
        self.endpoint: str | None = None
        self.on_content: Callable[[], None] | None = None
        """Set by the host: what is published about this publisher may have changed."""
        self._socket: Publisher | None = None
        self._beacons: BeaconSchedule | None = None
        self._closed = False
        self._published = 0
        self._topics: dict[str, bytes] = {}
        self._heads: dict[tuple[str, str], bytes] = {}

    @property
    def runtime_state(self) -> RuntimeState:
        """The host's state, as the descriptor says it."""
        return self._core.runtime_state

    @property
    def security_identity(self) -> str:
        """Its public key, or what stands for none."""
        return self._options.security_identity

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self, transport: Transport) -> None:
        """Bind, and send the first beacon. Raises ConfigurationError when it cannot bind."""
        self._socket = await transport.publish(self._options.bind)
        self.endpoint = self._options.advertised(self._socket.endpoint)
        now = trio.current_time()
        self._beacons = BeaconSchedule(now)
        self.tick(now)
        self._core.timer.add(self)

    async def aclose(self) -> None:
        """Stop the beacons, flush, close the socket; bounded."""
        self._closed = True
        self._core.timer.remove(self)
        if self._socket is not None:
            await self._socket.aclose(linger=CLOSE_LINGER)

    def next_deadline(self) -> float | None:
        """Timer source: the next beacon."""
        return None if self._beacons is None or self._closed else self._beacons.next_deadline()

    def tick(self, now: float) -> None:
        """Timer source: send the beacon that is due."""
        if self._beacons is not None and self._socket is not None and self._beacons.tick(now):
            self._socket.publish(BEACON_FRAMES)

    # -- events --------------------------------------------------------------------------------------------------------

    def publish(self, topic: str | None, message: object, metadata: Mapping[str, str] | None = None) -> None:
        """Send one event to every subscriber that is connected now.

        Args:
            topic: 1..255 bytes of UTF-8; None: the packet's name.
            metadata: as for any message.

        Raises ValueError for the reserved topic (LV-86) and other arguments that cannot be sent, TypeError for what is
        no message, InvalidOperationError before the start, ShuttingDownError after the end.
        """
        shape = self._core.shapes.of(message)
        payload = shape.encode(message)
        if metadata is not None:
            validate_metadata(metadata)
        frames = self._frames(shape.packet_name if topic is None else topic, shape, payload, metadata)
        if self._closed:
            raise ShuttingDownError("this host is shutting down and publishes nothing more")
        if self._socket is None:
            raise InvalidOperationError("the host is not running yet; publish inside `async with host.run()`")
        self._socket.publish(frames)
        self._published += 1
        self._core.telemetry.counter(catalogue.FANOUT_PUBLISHED, channel_name=self.channel)

    def _frames(self, topic: str, shape: Shape, payload: bytes, metadata: Mapping[str, str] | None) -> list[bytes]:
        """The record. Its head depends on the packet alone, its topic frame on the topic."""
        if metadata:
            return encode_fanout(self._event(topic, shape, payload, metadata))
        packed = self._topics.get(topic)
        if packed is None:
            packed = check_topic(topic)
            _keep(self._topics, topic, packed)
        key = (shape.packet_name, shape.head.content_type)
        head = self._heads.get(key)
        if head is None:
            head = encode_fanout(self._event(topic, shape, b"", None))[1]
            _keep(self._heads, key, head)
        return [packed, head, payload]

    def _event(self, topic: str, shape: Shape, payload: bytes, metadata: Mapping[str, str] | None) -> FanoutEvent:
        return FanoutEvent(topic, self.channel, self.rid, shape.head, payload, metadata)

    # -- observation ---------------------------------------------------------------------------------------------------

    def status(self) -> PublisherStatus:
        """Where it stands."""
        return PublisherStatus(
            channel_name=self.channel,
            rid=self.rid,
            endpoint=self.endpoint,
            published=self._published,
            subscribers=self._socket.subscribers if self._socket is not None else 0,
        )


def _keep(cache: dict[K, bytes], key: K, value: bytes) -> None:
    if len(cache) >= _HEADS_KEPT:
        cache.clear()
    cache[key] = value
