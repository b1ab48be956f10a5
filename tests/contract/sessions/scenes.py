"""What the tests of forwards, losses and endings share: nodes that are cut off, times of calls, counted metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Bus, Probe, Recorded, Turn, World, settled, submit
from zlinkpy.sessions.errors import (
    IdempotencyStoreError,
    SessionBackendError,
    SessionInboxError,
    SessionLeaseError,
    SessionRecordError,
    SessionSignalError,
)
from zlinkpy.sessions.futures import SubmitDisposition, TurnFuture
from zlinkpy.sessions.input_hash import input_hash
from zlinkpy.sessions.metrics import HOOKS
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.spi import SignalHandler, Subscription
from zlinkpy.sessions.types import (
    IdempotencyEntry,
    InboundMessage,
    RouterConfig,
    SessionSignal,
    SignalKind,
    TurnInput,
)

_FAMILIES: dict[str, type[SessionBackendError]] = {
    **dict.fromkeys(("try_acquire", "find_holder", "extend", "release"), SessionLeaseError),
    **dict.fromkeys(("provision", "load", "commit", "delete"), SessionRecordError),
    **dict.fromkeys(("deliver", "collect", "is_empty", "purge", "withdraw", "scan_pending"), SessionInboxError),
}
Hook = Callable[[str, str, tuple[Any, ...]], Any]


def store_error(name: str, *, applied: str = "unknown") -> SessionBackendError:
    """What a store method of this name raises."""
    return _FAMILIES.get(name, IdempotencyStoreError)("out of reach", applied=applied)  # type: ignore[arg-type]


class _Ended:
    """A subscription whose end is logged."""

    def __init__(self, inner: Subscription, log: Callable[[], None]) -> None:
        self._inner, self._log = inner, log

    async def aclose(self) -> None:
        self._log()
        await self._inner.aclose()


class SceneBus(Bus):
    """One node's bus, which can be cut, and which hears events without a subscriber where the scene asks for it."""

    def __init__(self, scene: Scene, node: str) -> None:
        super().__init__(scene.bus, node, scene)
        self._scene = scene

    async def subscribe(self, session_id: str, handler: SignalHandler, events: bool = True) -> Subscription:
        self._check()

        def received(signal: SessionSignal) -> None:
            if self._node not in self._scene.cut | self._scene.deaf:
                handler(signal)

        inner = await super().subscribe(session_id, received, events or self._scene.hears_events)
        return _Ended(inner, lambda: self._scene.log.append((self._node, "unsubscribe", session_id)))

    async def publish(self, signal: SessionSignal) -> None:
        self._scene.times.append((trio.current_time(), self._node, f"publish {signal.kind.value}"))
        self._check()
        await super().publish(signal)

    def _check(self) -> None:
        if self._node in self._scene.cut | self._scene.bus_cut:
            raise SessionSignalError("out of reach")


class Tap:
    """The event side of a router, with everything that passes in the scene's log."""

    def __init__(self, inner: Any, node: str, scene: Scene) -> None:
        self._inner, self._node, self._scene = inner, node, scene

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def emit(self, session_id: str, event: Any) -> None:
        self._scene.log.append((self._node, "emit", session_id, event))
        if self._scene.sink_error is not None:
            raise self._scene.sink_error
        self._inner.emit(session_id, event)

    async def publish(self, session_id: str, event: Any) -> None:
        self._scene.log.append((self._node, "rail", session_id, event))
        await self._inner.publish(session_id, event)

    def complete(self, session_id: str) -> None:
        self._scene.log.append((self._node, "complete", session_id))
        self._inner.complete(session_id)

    def complete_all(self) -> None:
        self._scene.log.append((self._node, "complete all"))
        self._inner.complete_all()


class Scene(World):
    """A cluster whose nodes can lose their stores and their bus, which looks the same to the others as dying."""

    def __init__(self, config: RouterConfig | None = None) -> None:
        super().__init__(config)
        self.cut: set[str] = set()
        """Nodes that reach neither stores nor bus."""
        self.bus_cut: set[str] = set()
        """Nodes whose signals are refused."""
        self.deaf: set[str] = set()
        """Nodes that hear no signal."""
        self.hears_events = False
        self.sink_error: Exception | None = None
        self.times: list[tuple[float, str, str]] = []
        self.hooks: list[Hook] = []
        self.counted: dict[str, Counted] = {}
        self.before_call = self._before

    async def _before(self, node: str, name: str, arguments: tuple[Any, ...]) -> None:
        self.times.append((trio.current_time(), node, name))
        if node in self.cut:
            await trio.lowlevel.checkpoint()
            raise store_error(name)
        for hook in list(self.hooks):
            await hook(node, name, arguments)

    def router(self, node: str = "n1", *, refs: tuple[str, ...] = ("chat",), **given: Any) -> SessionRouter:
        given.setdefault("bus", SceneBus(self, node))
        given.setdefault("metrics", self.counted.setdefault(node, Counted()))
        given.setdefault("purge_hooks", (lambda session_id: self._hook_called(node, session_id),))
        made = super().router(node, refs=refs, **given)
        made._core.events = Tap(made._core.events, node, self)
        return made

    def _hook_called(self, node: str, session_id: str) -> None:
        self.purged.append((node, session_id))
        self.log.append((node, "purge hook", session_id))

    def own(self, store: Any, node: str) -> Any:
        """A store of the test's choice with the log and the cuts of the others."""
        return Recorded(store, node, self, "own")

    def at(self, name: str, node: str | None = None) -> list[float]:
        """When calls of this name were made."""
        return [when for when, by, what in self.times if what == name and node in (None, by)]

    def events(self, kind: str = "emit", node: str | None = None) -> list[Any]:
        """Events that passed, in order; `kind` is "emit" (here) or "rail" (to others)."""
        return [entry[3] for entry in self.log if entry[1] == kind and node in (None, entry[0])]

    async def fail_calls(self, node: str, name: str, *arguments: Any, error: Exception | None = None) -> Hook:
        """Have a node's calls of this name raise, those with these first arguments if any are given."""

        async def refuse(by: str, what: str, given: tuple[Any, ...]) -> None:
            if (by, what) == (node, name) and given[: len(arguments)] == arguments:
                await trio.lowlevel.checkpoint()
                raise error or store_error(name)

        await trio.lowlevel.checkpoint()
        self.hooks.append(refuse)
        return refuse

    async def say(
        self,
        kind: SignalKind,
        payload: Mapping[str, Any] | None = None,
        session: str = "s",
        origin: str = "n9",
    ) -> None:
        """A signal of a node outside the test."""
        await self.bus.publish(SessionSignal(session, kind, origin, payload or {}, "elsewhere"))
        await wait_all_tasks_blocked()

    async def queue(self, text: str, *, session: str = "s", key: str | None = None, **more: Any) -> str:
        """A message that somebody delivered who is gone: no signal, nobody waits. Its inbox id."""
        epoch = None
        if key is not None:
            epoch = await self.reserve(key, text, session)
            await self.stores.idempotency.release_holder(key, epoch, self.config.idempotency_forward_ttl)
        message = InboundMessage(session, "chat", text, idempotency_key=key, epoch=epoch, **more)
        return await self.stores.inbox.deliver(message)

    async def reserve(self, key: str, text: str = "hello", session: str = "s", holder: str = "n9/gone/1") -> str:
        """A reservation of an attempt outside the test, held by it. The holder's id."""
        await self.stores.idempotency.put_if_absent(
            key, session, input_hash(TurnInput(text)), holder, self.config.idempotency_secondary_ttl
        )
        return holder

    async def entry(self, key: str = "k") -> IdempotencyEntry | None:
        return await self.stores.idempotency.find(key)


class Counted:
    """Metrics that count."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        for name in HOOKS:
            setattr(self, name, lambda *arguments, name=name: self.calls.append((name, arguments)))

    def count(self, name: str) -> int:
        return len(self.of(name))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


@asynccontextmanager
async def nodes(scene: Scene, *names: str, **given: Any) -> AsyncIterator[list[SessionRouter]]:
    """Routers of these names, running."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(scene.router(name, **given)) for name in names]


async def one_turn(scene: World, router: SessionRouter, session: str = "s", **more: Any) -> Probe:
    """Run a turn from start to end: afterwards the router holds the session and is idle."""
    number = len(scene.turns)
    submitted = await submit(router, "before", session, **more)
    turn = await scene.turn(number)
    turn.finish()
    await settled(submitted)
    await wait_all_tasks_blocked()
    return turn.session


async def busy_turn(
    scene: World, router: SessionRouter, session: str = "s", **more: Any
) -> tuple[SubmitDisposition, Turn]:
    """Start a turn that runs until the test ends it."""
    number = len(scene.turns)
    submitted = await submit(router, "busy", session, **more)
    return submitted, await scene.turn(number)


def on_end(future: TurnFuture, call: Callable[[], object]) -> None:
    """Do something in the future's callback."""

    def called(_: TurnFuture) -> None:
        call()

    future.add_done_callback(called)


def ends_at(disposition: SubmitDisposition) -> list[float]:
    """A list that gets the time when the future ends."""
    found: list[float] = []
    on_end(disposition.future, lambda: found.append(trio.current_time()))
    return found


async def stubborn(turn: Turn) -> None:
    """A turn that cannot be stopped, not even by cancelling it: it blocks in a thread."""
    with trio.CancelScope(shield=True):
        await turn.end.wait()
