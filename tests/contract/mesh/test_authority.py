"""Liveness beside authority and beside STREAM heartbeats: each signal has its own consequence only (LV §1, §16)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field

import zlinkpy as zl
from tests.authority_hosts import FAR, Lease, actor, cart_payload, order, room_payload, spot
from tests.contract.mesh.nodes import CHANNEL, Node, World, linked, publish
from tests.location_hosts import OPTIONS, put
from tests.location_server import TestServer, valkey, valkey_session  # noqa: F401
from tests.puppet import MESH, Puppet, until
from zlinkpy.entropy import SeededEntropy
from zlinkpy.errors import ErrorKind
from zlinkpy.link import FailureReason
from zlinkpy.location import LeaseDriver, keys, open_store
from zlinkpy.location.authority import (
    AuthorityRecord,
    AuthorityRepository,
    ObjectKey,
    ObjectState,
    Owner,
    ReleaseCause,
    Released,
    Reserved,
    Resolver,
    RouteCache,
    Written,
    resolution,
)
from zlinkpy.location.authority.resolution import Closing, Creating, Lacking, Missing, Ready, Unavailable
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Delete
from zlinkpy.location.store import Missing as NoRow
from zlinkpy.mesh import PeerState
from zlinkpy.spots import Activate, ActivationCall, Deliver, Fail, InstanceIntent, Resolve
from zlinkpy.stream import CloseSession, Heartbeat, HeartbeatOptions, SendPing, SilenceReason
from zlinkpy.wire import Hello, LivenessProbe

SERVER = {CHANNEL: 100}
READY, CLOSING = ObjectState.READY, ObjectState.CLOSING
CART = spot("cart")
ROOT = Path(zl.__file__).parent


@define
class Owning:
    """Host `n` with the resolver it will have, and a puppet `p` that owns objects."""

    n: Node
    p: Puppet
    at: Owner
    owner: AuthorityRepository
    """The repository of p's process."""
    resolver: Resolver
    records: dict[ObjectKey, AuthorityRecord] = field(factory=dict)

    async def create(self, key: ObjectKey, state: ObjectState = READY, kind: str = "") -> AuthorityRecord:
        wanted = order(key, self.at, kind=kind, reservation=f"r-{key.object_id}")
        reserved = await self.owner.reserve(wanted, FAR)
        assert isinstance(reserved, Reserved), reserved
        written = await self.owner.commit(reserved.record, wanted.payload.to(state), FAR)
        assert isinstance(written, Written), written
        self.records[key] = written.record
        return written.record

    async def lose(self) -> None:
        """P answers nothing any more; returns when its liveness deadline has passed."""
        self.p.answers_probes = False
        self.p.hears = lambda lane, record: type(record.command) is Hello
        await until(lambda: not self.n.is_ready("p"), 30)
        failure = self.n.failure("p")
        assert failure is not None
        assert failure.reason is FailureReason.PEER_DEADLINE
        assert not self.n.rt._core.liveness.evidence("p", self.at.lifecycle_generation)

    async def rows(self) -> dict[bytes, tuple[bytes, str]]:
        """Every authority, capacity and counter row with its version."""
        assert self.n.gate is not None
        page = await self.n.gate.store.scan(b"")
        kinds = (b"authority\0", b"capacity\0", b"zlink:")
        return {item.key: (item.value, item.version) for item in page.items if item.key.startswith(kinds)}  # type: ignore[union-attr]

    def writes(self) -> list[bytes]:
        """What the host wrote, leases and descriptors left out."""
        assert self.n.gate is not None
        own = (b"owner-lease\0", b"mesh-node\0", keys.OWNER_COUNTER)
        written = [key for call in self.n.gate.calls for key in call.written]
        return [key for key in written if not key.startswith(own)]


async def owning(world: World, **host: Any) -> Owning:
    p = await world.listening("p", channels=SERVER)
    await publish(world, p)
    n = await world.host("n", store=True, **host)
    await n.ready("p")
    assert n.gate is not None
    at = Owner(MESH, "p", p.admission.lifecycle_generation, "owner of p", 1)
    owner = AuthorityRepository(world.store, Lease(at.owner_id), OPTIONS, SeededEntropy("p"))
    mine = AuthorityRepository(n.gate, Lease("n"), OPTIONS, SeededEntropy("n"))
    nodes = {MESH: (n.rid, 1)}
    resolver = Resolver(n.gate, mine, n.rt._core.liveness, nodes, OPTIONS, RouteCache(OPTIONS))
    return Owning(n, p, at, owner, resolver)


# --- authority


async def _judged_lost_without_a_write(world: World, **host: Any) -> None:
    it = await owning(world, **host)
    await it.create(actor())
    await it.create(CART, kind="cart")
    assert it.n.gate is not None
    it.n.gate.calls.clear()
    before = await it.rows()
    await it.lose()
    assert await it.rows() == before
    await trio.sleep(60)
    assert await it.rows() == before
    assert it.writes() == []
    lease = await it.n.gate.store.read(it.at.lease_key)
    assert lease.value == LeaseRow("owner of p", 1).encode()  # type: ignore[union-attr]


@pytest.mark.contract("LV-159", "LO-340")
async def test_the_loss_of_an_owner_leaves_its_rows_as_they_were(autojump_clock: object, world: World) -> None:
    await _judged_lost_without_a_write(world)


@pytest.mark.contract("LV-159", "LO-340")
async def test_the_loss_of_an_owner_leaves_its_rows_as_they_were_in_a_real_server(
    fast_clock: object,
    sockets: World,
    valkey: TestServer,  # noqa: F811
) -> None:
    store = open_store(valkey.url)
    sockets.store = store  # type: ignore[assignment]
    try:
        await _judged_lost_without_a_write(sockets, lease_driver=LeaseDriver.LOOP)
        await sockets.stop()
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


@pytest.mark.contract("LV-161", "LO-343")
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "lost"])
@pytest.mark.parametrize("leased", [True, False], ids=["leased", "lapsed"])
async def test_rows_lease_and_evidence_give_one_closed_result(
    autojump_clock: object, world: World, connected: bool, leased: bool
) -> None:
    it = await owning(world)
    await it.create(actor("ready"))
    await it.create(actor("closing"), CLOSING)
    reserved = await it.owner.reserve(order(actor("creating"), it.at), FAR)
    assert isinstance(reserved, Reserved)
    if not connected:
        await it.lose()
    if not leased:
        await world.store.write([], [Delete(it.at.lease_key)])
    results = {name: await it.resolver.resolve(actor(name)) for name in ("ready", "closing", "creating", "none")}
    assert results.pop("none") == Missing()
    creating = results.pop("creating")
    if not leased:
        assert creating == Missing()  # released: its target will never finish it
        assert {(type(result), result.why) for result in results.values()} == {(Unavailable, Lacking.LEASE)}  # type: ignore[union-attr]
        return
    assert isinstance(creating, Creating)
    if connected:
        assert [type(result) for result in results.values()] == [Ready, Closing]
    else:
        assert {(type(result), result.why) for result in results.values()} == {(Unavailable, Lacking.LINK)}  # type: ignore[union-attr]


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8"))


@pytest.mark.contract("LV-161")
def test_nothing_but_the_resolver_combines_evidence_with_authority() -> None:
    asking, judging = set(), set()
    for path, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "evidence":
                asking.add(path)
            if isinstance(node, ast.ImportFrom) and node.module == "zlinkpy.location.authority.resolution":
                judging.update(path for name in node.names if name.name in ("find", "judge"))
    assert asking == {"location/authority/resolver.py"}
    assert judging == {"location/authority/resolver.py"}
    # Link evidence that a result depends on is asked for in one function, and no result is made without it.
    source = inspect.getsource(resolution)
    assert source.count("evidence(route.owner)") == 1


@pytest.mark.contract("LO-341")
def test_every_way_out_of_the_store_is_a_regular_operation() -> None:
    ways = set()
    for path, tree in _modules():
        for function in ast.walk(tree):
            if path.startswith("location/authority/") and isinstance(function, ast.FunctionDef):
                called = {
                    node.func.id
                    for node in ast.walk(function)
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                }
                ways.update([function.name] if "Delete" in called else [])
        if not path.startswith("location/authority/"):
            # Nobody else names the rows at all, so nobody else can take them out.
            names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not names & {"AUTHORITY_PREFIX"}, path
    # Failed creation, leftover of one, close and destroy and eviction and shutdown, shutdown of many.
    assert ways == {"abort", "release_orphan", "release", "_release_batch"}


CAUSES = {
    "explicit close": (CART, ReleaseCause.EXPLICIT_CLOSE, cart_payload(CLOSING)),
    "close of a room": (spot("hall"), ReleaseCause.EXPLICIT_CLOSE, room_payload(CLOSING)),
    "idle eviction": (CART, ReleaseCause.IDLE_EVICTED, cart_payload(CLOSING)),
    "destroy": (actor(), ReleaseCause.DESTROY, None),
    "shutdown": (actor(), ReleaseCause.HOST_SHUTDOWN, None),
}


@pytest.mark.contract("LV-162", "LO-341", "LO-213", "LO-246")
@pytest.mark.parametrize("name", CAUSES)
async def test_a_lost_owner_releases_by_its_own_regular_operations_only(
    autojump_clock: object, world: World, name: str
) -> None:
    key, cause, closing = CAUSES[name]
    it = await owning(world)
    record = await it.create(key, kind="cart" if key == CART else "")
    await it.lose()
    before = await it.rows()
    for _ in range(12):
        result = await it.resolver.resolve(key)
        assert isinstance(result, Unavailable)
        assert result.why is Lacking.LINK
        await trio.sleep(5)
    assert await it.rows() == before
    # The owner is lost to this host, not to itself: it ends the object in its own time.
    if closing is not None:
        written = await it.owner.preserve(record, closing, FAR)
        assert isinstance(written, Written)
        record = written.record
        assert isinstance(await it.resolver.resolve(key), Unavailable)
    assert await it.owner.release(record, cause, FAR) == Released()
    assert await it.resolver.resolve(key) == Missing()
    assert it.writes() == []


@pytest.mark.contract("LV-162", "LO-341")
@pytest.mark.parametrize("how", ["failed creation", "leftover of a creation"])
async def test_a_creation_that_fails_is_the_only_other_way_out(autojump_clock: object, world: World, how: str) -> None:
    it = await owning(world)
    reserved = await it.owner.reserve(order(actor(), it.at), FAR)
    assert isinstance(reserved, Reserved)
    await it.lose()
    await trio.sleep(60)
    assert isinstance(await it.resolver.resolve(actor()), Creating)  # a lost link releases no reservation
    if how == "failed creation":
        assert await it.owner.abort(reserved.record, FAR) == Released()
    else:
        await world.store.write([], [Delete(it.at.lease_key)])
    assert await it.resolver.resolve(actor()) == Missing()


@define
class Coordinator:
    """Runs one call the way a host does; the factory of a new instance is what must not run."""

    resolver: Resolver
    built: list[InstanceIntent] = field(factory=list)
    ends: list[Any] = field(factory=list)
    asked: int = 0

    async def call(self, key: ObjectKey, *, timeout: float = 30.0) -> Any:
        machine = ActivationCall(InstanceIntent("cart"), trio.current_time() + timeout)
        actions = machine.start(trio.current_time())
        while True:
            for action in actions:
                if not isinstance(action, Resolve):
                    self.ends.append(action)
                    if isinstance(action, Activate):
                        self.built.append(action.intent)
                    return action
            if actions:
                self.asked += 1
                actions = machine.resolved(await self.resolver.resolve(key), trio.current_time())
                continue
            due = machine.next_deadline()
            assert due is not None
            await trio.sleep_until(due)
            actions = machine.tick(trio.current_time())


@pytest.mark.contract("LV-163", "LO-342", "LO-247", "LO-296")
@pytest.mark.parametrize("lost", ["link", "lease", "both"])
async def test_an_instance_of_a_lost_owner_is_not_built_again_before_it_is_missing(
    autojump_clock: object, world: World, lost: str
) -> None:
    it = await owning(world)
    record = await it.create(CART, kind="cart")
    coordinator = Coordinator(it.resolver)
    assert isinstance(await coordinator.call(CART), Deliver)
    asked = coordinator.asked
    before = await it.rows()
    if lost in ("link", "both"):
        await it.lose()
    if lost in ("lease", "both"):
        await world.store.write([], [Delete(it.at.lease_key)])
        await trio.sleep(15)  # no kept route outlives the lease's local deadline
    # The event itself moved nothing: nobody asked the resolver, nothing was built.
    assert coordinator.asked == asked
    for _ in range(12):
        end = await coordinator.call(CART)
        assert isinstance(end, Fail)
        assert end.kind is ErrorKind.UNAVAILABLE
        assert end.cause == ("RouteNotConnected" if lost == "link" else "OwnerLease")
        await trio.sleep(5)
    assert coordinator.built == []
    assert await it.rows() == before
    assert it.writes() == []
    if lost != "link":
        await put(world.store, it.at.lease_key, LeaseRow("owner of p", 1).encode(), 3_600_000)
    closing = await it.owner.preserve(record, cart_payload(CLOSING), FAR)
    assert isinstance(closing, Written)
    assert await it.owner.release(closing.record, ReleaseCause.EXPLICIT_CLOSE, FAR) == Released()
    assert await coordinator.call(CART) == Activate(InstanceIntent("cart"))
    assert coordinator.built == [InstanceIntent("cart")]


@pytest.mark.contract("LV-163", "LO-342")
def test_the_coordinator_has_no_input_but_the_resolvers_result() -> None:
    events = {name for name, member in vars(ActivationCall).items() if callable(member) and not name.startswith("_")}
    assert events == {"start", "resolved", "tick", "next_deadline"}
    for path, tree in _modules():
        imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        if path.startswith("spots/"):
            assert not any(name.startswith(("zlinkpy.link", "zlinkpy.mesh", "zlinkpy.transport")) for name in imported)
            assert not any(name.startswith("zlinkpy.location.lease") for name in imported)
        if path.startswith(("link/", "mesh/", "location/")):
            assert not any(name.startswith("zlinkpy.spots") for name in imported)


# --- STREAM heartbeats


@define
class Session:
    """One STREAM session of the host's process: the heartbeat machine with a task, and a client that answers."""

    heartbeat: Heartbeat = field(factory=lambda: Heartbeat(HeartbeatOptions(idle=None)))
    answers: bool = True
    pings: int = 0
    closed: SilenceReason | None = None

    async def run(self) -> None:
        self.heartbeat.start(trio.current_time())
        while (due := self.heartbeat.next_deadline()) is not None:
            await trio.sleep_until(due)
            for action in self.heartbeat.tick(trio.current_time()):
                if isinstance(action, CloseSession):
                    self.closed = action.reason
                elif isinstance(action, SendPing):
                    self.pings += 1
                    if self.answers:
                        await trio.sleep(0.05)
                        self.heartbeat.pong(trio.current_time())


@pytest.mark.contract("LV-15", "SS-104")
@pytest.mark.parametrize("role", ["dialling", "accepting"])
async def test_a_sessions_heartbeats_keep_no_connection_and_a_lost_connection_ends_no_session(
    autojump_clock: object, world: World, role: str
) -> None:
    link = await linked(world, role)
    session = Session()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        link.p.answers_probes = False
        link.p.hears = lambda lane, record: type(record.command) is Hello
        await link.at(14.99)
        assert link.n.is_ready("p")
        await link.at(15.01)
        assert not link.n.is_ready("p")
        failure = link.n.failure("p")
        assert failure is not None
        assert failure.reason is FailureReason.PEER_DEADLINE
        assert session.pings >= 14
        await link.at(60)
        assert session.closed is None
        assert session.pings >= 59
        assert not session.heartbeat.ended
        nursery.cancel_scope.cancel()


@pytest.mark.contract("LV-17", "SS-104", "LV-152")
@pytest.mark.parametrize("expires", ["heartbeat", "lease"])
async def test_an_expired_heartbeat_or_lease_leaves_a_connection_ready(
    autojump_clock: object, world: World, expires: str
) -> None:
    it = await owning(world)
    n, p, resolver = it.n, it.p, it.resolver
    await it.create(actor())
    assert isinstance(await resolver.resolve(actor()), Ready)
    if expires == "lease":
        await put(world.store, it.at.lease_key, LeaseRow("owner of p", 1).encode(), 10_000)
    session = Session(answers=expires != "heartbeat")
    state = n.rt.status.state
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        await trio.sleep(40)
        # Its own consequence each, and no other.
        result = await resolver.resolve(actor())
        if expires == "heartbeat":
            assert session.closed is SilenceReason.HEARTBEAT_TIMEOUT
            assert isinstance(result, Ready)
        else:
            assert session.closed is None
            assert isinstance(result, Unavailable)
            assert result.why is Lacking.LEASE
            assert isinstance(await world.store.read(it.at.lease_key), NoRow)
        assert n.is_ready("p")
        assert p.pair.is_up
        assert len(p.pairs) == 1
        assert n.peer("p") is not None
        assert n.failure("p") is None
        assert [type(record.command) for _, record in p.pair.app.records].count(LivenessProbe) >= 7
        assert n.rt.status.state is state
        assert n.status.peers[0].state is PeerState.READY
        nursery.cancel_scope.cancel()
