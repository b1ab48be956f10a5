"""A simulated cluster of session routers: nodes that die and come back, stores that fail before and after the write,
links that are cut, signals that are late, doubled or lost; and a record of everything that counts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import trio
from attrs import define, field

from zlinkpy.entropy import SeededEntropy
from zlinkpy.sessions.backends import SessionStores, memory_session_stores
from zlinkpy.sessions.errors import (
    IdempotencyStoreError,
    SessionBackendError,
    SessionInboxError,
    SessionLeaseError,
    SessionRecordError,
    SessionSignalError,
)
from zlinkpy.sessions.handlers import SessionHandler
from zlinkpy.sessions.memory_bus import MemorySignalBus
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.spi import SignalHandler, Subscription, TurnContext
from zlinkpy.sessions.types import (
    InterruptReason,
    LiveSessionStatus,
    RouterConfig,
    SessionSignal,
    SignalKind,
    TurnInput,
    TurnResult,
    Write,
)

NAMES = ("n1", "n2", "n3")
SESSIONS = ("a", "b", "c")
CONFIG = RouterConfig(
    idle_ttl=12.0,
    max_cached_sessions=2,
    lock_lease=6.0,
    lock_extend_interval=2.0,
    holder_loss_sweep_interval=3.0,
    cache_sweep_interval=4.0,
    idempotency_secondary_ttl=6.0,
    idempotency_forward_ttl=60.0,
    release_interrupt_timeout=2.0,
    orphan_scan_interval=5.0,
    orphan_age=8.0,
    stale_retention=60.0,
)
"""A lost holder is found within 6 + 3 s, an orphan within 8 + 5 s after its lease ended."""


@define(eq=False)
class Run:
    """One execution of one input."""

    node: Node
    session_id: str
    turn_id: str
    text: str
    token: int | None
    began: float
    ended: float | None = None
    is_interrupted: bool = False
    result: str = ""
    """"ok", "failed", "stopped", or "" while it runs."""


@define(eq=False)
class Submitted:
    """One submit that returned, and what became of its future."""

    node: Node
    session_id: str
    turn_id: str
    text: str
    key: str | None
    at: float
    is_forwarded: bool
    is_attached: bool
    settled_at: float | None = None
    settlements: int = 0
    error: BaseException | None = None
    answer: str | None = None


@define(eq=False)
class Node:
    """One life of one node."""

    name: str
    world: World
    router: SessionRouter | None = None
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    is_dead: bool = False
    cut_until: float = -1.0
    cut_after_write: bool = False
    collected: set[str] = field(factory=set)
    """Turn ids of messages that this life took out of an inbox."""


class Link:
    """A store as one life of a node reaches it."""

    def __init__(self, inner: Any, node: Node, family: type[SessionBackendError]) -> None:
        self._inner, self._node, self._family = inner, node, family

    def __getattr__(self, name: str) -> Any:
        # What the store lacks, the link lacks: renewals run on the loop.
        getattr(self._inner, name)
        return lambda *arguments, **named: self._call(name, arguments, named)

    async def _call(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        node, world = self._node, self._node.world
        if node.is_dead:
            await trio.lowlevel.checkpoint()
            raise self._family("the node is dead", applied="unknown")
        chance, method = world.chance, getattr(self._inner, name)
        trouble = chance.random() if world.is_troubled else 1.0
        is_cut = trio.current_time() < node.cut_until
        if trouble < 0.03 or (is_cut and not node.cut_after_write):
            world.reached[f"before {name}"] += 1
            await trio.sleep(chance.choice((0.0, 0.1, 1.0)))
            raise self._family(f"{name} was not done", applied=chance.choice(("no", "unknown")))
        if trouble < 0.06:
            await trio.sleep(chance.choice((0.05, 0.5, 2.0)))
            world.reached["slow"] += 1
        answer = await method(*arguments, **named)
        world.applied(node, name, arguments, answer)
        if trouble > 0.97 and world.is_troubled or is_cut or node.is_dead:
            world.reached[f"after {name}"] += 1
            raise self._family(f"the answer of {name} was lost", applied="unknown")
        return answer


class SimulatedBus:
    """The bus as one life of a node hears it."""

    def __init__(self, inner: MemorySignalBus, node: Node) -> None:
        self._inner, self._node = inner, node

    async def subscribe(self, session_id: str, handler: SignalHandler, events: bool = True) -> Subscription:
        return await self._inner.subscribe(session_id, lambda signal: self._hear(signal, handler), events)

    async def publish(self, signal: SessionSignal) -> None:
        world = self._node.world
        if signal.kind is SignalKind.TURN_RESULT:
            # Said, whether anybody hears it or not.
            world.announced.add(str(signal.payload.get("turn")))
            if signal.payload["outcome"] != "RESULT":
                world.failed.add(str(signal.payload.get("turn")))
        if self._node.is_dead or (world.is_troubled and world.chance.random() < 0.03):
            await trio.lowlevel.checkpoint()
            raise SessionSignalError("the bus does not answer", applied="unknown")
        world.reached[signal.kind.value] += 1
        await self._inner.publish(signal)

    async def publish_all(self, signals: Any) -> None:
        for each in signals:
            await self.publish(each)

    def _hear(self, signal: SessionSignal, handler: SignalHandler) -> None:
        world, chance = self._node.world, self._node.world.chance
        if self._node.is_dead:
            return
        fate = chance.random() if world.is_troubled else 1.0
        if fate < 0.08:
            world.reached["lost signal"] += 1
            return
        if fate < 0.3:
            world.reached["late signal"] += 1
            world.nursery.start_soon(self._later, chance.choice((0.1, 1.0, 5.0)), signal, handler)
            return
        if fate < 0.4:
            world.reached["doubled signal"] += 1
            handler(signal)
        handler(signal)

    async def _later(self, delay: float, signal: SessionSignal, handler: SignalHandler) -> None:
        await trio.sleep(delay)
        if not self._node.is_dead:
            handler(signal)


@define(eq=False)
class Worker:
    """A live session: its turns take a while, fail now and then, and mostly stop when told to."""

    node: Node
    session_id: str
    accepts_offers: bool = True
    _stop: trio.Event | None = None
    _offered: list[TurnInput] = field(factory=list)
    _last: str = ""
    _run: Run | None = None

    async def run_turn(self, ctx: TurnContext) -> TurnResult:
        world, chance = self.node.world, self.node.world.chance
        text = ctx.input.text
        run = self._run = world.began(self, ctx)
        self._last = text
        self._stop = trio.Event()
        try:
            with trio.move_on_after(chance.choice((0.0, 0.2, 1.0, 3.0, 8.0))):
                await self._stop.wait()
                if chance.random() < 0.3:
                    world.reached["interrupt ignored"] += 1
                    await trio.sleep_forever()
                run.result = "stopped"
            await trio.lowlevel.checkpoint()
            if not run.result:
                run.result = "failed" if chance.random() < 0.1 else "ok"
            if run.result == "failed":
                raise ValueError(f"{text} fails")
            ctx.state = (ctx.state or b"") + f"{text};".encode()
            return TurnResult(run.result == "ok", text)
        except trio.Cancelled:
            run.result = "stopped"
            raise
        finally:
            self._stop = None
            world.ended(run)

    def interrupt(self, reason: InterruptReason, turn_id: str | None = None) -> None:
        self.node.world.reached[f"interrupt {reason.value}"] += 1
        if self._stop is not None and self._run is not None:
            self._run.is_interrupted = True
            self._stop.set()

    def offer(self, input: TurnInput) -> bool:
        world = self.node.world
        if self._stop is None or world.chance.random() < 0.3:
            return False
        self._offered.append(input)
        world.reached["offered"] += 1
        return True

    def take_unconsumed(self) -> list[TurnInput]:
        left, self._offered = self._offered, []
        world = self.node.world
        if world.chance.random() < 0.5:
            return left
        for each in left:
            world.absorbed_by.setdefault(self._last, set()).add(each.text)
        return []

    def status(self) -> LiveSessionStatus:
        return LiveSessionStatus("RUNNING" if self._stop else "IDLE")

    async def aclose(self) -> None:
        await trio.sleep(self.node.world.chance.choice((0.0, 0.0, 0.5)))


class World:
    """The cluster and what happened in it."""

    def __init__(self, seed: int, reached: Counter[str], nursery: trio.Nursery) -> None:
        self.seed, self.chance, self.reached, self.nursery = seed, random.Random(seed), reached, nursery
        self.stores: SessionStores = memory_session_stores(stale_retention=CONFIG.stale_retention)
        self.bus = MemorySignalBus()
        self.is_troubled = True
        self.nodes: dict[str, Node] = {}
        self.lives: list[Node] = []
        self.runs: list[Run] = []
        self.submitted: list[Submitted] = []
        self.resets: dict[str, list[float]] = {}
        """Key -> when somebody freed it as stale."""
        self.taken_back: dict[str, float] = {}
        self.purged: dict[str, list[float]] = {}
        self.absorbed_by: dict[str, set[str]] = {}
        """Text of a turn -> texts it took in."""
        self.violations: list[str] = []
        """What must not be; an assertion here would end up as a failed turn."""
        self.failed: set[str] = set()
        """Turn ids that were told to have failed."""
        self.announced: set[str] = set()
        """Turn ids whose end was told, to whom it may concern."""
        self.fences: dict[str, int] = {}
        self.written: set[str] = set()
        """Turn ids whose state is in a record."""
        self.delivered: dict[tuple[str, str], str] = {}
        """(session, inbox id) -> turn id, for messages that wait."""
        self.journal: list[tuple[Any, ...]] = []
        self._lives = 0

    def note(self, *what: Any) -> None:
        self.journal.append((round(trio.current_time(), 3), *what))

    # -- nodes

    async def start(self, name: str) -> None:
        node = self.nodes[name] = Node(name, self)
        self.lives.append(node)
        self._lives += 1
        stores = self.stores

        class Work(SessionHandler, ref="work"):
            async def open(
                self, session_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]
            ) -> Worker:
                await trio.sleep(node.world.chance.choice((0.0, 0.2)))
                return Worker(node, session_id)

        node.router = SessionRouter(
            Work,
            node_id=name,
            config=CONFIG,
            lease_store=Link(stores.leases, node, SessionLeaseError),
            record_store=Link(stores.records, node, SessionRecordError),
            inbox=Link(stores.inbox, node, SessionInboxError),
            idempotency_store=Link(stores.idempotency, node, IdempotencyStoreError),
            bus=SimulatedBus(self.bus, node),
            entropy=SeededEntropy(f"{self.seed}/{self._lives}"),
        )
        await self.nursery.start(self._live, node)

    async def _live(self, node: Node, *, task_status: trio.TaskStatus[None]) -> None:
        with node.scope:
            assert node.router is not None
            async with node.router:
                task_status.started()
                await trio.sleep_forever()

    def kill(self, name: str) -> None:
        """Nothing that the node does from here on reaches anybody."""
        node = self.nodes.pop(name)
        node.is_dead = True
        for run in self.runs:
            if run.node is node and run.ended is None:
                self.reached["killed in a turn"] += 1
        node.scope.cancel()
        self.note("kill", name)

    @property
    def died_with(self) -> set[str]:
        """Turn ids of messages that a node had taken when it died or was closed."""
        ended = [node for node in self.lives if node not in self.nodes.values()]
        return set().union(*(node.collected for node in ended))

    # -- what is recorded

    def began(self, worker: Worker, ctx: TurnContext) -> Run:
        node = worker.node
        assert node.router is not None
        seat = node.router._core.seats.get(worker.session_id)
        held = seat.lease if seat is not None else None
        run = Run(
            node,
            worker.session_id,
            ctx.turn_id,
            ctx.input.text,
            held.lease.token if held is not None else None,
            trio.current_time(),
        )
        if not node.is_dead:
            self.runs.append(run)
            self.note("began", node.name, run.session_id, run.text, run.turn_id, run.token)
            self._check_alone(run)
        return run

    def ended(self, run: Run) -> None:
        run.ended = trio.current_time()
        if not run.node.is_dead:
            self.note("ended", run.node.name, run.session_id, run.text, run.result)

    def _check_alone(self, run: Run) -> None:
        for other in self.runs:
            if other is run or other.session_id != run.session_id or other.ended is not None or other.node.is_dead:
                continue
            self.reached["beside a lost lease"] += 1
            if other.token == run.token:
                self.violations.append(f"two turns of {run.session_id} under one lease: {other.text} and {run.text}")

    def applied(self, node: Node, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
        """A store call had its effect."""
        if name == "collect":
            for message in answer.messages:
                node.collected.add(message.turn_id)
                self.delivered.pop((message.session_id, message.id), None)
                self.note("collected", node.name, message.session_id, message.input.text)
        elif name == "deliver":
            message = arguments[0]
            self.delivered[(message.session_id, answer)] = message.turn_id
            self.note("delivered", node.name, message.session_id, message.input.text)
        elif name == "withdraw" and answer:
            turn_id = self.delivered.pop((arguments[0], arguments[1]), "")
            self.taken_back[turn_id] = trio.current_time()
            self.reached["withdrawn"] += 1
            self.note("withdrawn", node.name, *arguments)
        elif name == "purge":
            for place in [each for each in self.delivered if each[0] == arguments[0]]:
                self.taken_back[self.delivered.pop(place)] = trio.current_time()
            self.note("purged", node.name, arguments[0])
        elif name == "compare_and_reset" and answer:
            key, holder = arguments[0], arguments[1]
            # Its own attempt's key is freed by its holder's failure; anybody else's only when it was stale.
            own = holder.startswith(f"{node.name}/{node.router._core.instance}/")  # type: ignore[union-attr]
            self.note("reset", node.name, key, "own" if own else "stale")
            if not own:
                self.resets.setdefault(key, []).append(trio.current_time())
            self.reached["own reset" if own else "stale reset"] += 1
        elif name == "provision" and answer is not Write.FENCED:
            self.fences[arguments[0]] = max(self.fences.get(arguments[0], 0), arguments[2])
        elif name == "commit":
            session_id, token = arguments[0], arguments[3]
            self.note("commit", node.name, session_id, token, answer.value)
            if answer is Write.OK:
                if token < self.fences.get(session_id, 0):
                    self.violations.append(f"a superseded lease wrote to {session_id}")
                self.written.add(arguments[4])
            self.reached[f"commit {answer.value}"] += 1
        elif name in ("acquire_holder", "release_holder", "mark_done", "put_if_absent", "discard_reservation"):
            self.note(name, node.name, arguments[0], answer if isinstance(answer, bool) else type(answer).__name__)
            if name == "acquire_holder" and not answer:
                self.reached["refused takeover"] += 1
