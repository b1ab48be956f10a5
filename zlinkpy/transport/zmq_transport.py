"""ZeroMQ behind the transport interface.

`async with ZmqTransport(...)` runs three tasks whatever the number of connections: the receive stage, its looker and
one timer. On exit every socket is closed, each close is observed, and the context is terminated on a thread with a
limit; what cannot be closed in that time is reported as an error, because it would keep the process alive.

Rejected: a context shared with the application. `term()` would then wait for sockets that are none of ours. A test may
still give one.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, TypeVar

import trio
import zmq

from zlinkpy.entropy import Entropy
from zlinkpy.errors import ConfigurationError, InternalFailureError
from zlinkpy.security import HostKeys
from zlinkpy.transport.authenticator import Authenticator
from zlinkpy.transport.context import make_context
from zlinkpy.transport.curve import Curve
from zlinkpy.transport.endpoints import parse_endpoint
from zlinkpy.transport.greeting import mechanism_at
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
from zlinkpy.transport.readiness import Readiness, make_readiness
from zlinkpy.transport.real_time import within
from zlinkpy.transport.receive_stage import ReceiveStage
from zlinkpy.transport.rotation import Budgets
from zlinkpy.transport.sockets import QUEUE_RECORDS, SocketFactory, SocketOptions
from zlinkpy.transport.topics import TOPIC_BYTES, check_topics
from zlinkpy.transport.zmq_bound import CLOSE_SECONDS, Binding, BoundSocket
from zlinkpy.transport.zmq_dialled import DealerConnection, Dial, DialledConnection
from zlinkpy.transport.zmq_listener import ZmqListener
from zlinkpy.transport.zmq_physical import Physical
from zlinkpy.transport.zmq_pubsub import ZmqPublisher, ZmqSubscription

HeldT = TypeVar("HeldT")

# Real seconds for libzmq to end its threads once every socket is closed and every linger is over.
TERM_SECONDS = 10.0

# What a subscriber sends: a topic, and what ZMTP puts around it.
_SUBSCRIPTION_BYTES = TOPIC_BYTES + 64

_BIND_FIXES = {
    errno.EADDRINUSE: "the port is taken: stop the other process, choose another port, or bind port 0",
    errno.EADDRNOTAVAIL: "the address is not one of this machine: bind 0.0.0.0 or a local address",
    errno.EACCES: "this user may not bind it: choose a port above 1023 or another path",
    errno.ENOENT: "the directory of the path does not exist: create it",
    errno.ENODEV: "no such network interface: bind an address of this machine",
    errno.EAGAIN: "the host name does not resolve: bind an address of this machine",
    errno.EINVAL: "libzmq does not understand it: bind an address of this machine",
    errno.ENAMETOOLONG: "the path is longer than a socket path may be: choose a shorter one",
}


class ZmqTransport:
    """The transport of production. One per host.

    Args:
        entropy: where connection aliases come from.
        max_message_bytes: a larger frame drops its connection before it is allocated. None: no cap.
        send_queue, receive_queue: records per connection that wait in libzmq, each way.
        handshake_seconds: what one transport handshake may take, in real seconds.
        budgets: bounds of a turn; the defaults are those of the interface.
        context: for tests that look at it afterwards; it is not terminated here.
    """

    def __init__(
        self,
        *,
        entropy: Entropy,
        max_message_bytes: int | None = None,
        send_queue: int = QUEUE_RECORDS,
        receive_queue: int = QUEUE_RECORDS,
        handshake_seconds: float = DIAL_SECONDS,
        budgets: Budgets | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self._entropy = entropy
        self._options = SocketOptions(
            max_message_bytes=max_message_bytes,
            send_queue=send_queue,
            receive_queue=receive_queue,
            handshake_seconds=handshake_seconds,
        )
        self._budgets = budgets or Budgets()
        self._own_context = context is None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = context
        self._curve = Curve(None)
        self._authenticator: Authenticator | None = None
        self._numbers = count(1)
        self._dialled: dict[DialledConnection, None] = {}
        self._subscriptions: dict[ZmqSubscription, None] = {}
        self._listeners: dict[ZmqListener, None] = {}
        self._publishers: dict[ZmqPublisher, None] = {}
        self._all_gone = threading.Event()
        self._closing = False
        self._entered = False
        self._failed = False
        self._served = trio.Event()

    def secure(self, keys: HostKeys) -> None:
        """Use CURVE on every socket; see `Transport.secure`."""
        if self._entered:
            raise RuntimeError("a transport gets its keys before it is entered")
        self._curve = Curve(keys)

    async def __aenter__(self) -> ZmqTransport:
        if self._entered:
            raise RuntimeError("a ZmqTransport is entered once")
        self._entered = True
        if self._context is None:
            self._context = make_context()
        self._sockets = SocketFactory(self._context, self._options)
        if self._curve.keys is not None:
            self._authenticator = Authenticator(
                self._curve.keys, make=self._sockets.plain, close=self._sockets.close, removed=self._keys_removed
            )
        self._nursery_manager = trio.open_nursery()
        nursery = await self._nursery_manager.__aenter__()
        # Shielded: `start` of a cancelled owner drops `started()`, and would then wait for these tasks for ever.
        with trio.CancelScope(shield=True):
            await nursery.start(self._serve)
        if self._authenticator is not None:
            self._authenticator.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with trio.CancelScope(shield=True):
                try:
                    if not self._failed:
                        await self._close_everything()
                finally:
                    self._serving.cancel()
                    await self._served.wait()
        finally:
            self._closing = True
            try:
                # A failure of a task of ours comes out here. An error of the body passes by as it is, in no group.
                details = (kind, error, trace) if self._failed else (None, None, None)
                await self._nursery_manager.__aexit__(*details)
            finally:
                with trio.CancelScope(shield=True):
                    await self._release()

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        """Run the three tasks until told: a cancelled owner still needs them to see its connections end."""
        self._serving = trio.CancelScope(shield=True)
        try:
            with self._serving:
                async with trio.open_nursery() as nursery:
                    self._helpers = nursery
                    self._readiness: Readiness[Callable[[], None]] = make_readiness(nursery)
                    self._stage = ReceiveStage(self._readiness, self._budgets)
                    nursery.start_soon(self._stage.run, name="receive stage")
                    nursery.start_soon(self._stage.run_looker, name="receive stage looker")
                    nursery.start_soon(self._stage.run_timer, name="transport timer")
                    task_status.started()
        except BaseException:
            self._failed = True
            raise
        finally:
            self._served.set()

    async def listen(
        self, endpoint: str, accept: Callable[[Connection], Sink], *, max_message_bytes: int | None = None
    ) -> Listener:
        """Bind `endpoint`; see `Transport.listen`."""
        await trio.lowlevel.checkpoint()
        binding = self._bind(zmq.ROUTER, endpoint, max_message_bytes)
        return self._keep(
            self._listeners,
            lambda forget: ZmqListener(binding, accept=accept, next_number=self._numbers.__next__, forget=forget),
        )

    def dial(
        self,
        endpoint: str,
        sink: Sink,
        *,
        pattern: Pattern = Pattern.ROUTER,
        max_message_bytes: int | None = None,
        server_key: str | None = None,
    ) -> Connection:
        """Start connecting; see `Transport.dial`."""
        number = next(self._numbers)
        if pattern is Pattern.DEALER:
            dial = self._connect(zmq.DEALER, endpoint, number, max_message_bytes, server_key)
            return self._keep(self._dialled, lambda forget: DealerConnection(dial, sink=sink, forget=forget))
        # Never used before, and not a name: ids that libzmq makes up begin with a zero byte.
        alias = b"d" + number.to_bytes(8, "big") + self._entropy.token(4)
        dial = self._connect(
            zmq.ROUTER, endpoint, number, max_message_bytes, server_key, (zmq.CONNECT_ROUTING_ID, alias)
        )
        return self._keep(self._dialled, lambda forget: DialledConnection(dial, alias=alias, sink=sink, forget=forget))

    async def publish(self, endpoint: str) -> Publisher:
        """Bind `endpoint`; see `Transport.publish`."""
        await trio.lowlevel.checkpoint()
        binding = self._bind(zmq.PUB, endpoint, _SUBSCRIPTION_BYTES)
        return self._keep(self._publishers, lambda forget: ZmqPublisher(binding, forget))

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
        check_topics(topics)
        subscribes = [(zmq.SUBSCRIBE, topic) for topic in topics]
        dial = self._connect(zmq.SUB, endpoint, next(self._numbers), max_message_bytes, server_key, *subscribes)
        return self._keep(self._subscriptions, lambda forget: ZmqSubscription(dial, sink=sink, forget=forget))

    @property
    def receive_stage(self) -> ReceiveStage:
        """What serves the sockets; see `Transport.receive_stage`."""
        self._must_be_running()
        return self._stage

    def statistics(self) -> TransportStatistics:
        """What is held now. `sockets` counts every ZeroMQ socket, the monitors included."""
        return TransportStatistics(
            listeners=len(self._listeners),
            dialled=len(self._dialled),
            accepted=sum(listener.accepted for listener in self._listeners),
            publishers=len(self._publishers),
            subscriptions=len(self._subscriptions),
            sockets=self._sockets.open_count if self._entered else 0,
            posted=sum(each.posted for each in self._dialled) + sum(each.posted for each in self._listeners),
        )

    def _bind(self, kind: int, endpoint: str, max_message_bytes: int | None) -> Binding:
        self._must_be_running()
        parsed = parse_endpoint(endpoint, binding=True)
        socket, monitor = self._sockets.monitored(kind, ipv6=parsed.is_ipv6, max_message_bytes=max_message_bytes)
        try:
            self._curve.prepare_server(socket)
            socket.bind(str(parsed) if parsed.port or parsed.scheme == "ipc" else f"{str(parsed)[:-1]}*")
        except zmq.ZMQError as error:
            self._sockets.close(socket)
            self._sockets.close(monitor.socket)
            number = error.errno if error.errno is not None else 0
            fix = _BIND_FIXES.get(number, f"{zmq.strerror(number)}")
            raise ConfigurationError(f"cannot listen on endpoint {endpoint!r}: {fix}") from error
        bound = socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        return Binding(
            stage=self._stage,
            sockets=self._sockets,
            socket=socket,
            monitor=monitor,
            endpoint=bound,
            curve=self._curve,
        )

    def _connect(
        self,
        kind: int,
        endpoint: str,
        number: int,
        max_message_bytes: int | None,
        server_key: str | None,
        *options: tuple[int, bytes],
    ) -> Dial:
        self._must_be_running()
        parsed = parse_endpoint(endpoint, binding=False)
        self._curve.check_dial(endpoint, server_key)
        try:
            socket, monitor = self._sockets.monitored(kind, ipv6=parsed.is_ipv6, max_message_bytes=max_message_bytes)
            try:
                self._curve.prepare_client(socket, server_key)
                for option, value in options:
                    socket.set(option, value)
                socket.connect(str(parsed))
            except BaseException:
                self._sockets.close(socket)
                self._sockets.close(monitor.socket)
                raise
        except zmq.ZMQError as error:
            raise ConfigurationError(f"endpoint {endpoint!r} cannot be dialled: {error.strerror}") from error
        return Dial(
            stage=self._stage,
            sockets=self._sockets,
            socket=socket,
            monitor=monitor,
            number=number,
            endpoint=endpoint,
            handshake=self._curve.handshake(server_key),
            ask=self._ask_mechanism,
        )

    def _ask_mechanism(self, endpoint: str, tell: Callable[[str | None], None]) -> None:
        async def ask() -> None:
            mechanism = await mechanism_at(endpoint)
            self._stage.chore(partial(tell, mechanism))

        self._helpers.start_soon(ask, name="asking for a mechanism")

    def _keys_removed(self) -> None:
        """End the connections with those who were taken off the allow-list."""
        dialled: list[Physical[Any]] = [*self._dialled, *self._subscriptions]
        for each in dialled:
            each.check_key(self._curve.admits)
        bound: list[BoundSocket] = [*self._listeners, *self._publishers]
        for one in bound:
            one.keys_removed()

    def _must_be_running(self) -> None:
        if not self._entered or self._closing:
            raise RuntimeError("the transport is not running: use it inside `async with`")

    # -- leaving

    async def _close_everything(self) -> None:
        """Close what is open, wait for what lingers, and observe every end."""
        self._closing = True
        connecting: list[Physical[Any]] = [*self._dialled, *self._subscriptions]
        for each in connecting:
            each.close()
        async with trio.open_nursery() as nursery:
            bound: list[BoundSocket] = [*self._listeners, *self._publishers]
            for one in bound:
                nursery.start_soon(one.aclose)
        linger = max((connection.linger_left for connection in self._dialled), default=0.0)
        if self._held() and not await within(linger + CLOSE_SECONDS, self._all_gone):
            waited_for = ", ".join(map(repr, self._held()))
            raise InternalFailureError(f"the transport did not close in time; it still waited for {waited_for}")

    async def _release(self) -> None:
        """Give back what is left when no task runs any more."""
        self._readiness.close()
        if self._authenticator is not None:
            await self._authenticator.stop()
        self._sockets.close_all()
        if self._own_context:
            await self._terminate()

    async def _terminate(self) -> None:
        context = self._context
        assert context is not None
        done = threading.Event()

        def terminate() -> None:
            context.term()
            done.set()

        # Not a thread of trio's: the loop would wait for it at its end.
        threading.Thread(target=terminate, name="zmq context term", daemon=True).start()
        if not await within(TERM_SECONDS, done):
            raise InternalFailureError(
                f"the ZeroMQ context did not terminate within {TERM_SECONDS:g} s: one of its sockets is still open"
            )

    def _held(self) -> list[object]:
        return [*self._dialled, *self._subscriptions, *self._listeners, *self._publishers]

    def _keep(self, held: dict[HeldT, None], make: Callable[[Callable[[], None]], HeldT]) -> HeldT:
        """Make what this transport holds until it is closed; it is given what it calls then."""

        def forget() -> None:
            held.pop(made, None)
            if self._closing and not self._held():
                self._all_gone.set()

        made = make(forget)
        held[made] = None
        return made
