"""Putting a router together: what is asked for, what is refused, what runs where (SR §1)."""

from __future__ import annotations

import ast
import inspect
import threading
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Probe, World, cluster, error_of, settled, submit
from tests.house.source import ROOT, imported_modules
from zlinkpy.errors import ConfigurationError
from zlinkpy.sessions.events import TurnCompleted
from zlinkpy.sessions.handlers import HandlerRegistry, SessionHandler
from zlinkpy.sessions.memory_bus import MemorySignalBus
from zlinkpy.sessions.memory_idempotency import MemoryIdempotencyStore
from zlinkpy.sessions.memory_inbox import MemoryInbox
from zlinkpy.sessions.memory_leases import MemoryLeaseStore
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.session_store import NodeSessionStore
from zlinkpy.sessions.types import (
    DeploymentMode,
    DispositionKind,
    Principal,
    RouterConfig,
)

SESSIONS = ROOT / "zlinkpy" / "sessions"
DISTRIBUTED = RouterConfig(mode=DeploymentMode.DISTRIBUTED)


class Chat(SessionHandler, ref="chat"):
    async def open(self, session_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]) -> Probe:
        raise NotImplementedError


async def opener(*_: Any) -> Probe:
    raise NotImplementedError


@pytest.mark.contract("SR-002")
def test_there_is_exactly_one_way_to_open_sessions() -> None:
    with pytest.raises(ConfigurationError, match="one way to open"):
        SessionRouter()
    with pytest.raises(ConfigurationError, match="has 2"):
        SessionRouter(session_factory=opener, session_opener=opener)
    with pytest.raises(ConfigurationError, match="has 2"):
        SessionRouter(Chat, session_factory=opener)


def test_a_handler_needs_a_ref_of_its_own() -> None:
    class Nameless(Chat):
        ref = ""

    with pytest.raises(ConfigurationError, match="has no ref"):
        SessionRouter(Nameless)
    with pytest.raises(ConfigurationError, match="registered twice"):
        SessionRouter(Chat, Chat)
    with pytest.raises(ConfigurationError, match="':'"):
        type("Bad", (SessionHandler,), {}, ref="a:b")  # type: ignore[call-arg]


@pytest.mark.contract("SR-003", "SR-004")
async def test_what_openers_are_given(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    seen: list[tuple[Any, ...]] = []

    async def factory(session_id: str, ref: str, options: Mapping[str, Any]) -> Probe:
        seen.append(("factory", session_id, ref, dict(options)))
        return Probe("n1", session_id, world, options, {})

    async def opened(session_id: str, name: str, options: Mapping[str, Any], attributes: Mapping[str, Any]) -> Probe:
        seen.append(("opener", session_id, name, dict(options), dict(attributes)))
        return Probe("n1", session_id, world, options, attributes)

    for way in ({"session_factory": factory}, {"session_opener": opened}):
        async with SessionRouter(**way) as router:  # type: ignore[arg-type]
            found = await submit(router, options={"o": 1}, open_attributes={"tenant": "t1"})
            (await world.turn()).finish()
            await settled(found)
    assert seen == [
        ("factory", "s", "chat", {"o": 1}),
        ("opener", "s", "handler:chat", {"o": 1}, {"tenant": "t1"}),
    ]


@pytest.mark.contract("SR-005")
def test_a_single_node_needs_nothing() -> None:
    records = World().stores.records
    router = SessionRouter(Chat, record_store=records)
    assert router.node_id.startswith("node-")
    assert str(uuid.UUID(router.node_id.removeprefix("node-"))) == router.node_id.removeprefix("node-")
    core = router._core
    assert isinstance(core.store, NodeSessionStore)
    assert core.store._record_store is records
    assert isinstance(core.store._leases, MemoryLeaseStore)
    assert isinstance(core.bus, MemorySignalBus)
    assert isinstance(core.inbox, MemoryInbox)
    assert isinstance(core.idempotency, MemoryIdempotencyStore)


@pytest.mark.contract("SR-006")
@pytest.mark.parametrize("missing", ["lease_store", "bus", "inbox", "idempotency_store", "record_store"])
def test_many_nodes_need_everything(missing: str) -> None:
    world = World()
    stores = world.stores
    given: dict[str, Any] = {
        "lease_store": stores.leases,
        "record_store": stores.records,
        "inbox": stores.inbox,
        "idempotency_store": stores.idempotency,
        "bus": world.bus,
    }
    SessionRouter(Chat, config=DISTRIBUTED, node_id="n1", **given)
    del given[missing]
    threads = threading.enumerate()
    # Outside of any event loop: there is none in which a task could start.
    with pytest.raises(ConfigurationError, match=missing):
        SessionRouter(Chat, config=DISTRIBUTED, node_id="n1", **given)
    assert threading.enumerate() == threads
    assert not world.calls()


def test_memory_is_no_place_for_many_nodes() -> None:
    with pytest.raises(ConfigurationError, match="needs lease_store, inbox, idempotency_store, record_store, bus"):
        SessionRouter(Chat, config=DISTRIBUTED, node_id="n1", store="memory://")


@pytest.mark.contract("SR-007")
@pytest.mark.parametrize("node_id", [None, "", "  "])
def test_many_nodes_need_names(node_id: str | None) -> None:
    with pytest.raises(ConfigurationError, match="node_id"):
        SessionRouter(Chat, config=DISTRIBUTED, node_id=node_id, store="redis://localhost:1")


@pytest.mark.contract("SR-457")
def test_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one primary"):
        SessionRouter(Chat, store="redis+cluster://localhost:1")


@pytest.mark.contract("SR-010", "SR-012")
def test_what_the_router_does_not_take() -> None:
    world = World()
    one, two = world.router("n1"), world.router("n2")
    assert one._core.store is not two._core.store
    names = set(inspect.signature(SessionRouter.__init__).parameters)
    assert names & {"record_store", "lease_store"} == {"record_store", "lease_store"}
    assert not [
        name for name in names if any(part in name for part in ("renew", "publisher", "cache", "session_store"))
    ]


@pytest.mark.contract("SR-011", "SR-393")
def test_one_store_per_router() -> None:
    stores = World().stores
    shared = NodeSessionStore(stores.leases, stores.records)
    shared.attach()
    with pytest.raises(ConfigurationError, match="one store per router"):
        shared.attach()
    router = World().router()
    with pytest.raises(ConfigurationError, match="one store per router"):
        router._core.store.attach()


BACK_ENDS = {"backends", "memory_bus", "mesh_bus", "redis_bus", "session_store"}


@pytest.mark.contract("SR-013")
def test_only_the_assembly_knows_back_ends() -> None:
    imports: dict[str, set[str]] = {}
    for path in SESSIONS.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports[path.stem] = {
            name.rpartition(".")[2] for _, name in imported_modules(tree) if name.startswith("zlinkpy.sessions")
        }
    router_parts = {"core", "router", "assembly", *(name for name, used in imports.items() if "core" in used)}
    assert {"submission", "turn_pass", "endings", "renewal"} <= router_parts
    back_ends: set[str] = set()
    for name, used in imports.items():
        if name.startswith(("memory_", "redis_", "mesh_", "split_")) or name in BACK_ENDS:
            back_ends.add(name)
            assert not used & router_parts, f"{name} imports {used & router_parts}"
        elif name != "assembly":
            known = {each for each in used if each.startswith(("memory_", "redis_", "mesh_")) or each in BACK_ENDS}
            assert not known, f"{name} imports {known}"
    assert {"memory_leases", "redis_inbox"} <= back_ends


@pytest.mark.contract("SR-018")
async def test_nothing_is_warmed_up(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1"):
        await trio.sleep(200)
        assert not world.calls("open", "try_acquire", "provision", "commit")


@pytest.mark.contract("SR-019")
async def test_a_session_begins_with_its_first_submit_on_one_node(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2", refs=("chat", "other")) as [one, _]:
        found = await submit(one, handler="other")
        turn = await world.turn()
        steps = ("try_acquire", "provision", "open")
        assert [entry[:2] for entry in world.log if entry[1] in steps] == [("n1", step) for step in steps]
        assert [entry[3] for entry in world.log if entry[1] == "open"] == ["other"]
        turn.finish()
        await settled(found)
        view = await world.stores.records.load("s")
        assert view is not None
        assert view.handler_ref == "other"


@pytest.mark.contract("SR-024")
async def test_what_counts_at_the_opening_only(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", refs=("chat", "chat:x")) as [router]:
        first = await submit(router, options={"o": 1})
        (await world.turn()).finish()
        await settled(first)
        await submit(router, options={"o": 2}, open_attributes={"a": 2}, variant="x", submit_options={"k": 2})
        turn = await world.turn(1)
        assert len(world.probes) == 1
        assert (dict(turn.session.options), dict(turn.session.attributes)) == ({"o": 1}, {})
        assert dict(turn.ctx.submit_options) == {"k": 2}
        turn.finish()


@pytest.mark.contract("SR-025")
async def test_the_initiator_is_carried(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    who = Principal("user", "u1", "Ada")
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one, initiator=who)
        turn = await world.turn()
        assert turn.ctx.initiator == who
        forwarded = await submit(two, initiator=who)
        turn.finish()
        assert forwarded.kind is DispositionKind.FORWARDED
        turn = await world.turn(1)
        assert turn.ctx.initiator == who
        turn.finish()


@pytest.mark.contract("SR-026", "SR-390")
async def test_handlers_are_closed_by_nobody_here(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    closed = []
    opened: list[Probe] = []

    class Counting(SessionHandler, ref="chat"):
        async def open(self, session_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]) -> Probe:
            opened.append(Probe("n1", session_id, world, options, open_attributes))
            return opened[-1]

        async def aclose(self) -> None:
            closed.append(self)

    async with SessionRouter(Counting()) as router:
        for session in ("a", "b", "c"):
            found = await submit(router, session=session)
            (await world.turn()).finish()
            await settled(found)
        await wait_all_tasks_blocked()
        await router.release("a")
        await router.delete("b")
    assert not closed
    assert [probe.closed for probe in opened] == [1, 1, 1]
    calls = [
        f"{path.stem}:{node.lineno}"
        for path in SESSIONS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "aclose" and "handler" in ast.dump(node.value)
    ]
    assert not calls


@pytest.mark.contract("SR-027")
async def test_an_unknown_handler_fails_the_future_and_leaves_nothing(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router, handler="nobody", key="k")
        error = await error_of(found)
        assert type(error).__name__ == "UnknownHandlerError"
        await wait_all_tasks_blocked()
        assert await world.holder() is None
        assert await world.stores.idempotency.find("k") is None
        assert not router._core.seats
        assert "open" not in world.calls()


@pytest.mark.contract("SR-028")
async def test_nothing_public_says_where_a_turn_ran(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "node-one", "node-two") as [one, two]:
        stream = two.events("s")
        await submit(one)
        turn = await world.turn()
        forwarded = await submit(two)
        turn.finish()
        turn = await world.turn(1)
        turn.ctx.emit(_delta())
        await two.interrupt("s", turn_id=forwarded.turn_id)
        result = await settled(forwarded)
        seen: list[Any] = []
        with trio.fail_after(5):
            while sum(isinstance(event, TurnCompleted) for event in seen) < 2:
                seen.append(await anext(stream))
        assert result.completion == "interrupted"
        for shown in (repr(forwarded), repr(result), repr(seen), repr(vars(type(forwarded.future)))):
            assert "node-one" not in shown


def test_registries_find_variants() -> None:
    class Tenant(Chat, ref="chat", variant="t1"):
        pass

    registry = HandlerRegistry([Chat, Tenant])
    assert registry.knows("chat")
    assert not registry.knows("other")
    assert registry.find("chat", "t1").__self__.variant == "t1"  # type: ignore[attr-defined]
    assert registry.find("chat", None).__self__.variant is None  # type: ignore[attr-defined]


@pytest.mark.contract("SR-015")
async def test_a_handle_that_closes_for_a_minute_delays_nobody(autojump_clock: trio.abc.Clock) -> None:
    world = World(RouterConfig(idle_ttl=60.0))
    async with cluster(world, "n1") as [router]:

        async def slow(probe: Probe) -> None:
            if probe.session_id == "slow":
                await trio.sleep(60)

        world.closing = slow
        found = await submit(router, session="slow")
        (await world.turn()).finish()
        await settled(found)
        await trio.sleep(55)
        busy = [await submit(router, session=f"s{n}") for n in range(3)]
        await wait_all_tasks_blocked()
        begin = trio.current_time()
        times: list[float] = []

        async def note(_: str, name: str, arguments: tuple[Any, ...]) -> None:
            if name in ("extend", "find_stale_in_flight"):
                times.append(trio.current_time() - begin)
                if name == "extend":
                    renewed.setdefault(arguments[0].session_id, []).append(round(trio.current_time() - begin))

        renewed: dict[str, list[int]] = {}
        world.before_call = note
        world.log.clear()
        await trio.sleep(66)
        assert ("n1", "close", "slow") in world.log
        for n in range(3):
            assert renewed[f"s{n}"] == [10, 20, 30, 40, 50, 60]
        assert len(world.calls("find_stale_in_flight")) >= 4
        for turn in list(world.turns):
            turn.finish()
        for each in busy:
            await settled(each)


@pytest.mark.contract("SR-016")
async def test_a_sweep_that_hangs_delays_nobody(autojump_clock: trio.abc.Clock) -> None:
    world = World(RouterConfig(idle_ttl=30.0))
    async with cluster(world, "n1") as [router]:

        async def hang(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "find_stale_in_flight":
                await trio.sleep(60)

        world.before_call = hang
        idle = await submit(router, session="idle")
        (await world.turn()).finish()
        await settled(idle)
        await submit(router)
        await trio.sleep(80)
        extended = [entry for entry in world.log if entry[1] == "extend" and entry[2].session_id == "s"]
        assert len(extended) in (7, 8)
        assert ("n1", "close", "idle") in world.log
        world.turns[-1].finish()


@pytest.mark.contract("SR-017")
async def test_a_bus_that_hangs_delays_no_renewal(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await submit(router)
        turn = await world.turn()

        async def hang(signal: Any) -> None:
            await trio.sleep(60)

        router._core.bus.publish = hang  # type: ignore[method-assign]
        before = trio.current_time()
        for _ in range(100):
            turn.ctx.emit(_delta())
        assert trio.current_time() == before
        await trio.sleep(65)
        assert len(world.calls("extend")) == 6
        turn.finish()


def _delta() -> Any:
    from zlinkpy.sessions.events import OutputDelta

    return OutputDelta("x")
