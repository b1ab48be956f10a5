"""The in-memory twin of the ZeroMQ transport, for simulation: the same interface, trio's clock, and faults on command.

It keeps what the layers above can observe: whole records in order, a bounded send queue, `opened` before the first
record, the `closed` that follows from a close and comes once, records that arrived before a disconnect handed over
first, behind a pause too, an accepted connection dropped that says nothing, one that sends too large a frame dropped,
fair rotations with the same bounds. It has no handshake bytes. See `memory_network` for latency and faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import TracebackType
from typing import Any

import trio

from zlinkpy.security import RELOAD_SECONDS, HostKeys
from zlinkpy.transport.curve import Curve
from zlinkpy.transport.endpoints import parse_endpoint
from zlinkpy.transport.interface import (
    DIAL_SECONDS,
    Connection,
    Listener,
    Pattern,
    Publisher,
    Sink,
    Subscription,
    SubscriptionSink,
    TransportStatistics,
)
from zlinkpy.transport.memory_connection import MemoryConnection, MemoryListener
from zlinkpy.transport.memory_end import MemoryBound, MemoryEnd
from zlinkpy.transport.memory_network import MemoryNetwork
from zlinkpy.transport.memory_pubsub import MemoryPublisher, MemorySubscription
from zlinkpy.transport.rotation import Budgets, Rotation
from zlinkpy.transport.topics import check_topics


class MemoryTransport:
    """The transport of one simulated host; made by `MemoryNetwork.transport`."""

    def __init__(
        self,
        network: MemoryNetwork,
        name: str,
        budgets: Budgets | None = None,
        max_message_bytes: int | None = None,
    ) -> None:
        self.network = network
        self.name = name
        self._budgets = budgets or Budgets()
        self._max_message_bytes = max_message_bytes
        self._ends: dict[MemoryEnd[Any], None] = {}
        self._dialling: dict[MemoryEnd[Any], None] = {}
        self._bound: dict[MemoryBound[Any], None] = {}
        self._rotation: Rotation[MemoryEnd[Any]] = Rotation()
        self._expected: dict[MemoryEnd[Any], None] = {}
        self._chores: list[tuple[float, int, Callable[[], None]]] = []
        self._chore_numbers = count()
        self._changed = trio.Event()
        self._all_gone = trio.Event()
        self.curve = Curve(None)
        self._running = False
        self._failed = False
        self._served = trio.Event()

    def secure(self, keys: HostKeys) -> None:
        """See `Transport.secure`. Nothing is encrypted; who is let in is decided as with ZeroMQ."""
        if self._running:
            raise RuntimeError("a transport gets its keys before it is entered")
        self.curve = Curve(keys)

    async def __aenter__(self) -> MemoryTransport:
        self.network.join(self)
        self._nursery_manager = trio.open_nursery()
        nursery = await self._nursery_manager.__aenter__()
        await nursery.start(self._serve)
        self._running = True
        if self.curve.keys is not None:
            self._look_at_the_list(self.curve.keys)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with trio.CancelScope(shield=True):
                if not self._failed:
                    await self._close_everything()
                self._serving.cancel()
                await self._served.wait()
        finally:
            self._running = False
            self.network.leave(self)
            await self._nursery_manager.__aexit__(*((kind, error, trace) if self._failed else (None, None, None)))

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        """Run the receive stage until told: a cancelled owner still needs it to see its connections end."""
        self._serving = trio.CancelScope(shield=True)
        try:
            with self._serving:
                task_status.started()
                await self._run()
        except BaseException:
            self._failed = True
            raise
        finally:
            self._served.set()

    async def listen(
        self, endpoint: str, accept: Callable[[Connection], Sink], *, max_message_bytes: int | None = None
    ) -> Listener:
        """Take the name `endpoint`; see `Transport.listen`."""
        await trio.lowlevel.checkpoint()
        self._must_be_running()
        limit = self._limit(max_message_bytes)
        listener = self.network.bind(
            parse_endpoint(endpoint, binding=True), lambda text: MemoryListener(self, text, accept, limit)
        )
        self._bound[listener] = None
        self.network.note("listen", self.name, listener.endpoint)
        return listener

    def dial(
        self,
        endpoint: str,
        sink: Sink,
        *,
        pattern: Pattern = Pattern.ROUTER,
        max_message_bytes: int | None = None,
        server_key: str | None = None,
    ) -> Connection:
        """Start connecting; see `Transport.dial`. Both patterns are one here."""
        self._must_be_running()
        parse_endpoint(endpoint, binding=False)
        connection = MemoryConnection(self, endpoint, sink, None, self._limit(max_message_bytes))
        self._connect(connection, "dial", server_key)
        return connection

    async def publish(self, endpoint: str) -> Publisher:
        """Take the name `endpoint`; see `Transport.publish`."""
        await trio.lowlevel.checkpoint()
        self._must_be_running()
        publisher = self.network.bind(parse_endpoint(endpoint, binding=True), lambda text: MemoryPublisher(self, text))
        self._bound[publisher] = None
        self.network.note("publish", self.name, publisher.endpoint)
        return publisher

    def subscribe(
        self,
        endpoint: str,
        sink: SubscriptionSink,
        topics: Sequence[bytes],
        *,
        max_message_bytes: int | None = None,
        server_key: str | None = None,
    ) -> Subscription:
        """Start connecting; see `Transport.subscribe`."""
        self._must_be_running()
        check_topics(topics)
        parse_endpoint(endpoint, binding=False)
        subscription = MemorySubscription(self, endpoint, sink, topics, self._limit(max_message_bytes))
        self._connect(subscription, "subscribe", server_key)
        return subscription

    @property
    def receive_stage(self) -> None:
        """The twin serves itself: where no time passes there is none to save."""
        return None

    def statistics(self) -> TransportStatistics:
        """What is held now. `sockets` counts what would be sockets with ZeroMQ, less the monitors."""
        connections = [each for each in self._ends if isinstance(each, MemoryConnection)]
        dialled = sum(each.dialled for each in connections)
        subscriptions = sum(isinstance(each, MemorySubscription) for each in self._ends)
        return TransportStatistics(
            listeners=sum(isinstance(each, MemoryListener) for each in self._bound),
            dialled=dialled,
            accepted=sum(each.met for each in connections) - dialled,
            publishers=sum(isinstance(each, MemoryPublisher) for each in self._bound),
            subscriptions=subscriptions,
            sockets=len(self._bound) + dialled + subscriptions,
            posted=sum(each.posted for each in connections),
        )

    # -- for connections and the network

    def adopt(self, connection: MemoryEnd[Any]) -> None:
        self._ends[connection] = None
        self._rotation.add(connection)

    def forget(self, connection: MemoryEnd[Any]) -> None:
        self._ends.pop(connection, None)
        self._dialling.pop(connection, None)
        self._expected.pop(connection, None)
        self._rotation.discard(connection)
        self._all_gone.set()

    def forget_bound(self, bound: MemoryBound[Any]) -> None:
        self._bound.pop(bound, None)

    def expect(self, connection: MemoryEnd[Any]) -> None:
        """Something is on its way to `connection`."""
        self._expected[connection] = None
        self.look()

    def at(self, when: float, work: Callable[[], None]) -> None:
        """Run `work` in the receive stage at `when`."""
        heappush(self._chores, (when, next(self._chore_numbers), work))
        self.look()

    def look(self) -> None:
        """Something changed."""
        self._changed.set()

    # -- the receive stage

    async def _run(self) -> None:
        while True:
            self._changed = trio.Event()
            self._do_chores()
            due = self._bring_dials_on()
            self._rotate()
            due = min(due, self._next_due())
            if due <= trio.current_time():
                await trio.lowlevel.checkpoint()
            else:
                with trio.move_on_at(due):
                    await self._changed.wait()

    def _do_chores(self) -> None:
        now = trio.current_time()
        while self._chores and self._chores[0][0] <= now:
            heappop(self._chores)[2]()

    def _bring_dials_on(self) -> float:
        """Returns when the next attempt arrives; one that waits for the network is looked at when that changes."""
        arrivals = [self.network.try_dial(connection) for connection in list(self._dialling)]
        for connection in [each for each in self._dialling if not self.network.is_dialling(each)]:
            del self._dialling[connection]
        return min((when for when in arrivals if when is not None), default=float("inf"))

    def _rotate(self) -> None:
        now = trio.current_time()
        ready = [each for each in self._expected if (due := each.next_due()) is not None and due <= now]
        ends_at = now + self._budgets.seconds
        for connection in self._rotation.plan(ready):
            if connection.take_turn(self._budgets, trio.current_time()):
                self._rotation.stopped(connection)
            if trio.current_time() >= ends_at:
                self._rotation.stopped(connection)
                break

    def _next_due(self) -> float:
        """When a chore or a parcel is due."""
        for connection in [each for each in self._expected if not each.expects]:
            del self._expected[connection]
        due = [when for each in self._expected if (when := each.next_due()) is not None]
        if self._chores:
            due.append(self._chores[0][0])
        return min(due, default=float("inf"))

    def _look_at_the_list(self, keys: HostKeys) -> None:
        """As the authenticator's thread does with ZeroMQ."""
        if keys.refresh(trio.current_time()):
            for end in list(self._ends):
                # One that has said nothing yet is judged at its first record.
                if end.dialled or end.is_open:
                    end.check_key(self.curve.admits)
        if keys.allow_list is not None:
            self.at(trio.current_time() + RELOAD_SECONDS, partial(self._look_at_the_list, keys))

    # -- leaving

    async def _close_everything(self) -> None:
        self._running = False
        for connection in list(self._ends):
            if connection.dialled:
                connection.close()
        for bound in list(self._bound):
            await bound.aclose()
        while self._ends:
            self._all_gone = trio.Event()
            await self._all_gone.wait()

    def _limit(self, max_message_bytes: int | None) -> int | None:
        return self._max_message_bytes if max_message_bytes is None else max_message_bytes

    def _connect(self, end: MemoryEnd[Any], what: str, server_key: str | None) -> None:
        """Bring a new end on its way to the endpoint it was made for."""
        self.curve.check_dial(end.endpoint, server_key)
        end.proved(server_key)
        self.adopt(end)
        self._dialling[end] = None
        self.network.note(what, self.name, end.id, end.endpoint)
        self.network.dial(end, parse_endpoint(end.endpoint, binding=False))
        self.at(trio.current_time() + DIAL_SECONDS, end.dial_timed_out)
        self.look()

    def _must_be_running(self) -> None:
        if not self._running:
            raise RuntimeError("the transport is not running: use it inside `async with`")
