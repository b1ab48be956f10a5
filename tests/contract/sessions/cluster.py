"""Routers over shared in-memory back ends, with a handler that does what the test says and a log of store calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from zlinkpy.entropy import SeededEntropy
from zlinkpy.sessions.backends import SessionStores, memory_session_stores
from zlinkpy.sessions.core import HeldLease
from zlinkpy.sessions.errors import (
    IdempotencyStoreError,
    SessionBackendError,
    SessionInboxError,
    SessionLeaseError,
    SessionRecordError,
    SessionSignalError,
)
from zlinkpy.sessions.events import TurnEvent
from zlinkpy.sessions.futures import SubmitDisposition, TurnFuture
from zlinkpy.sessions.handlers import SessionHandler
from zlinkpy.sessions.memory_bus import MemorySignalBus
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.spi import SignalHandler, Subscription, TurnContext
from zlinkpy.sessions.types import (
    DispositionKind,
    InboundMessage,
    InterruptReason,
    LiveSessionStatus,
    RouterConfig,
    SessionSignal,
    SignalKind,
    TurnInput,
    TurnResult,
)


@define(eq=False)
class Turn:
    """One turn of a probe session: open until the test ends it, or an interrupt does."""

    session: Probe
    ctx: TurnContext
    end: trio.Event = field(factory=trio.Event)
    result: TurnResult | BaseException | None = None
    offered: list[TurnInput] = field(factory=list)
    unconsumed: list[TurnInput] = field(factory=list)

    @property
    def text(self) -> str:
        return self.ctx.input.text

    def finish(self, outcome: TurnResult | BaseException | str = "ok") -> None:
        self.result = TurnResult(True, outcome) if isinstance(outcome, str) else outcome
        self.end.set()


@define(eq=False)
class Probe:
    """A live session that tells the test everything."""

    node: str
    session_id: str
    world: World
    options: Mapping[str, Any]
    attributes: Mapping[str, Any]
    accepts_offers: bool = True
    turn: Turn | None = None
    inputs: list[str] = field(factory=list)
    turn_ids: list[str] = field(factory=list)
    interrupts: list[InterruptReason] = field(factory=list)
    closed: int = 0

    async def run_turn(self, ctx: TurnContext) -> TurnResult:
        turn = self.turn = Turn(self, ctx)
        self.inputs.append(ctx.input.text)
        self.turn_ids.append(ctx.turn_id)
        self.world.turns.append(turn)
        self.world.started.set()
        self.world.started = trio.Event()
        running = self.world.running.setdefault(self.session_id, [])
        running.append(self.node)
        self.world.most_at_once = max(self.world.most_at_once, len(running))
        try:
            await self.world.behave(turn)
            assert turn.result is not None
            if isinstance(turn.result, BaseException):
                raise turn.result
            return turn.result
        finally:
            running.remove(self.node)
            self.left = turn.unconsumed
            self.turn = None

    def interrupt(self, reason: InterruptReason, turn_id: str | None = None) -> None:
        self.interrupts.append(reason)
        if self.turn is not None and self.world.obedient:
            self.turn.finish(TurnResult(False, None, "interrupted", completion="interrupted"))

    left: list[TurnInput] = field(factory=list)

    def offer(self, input: TurnInput) -> bool:
        if self.turn is None or self.turn.end.is_set():
            return False
        self.turn.offered.append(input)
        return True

    def take_unconsumed(self) -> list[TurnInput]:
        left, self.left = self.left, []
        return left

    def status(self) -> LiveSessionStatus:
        return LiveSessionStatus("RUNNING" if self.turn else "IDLE")

    async def aclose(self) -> None:
        self.closed += 1
        self.world.log.append((self.node, "close", self.session_id))
        await self.world.closing(self)


FAMILIES: dict[str, type[SessionBackendError]] = {
    "lease": SessionLeaseError,
    "record": SessionRecordError,
    "inbox": SessionInboxError,
    "idem": IdempotencyStoreError,
}


class Recorded:
    """An SPI object with every call written into the world's log."""

    def __init__(self, inner: Any, node: str, world: World, rename: str) -> None:
        self._inner, self._node, self._world, self._family = inner, node, world, rename

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name.startswith("_"):
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            if self._node in self._world.dead:
                await trio.lowlevel.checkpoint()
                raise FAMILIES[self._family]("the node is dead")
            self._world.log.append((self._node, name, *arguments))
            hook = self._world.before_call
            if hook is not None:
                await hook(self._node, name, arguments)
            return await found(*arguments, **named)

        return call


class Bus:
    """A shared bus, as one node uses it, which the test can make lose or refuse signals."""

    def __init__(self, inner: MemorySignalBus, node: str, world: World) -> None:
        self._inner, self._node, self._world = inner, node, world

    async def subscribe(self, session_id: str, handler: SignalHandler, events: bool = True) -> Subscription:
        self._world.log.append((self._node, "subscribe", session_id))
        if self._world.bus_down:
            raise self._world.bus_down
        return await self._inner.subscribe(session_id, handler, events)

    async def publish(self, signal: SessionSignal) -> None:
        if self._node in self._world.dead:
            raise SessionSignalError("the node is dead")
        name = "publish" if signal.kind.is_control else "publish event"
        self._world.log.append((self._node, name, signal.kind, signal))
        if self._world.bus_down:
            raise self._world.bus_down
        if signal.kind not in self._world.lost_kinds:
            await self._inner.publish(signal)

    async def publish_all(self, signals: Any) -> None:
        for each in signals:
            await self.publish(each)


async def _until_told(turn: Turn) -> None:
    await turn.end.wait()


TURN_LIMIT = 120.0
"""Seconds within which every turn of a test starts."""


class World:
    """A cluster in one process."""

    def __init__(self, config: RouterConfig | None = None) -> None:
        self.config = config or RouterConfig()
        self.stores: SessionStores = memory_session_stores(
            primary_ttl=self.config.idempotency_primary_ttl, stale_retention=self.config.stale_retention
        )
        self.bus = MemorySignalBus()
        self.log: list[tuple[Any, ...]] = []
        self.turns: list[Turn] = []
        self.started = trio.Event()
        self.running: dict[str, list[str]] = {}
        self.most_at_once = 0
        self.obedient = True
        self.behave: Callable[[Turn], Any] = _until_told
        self.closing: Callable[[Probe], Any] = self.at_once
        self.before_call: Callable[[str, str, tuple[Any, ...]], Any] | None = None
        self.bus_down: Exception | None = None
        self.lost_kinds: set[SignalKind] = set()
        self.probes: list[Probe] = []
        self.purged: list[tuple[str, str]] = []
        self.dead: set[str] = set()
        self.open_error: Exception | None = None
        self._count = 0

    def router(self, node: str = "n1", *, refs: tuple[str, ...] = ("chat",), **given: Any) -> SessionRouter:
        world = self
        self._count += 1

        class Opens(SessionHandler):
            async def open(
                self, session_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]
            ) -> Probe:
                await trio.lowlevel.checkpoint()
                world.log.append((node, "open", session_id, self.ref, self.variant))
                if world.open_error is not None:
                    raise world.open_error
                probe = Probe(node, session_id, world, options, open_attributes)
                world.probes.append(probe)
                return probe

        handlers = [
            type("Handler", (Opens,), {}, ref=ref.split(":")[0], variant=(ref.split(":") + [None])[1]) for ref in refs
        ]  # type: ignore[call-arg, list-item]
        stores = self.stores
        arguments: dict[str, Any] = {
            "lease_store": Recorded(stores.leases, node, self, "lease"),
            "record_store": Recorded(stores.records, node, self, "record"),
            "inbox": Recorded(stores.inbox, node, self, "inbox"),
            "idempotency_store": Recorded(stores.idempotency, node, self, "idem"),
            "bus": Bus(self.bus, node, self),
            "purge_hooks": (lambda session_id: self.purged.append((node, session_id)),),
            "config": self.config,
            "entropy": SeededEntropy(f"{node}/{self._count}"),
            "node_id": node,
        }
        router = SessionRouter(*handlers, **{**arguments, **given})
        self._listen_in(router._core.events)
        return router

    @staticmethod
    def _listen_in(events: Any) -> None:
        """Note what the router tells its own subscribers."""
        emit, complete = events.emit, events.complete
        events.seen, events.completed = [], []

        def emitted(session_id: str, event: TurnEvent) -> None:
            events.seen.append((session_id, event))
            emit(session_id, event)

        def completed(session_id: str) -> None:
            events.completed.append(session_id)
            complete(session_id)

        events.emit, events.complete = emitted, completed

    @staticmethod
    async def at_once(_: Probe) -> None:
        await trio.lowlevel.checkpoint()

    def calls(self, *names: str, node: str | None = None) -> list[str]:
        """The names of logged calls, in order; only these, if any are named."""
        return [
            entry[1] for entry in self.log if (not names or entry[1] in names) and (node is None or entry[0] == node)
        ]

    def published(self, kind: SignalKind, node: str | None = None) -> list[SessionSignal]:
        return [
            entry[3]
            for entry in self.log
            if entry[1] in ("publish", "publish event") and entry[2] is kind and (node is None or entry[0] == node)
        ]

    async def turn(self, number: int = -1) -> Turn:
        """The turn with this number, counted from 0, once it has started; -1: the next one, or the last one running."""
        with trio.fail_after(TURN_LIMIT):
            while True:
                if number >= 0 and len(self.turns) > number:
                    return self.turns[number]
                if number < 0 and self.turns and not self.turns[-1].end.is_set():
                    return self.turns[-1]
                await self.started.wait()
        raise AssertionError("a turn that comes late is an error of its own")

    async def holder(self, session_id: str = "s") -> str | None:
        found = await self.stores.leases.find_holder(session_id)
        return found.holder_id if found is not None else None


@asynccontextmanager
async def cluster(world: World, *nodes: str, **given: Any) -> AsyncIterator[list[SessionRouter]]:
    """Routers of these names, running."""
    routers = [world.router(node, **given) for node in nodes]
    async with routers[0]:
        if len(routers) == 1:
            yield routers
            return
        async with routers[1]:
            if len(routers) == 2:
                yield routers
                return
            async with routers[2]:
                yield routers


async def submit(router: SessionRouter, text: str = "hello", session: str = "s", **more: Any) -> SubmitDisposition:
    more.setdefault("handler", "chat")
    return await router.submit(session, text, **more)


async def settled(disposition: SubmitDisposition, seconds: float = 1.0) -> TurnResult:
    with trio.fail_after(seconds):
        return await disposition.future.result()


async def error_of(disposition: SubmitDisposition, seconds: float = 1.0) -> BaseException:
    """The error that a future ends with, within some seconds."""
    with trio.fail_after(seconds):
        try:
            found = await disposition.future.result()
        except Exception as error:
            return error
    raise AssertionError(f"it succeeded: {found}")


async def held(world: World, router: SessionRouter, session: str = "s") -> None:
    found = await submit(router, session=session)
    turn = await world.turn()
    turn.ctx.state = b"kept"
    turn.finish()
    await settled(found)
    await wait_all_tasks_blocked()


async def at_once(turn: Turn) -> None:
    turn.finish(turn.text)


async def tell(world: World, kind: SignalKind, **payload: Any) -> None:
    await world.bus.publish(SessionSignal("s", kind, "n9", payload))
    await wait_all_tasks_blocked()


# -- release


def counting(*names: str) -> tuple[Any, list[str]]:
    """A metrics object with these hooks, and the list of their calls."""
    calls: list[str] = []
    hooks = {name: (lambda self, *_, name=name: calls.append(name)) for name in names}
    return type("Counting", (), hooks)(), calls


def kill(world: World, router: SessionRouter, node: str) -> None:
    """Nothing that the node says or asks gets out from here on, and nothing gets in."""
    world.dead.add(node)
    router._core.is_closed = True


# -- keys


def texts(world: World) -> list[str]:
    return [turn.text for turn in world.turns]


async def queued(world: World, key: str, text: str = "queued", **more: Any) -> None:
    """A message whose reservation waits without holder, as a submit elsewhere leaves it."""
    idempotency = world.stores.idempotency
    await idempotency.put_if_absent(key, "s", "h", f"x/{key}", 30)
    await idempotency.release_holder(key, f"x/{key}", 300)
    message = InboundMessage("s", "chat", text, idempotency_key=key, turn_id=f"t-{key}", epoch=f"x/{key}", **more)
    await world.stores.inbox.deliver(message)


def seen(router: SessionRouter) -> list[Any]:
    return router._core.events.seen  # type: ignore[attr-defined, no-any-return]


def wait_for(router: SessionRouter, turn_id: str, key: str | None = None) -> SubmitDisposition:
    """A forward of a submit that somebody else made."""
    future = TurnFuture()
    forward = router._forwards.register("s", turn_id, future, key=key, epoch=None)
    router._forwards.watch(forward)
    return SubmitDisposition(DispositionKind.FORWARDED, turn_id, future, "x")


async def ended_by_everybody(router: SessionRouter, lease: HeldLease, session: str = "s") -> None:
    """Everything that ends a lease, at once."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.release, session)
        nursery.start_soon(router._core.cache.evict_and_close, session)
        router._core.lease_lost(lease)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(router.close)
