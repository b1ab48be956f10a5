"""Simulated publishers and subscriptions.

What a subscriber asks for travels like a record, so that delay, loss and partition concern it too. The publisher sorts
by topic and drops for each subscriber what its queue has no room for, the newest first, as a PUB socket does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zlinkpy.transport.interface import ConnectionClosed, Subscription, SubscriptionSink
from zlinkpy.transport.memory_end import MemoryBound, MemoryEnd
from zlinkpy.transport.topics import check_published, is_wanted

if TYPE_CHECKING:
    from zlinkpy.transport.memory_transport import MemoryTransport

PUBLICATIONS = "publications"


class MemorySubscription(MemoryEnd[Subscription]):
    """The subscriber's end of a `Wire`."""

    carries = PUBLICATIONS

    def __init__(
        self,
        transport: MemoryTransport,
        endpoint: str,
        sink: SubscriptionSink,
        topics: Sequence[bytes],
        max_message_bytes: int | None,
    ) -> None:
        super().__init__(transport, endpoint, sink, None, max_message_bytes)
        self._topics = list(topics)

    @property
    def _self(self) -> Subscription:
        return self

    def _open_now(self) -> None:
        if not self._closing and not self._done:
            assert self._wire is not None
            assert self._out is not None
            self._network.push(self._wire, self._out, self._topics)
        super()._open_now()


class PublishingEnd(MemoryEnd[None]):
    """The publisher's end of a `Wire`; nobody owns it."""

    carries = PUBLICATIONS

    def __init__(self, publisher: MemoryPublisher) -> None:
        super().__init__(publisher.transport, publisher.endpoint, None, publisher, None)
        self._topics: list[bytes] = []
        # From the start: it may have records to flush.
        self._open = True

    def offer(self, frames: Sequence[bytes]) -> None:
        """Put a record on its way if it is wanted and there is room."""
        if not self._open or not is_wanted(self._topics, frames):
            return
        assert self._wire is not None
        assert self._out is not None
        if self._out.has_room:
            self._network.push(self._wire, self._out, list(frames))
        else:
            self._network.note("dropped", self._number)

    def _receive(self, frames: list[bytes]) -> None:
        self._topics += frames


class MemoryPublisher(MemoryBound[PublishingEnd]):
    """A bound name that publishes."""

    carries = PUBLICATIONS

    def __init__(self, transport: MemoryTransport, endpoint: str) -> None:
        super().__init__(transport, endpoint)
        self._published = 0

    @property
    def published(self) -> int:
        return self._published

    @property
    def subscribers(self) -> int:
        return len(self._ends)

    def __repr__(self) -> str:
        return f"<MemoryPublisher {self._endpoint} subscribers={len(self._ends)}>"

    def publish(self, frames: Sequence[bytes]) -> None:
        if self._closing:
            raise ConnectionClosed(f"{self!r} takes no records")
        check_published(frames)
        for end in self._ends:
            end.offer(frames)
        self._published += 1

    def _make_end(self) -> PublishingEnd:
        return PublishingEnd(self)

    async def aclose(self, *, linger: float = 0.0) -> None:
        await self._close_all(linger=linger)
