"""The in-memory twin of the ZeroMQ transport, for simulation: the same interface, trio's clock, and faults on command.

It keeps what the layers above can observe: whole records in order, a bounded send queue, `opened` before the first
record, the `closed` that follows from a close and comes once, records that arrived before a disconnect handed over
first, behind a pause too, an accepted connection dropped that says nothing, fair rotations with the same bounds. It
has no handshake bytes and no limit on frames. See `memory_network` for latency and faults.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import TracebackType

import trio

from zlinkpy.transport.endpoints import Endpoint, parse_endpoint
from zlinkpy.transport.interface import DIAL_SECONDS, Connection, Listener, Sink, TransportStatistics
from zlinkpy.transport.memory_connection import MemoryConnection, MemoryListener
from zlinkpy.transport.memory_network import MemoryNetwork
from zlinkpy.transport.rotation import Budgets, Rotation


class MemoryTransport:
    """The transport of one simulated host; made by `MemoryNetwork.transport`."""

    def __init__(self, network: MemoryNetwork, name: str, budgets: Budgets | None = None) -> None:
        self.network = network
        self.name = name
        self._budgets = budgets or Budgets()
        self._connections: dict[MemoryConnection, None] = {}
        self._dialling: dict[MemoryConnection, None] = {}
        self._listeners: dict[MemoryListener, None] = {}
        self._rotation: Rotation[MemoryConnection] = Rotation()
        self._expected: dict[MemoryConnection, None] = {}
        self._chores: list[tuple[float, int, Callable[[], None]]] = []
        self._chore_numbers = count()
        self._changed = trio.Event()
        self._all_gone = trio.Event()
        self._running = False
        self._failed = False
        self._served = trio.Event()

    async def __aenter__(self) -> MemoryTransport:
        self.network.join(self)
        self._nursery_manager = trio.open_nursery()
        nursery = await self._nursery_manager.__aenter__()
        await nursery.start(self._serve)
        self._running = True
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

    async def listen(self, endpoint: str, accept: Callable[[Connection], Sink]) -> Listener:
        """Take the name `endpoint`; see `Transport.listen`."""
        await trio.lowlevel.checkpoint()
        self._must_be_running()
        listener = self.network.bind(
            parse_endpoint(endpoint, binding=True), partial(self._make_listener, accept=accept)
        )
        self._listeners[listener] = None
        self.network.note("listen", self.name, listener.endpoint)
        return listener

    def dial(self, endpoint: str, sink: Sink) -> Connection:
        """Start connecting; see `Transport.dial`."""
        self._must_be_running()
        parsed: Endpoint = parse_endpoint(endpoint, binding=False)
        connection = MemoryConnection(self, endpoint, sink, None)
        self.adopt(connection)
        self._dialling[connection] = None
        self.network.note("dial", self.name, connection.id, endpoint)
        self.network.dial(connection, parsed)
        self.at(trio.current_time() + DIAL_SECONDS, connection.dial_timed_out)
        self.look()
        return connection

    @property
    def receive_stage(self) -> None:
        """The twin serves itself: where no time passes there is none to save."""
        return None

    def statistics(self) -> TransportStatistics:
        """What is held now. `sockets` counts what would be sockets with ZeroMQ, less the monitors."""
        dialled = [each for each in self._connections if each.dialled]
        return TransportStatistics(
            listeners=len(self._listeners),
            dialled=len(dialled),
            accepted=sum(each.met for each in self._connections) - len(dialled),
            sockets=len(self._listeners) + len(dialled),
            posted=sum(each.posted for each in self._connections),
        )

    # -- for connections and the network

    def adopt(self, connection: MemoryConnection) -> None:
        self._connections[connection] = None
        self._rotation.add(connection)

    def forget(self, connection: MemoryConnection) -> None:
        self._connections.pop(connection, None)
        self._dialling.pop(connection, None)
        self._expected.pop(connection, None)
        self._rotation.discard(connection)
        self._all_gone.set()

    def forget_listener(self, listener: MemoryListener) -> None:
        self._listeners.pop(listener, None)

    def expect(self, connection: MemoryConnection) -> None:
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

    # -- leaving

    async def _close_everything(self) -> None:
        self._running = False
        for connection in list(self._connections):
            if connection.dialled:
                connection.close()
        for listener in list(self._listeners):
            await listener.aclose()
        while self._connections:
            self._all_gone = trio.Event()
            await self._all_gone.wait()

    def _make_listener(self, endpoint: str, *, accept: Callable[[Connection], Sink]) -> MemoryListener:
        return MemoryListener(self, endpoint, accept)

    def _must_be_running(self) -> None:
        if not self._running:
            raise RuntimeError("the transport is not running: use it inside `async with`")
