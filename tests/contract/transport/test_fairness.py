"""Receive fairness as a peer meets it: bounded turns, and a rotation that goes on behind the one that stopped.

Time stands still for a turn unless a sink moves the clock: a record that is "slow to take" is one whose sink does.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, World, audience, connect, eventually
from zlinkpy.transport import Connection, Publisher
from zlinkpy.transport.interface import ROTATION_RECORDS, ROTATION_SECONDS
from zlinkpy.transport.rotation import Budgets

OUT_OF_REACH = {"bytes": 1 << 40, "seconds": 1e6}


class Ledger:
    """Which record was taken in which rotation."""

    def __init__(self) -> None:
        self.rotations: Counter[str] = Counter()
        self.taken: list[tuple[int, str]] = []

    def per_rotation(self, name: str) -> list[int]:
        counts = Counter(rotation for rotation, who in self.taken if who == name)
        return [counts[rotation] for rotation in sorted(counts)]

    def last_rotation(self, name: str) -> int:
        return max(rotation for rotation, who in self.taken if who == name)


class Inlets:
    """A host with several peers, each behind a socket of its own, that finds their records all at once."""

    def __init__(self, stack: AsyncExitStack, world: World, **budgets: Any) -> None:
        self._stack = stack
        self._world = world
        self._budgets = budgets
        self.ledger = Ledger()
        self.connections: dict[str, Any] = {}

    async def join(self, near: Any, far: Any, name: str, sink: Recorder) -> None:
        """Connect `sink` to a peer called `name`."""
        raise NotImplementedError

    def send(self, name: str, frame: bytes) -> None:
        """Have that peer send a record."""
        raise NotImplementedError

    async def connect(self, *names: str, slow: dict[str, float] | None = None, clock: MockClock) -> None:
        world = self._world
        # Queues without a bound: every record waits at the receiver.
        near = await self._stack.enter_async_context(
            world.host("near", queue=100_000, budgets=Budgets(**self._budgets))
        )
        far = await self._stack.enter_async_context(world.host("far", queue=100_000))

        def taker(name: str) -> Any:
            def take(connection: Any, frames: list[bytes]) -> None:
                self.ledger.taken.append((self.ledger.rotations["rotations"], name))
                if slow and name in slow:
                    clock.jump(slow[name])

            return take

        for name in names:
            sink = Recorder()
            await self.join(near, far, name, sink)
            self.connections[name] = sink.connection
            self.connections[name].pause()
            sink._on_record = taker(name)
        self.ledger.rotations = world.count_rotations(near)

    async def flood(self, records: dict[str, int], size: int = 1) -> None:
        for name, count in records.items():
            for _ in range(count):
                self.send(name, b"x" * size)
        # What one scheduler pass sends leaves when the pass is over.
        await trio.testing.wait_all_tasks_blocked()
        self._world.settle()
        await trio.sleep(0.2)
        for connection in self.connections.values():
            connection.resume()
        total = sum(records.values())
        await eventually(lambda: len(self.ledger.taken) >= total)


class Dialled(Inlets):
    """It dialled them."""

    def __init__(self, stack: AsyncExitStack, world: World, **budgets: Any) -> None:
        super().__init__(stack, world, **budgets)
        self._peers: dict[str, Connection] = {}

    async def join(self, near: Any, far: Any, name: str, sink: Recorder) -> None:
        self._peers[name] = (await connect(self._world, near, far, sink)).peer

    def send(self, name: str, frame: bytes) -> None:
        assert self._peers[name].send([frame])


class Subscribed(Inlets):
    """They publish and it subscribed to each."""

    def __init__(self, stack: AsyncExitStack, world: World, **budgets: Any) -> None:
        super().__init__(stack, world, **budgets)
        self._publishers: dict[str, Publisher] = {}

    async def join(self, near: Any, far: Any, name: str, sink: Recorder) -> None:
        self._publishers[name] = publisher = await far.publish(self._world.endpoint())
        await audience(publisher, (near, [b""]), sinks=[sink])

    def send(self, name: str, frame: bytes) -> None:
        self._publishers[name].publish([frame])


@pytest.fixture(params=[Dialled, Subscribed])
def inlets(request: pytest.FixtureRequest) -> type[Inlets]:
    path: type[Inlets] = request.param
    return path


@pytest.mark.contract("LV-109", "LV-115")
async def test_a_rotation_takes_at_most_64_records_of_a_connection(
    world: World, clock: MockClock, inlets: type[Inlets]
) -> None:
    assert ROTATION_RECORDS == 64
    async with AsyncExitStack() as stack:
        host = inlets(stack, world, **OUT_OF_REACH)
        await host.connect("P", clock=clock)
        await host.flood({"P": 1000})
        taken = host.ledger.per_rotation("P")
        assert sum(taken) == 1000
        assert max(taken) == 64
        assert taken[0] == 64


@pytest.mark.contract("LV-110", "LV-115")
async def test_a_turn_ends_at_its_bytes(world: World, clock: MockClock, inlets: type[Inlets]) -> None:
    async with AsyncExitStack() as stack:
        host = inlets(stack, world, bytes=10_000, seconds=1e6)
        await host.connect("P", clock=clock)
        await host.flood({"P": 40}, size=3000)
        # The fourth record of 3000 bytes crosses 10,000.
        assert max(host.ledger.per_rotation("P")) == 4


@pytest.mark.contract("LV-111", "LV-115")
async def test_a_turn_ends_at_its_time(world: World, clock: MockClock, inlets: type[Inlets]) -> None:
    async with AsyncExitStack() as stack:
        host = inlets(stack, world, bytes=1 << 40, seconds=0.4)
        await host.connect("P", slow={"P": 0.15}, clock=clock)
        await host.flood({"P": 40})
        assert max(host.ledger.per_rotation("P")) == 3


@pytest.mark.contract("LV-113", "LV-115", "SA-238")
async def test_the_next_rotation_starts_behind_the_connection_that_stopped(
    world: World, clock: MockClock, inlets: type[Inlets]
) -> None:
    async with AsyncExitStack() as stack:
        # One record uses up the time of a whole rotation, so every rotation stops at the first connection it serves.
        host = inlets(stack, world, bytes=1 << 40, seconds=0.2)
        names = ["C1", "C2", "C3", "C4"]
        await host.connect(*names, slow=dict.fromkeys(names, 0.21), clock=clock)
        await host.flood(dict.fromkeys(names, 20))
        order = [name for _, name in host.ledger.taken]
        start = names.index(order[0])
        expected = names[start:] + names[:start]
        assert order == expected * 20
        for first in range(0, len(order), 4):
            assert set(order[first : first + 4]) == set(names)


async def test_a_flooding_connection_stops_and_the_others_come_first(
    world: World, clock: MockClock, inlets: type[Inlets]
) -> None:
    async with AsyncExitStack() as stack:
        host = inlets(stack, world, **OUT_OF_REACH)
        await host.connect("C1", "C2", "C3", "C4", clock=clock)
        await host.flood({"C1": 5, "C2": 500, "C3": 5, "C4": 5})
        assert max(host.ledger.per_rotation("C2")) == 64
        first_long = host.ledger.taken.index((host.ledger.last_rotation("C2"), "C2"))
        assert {name for _, name in host.ledger.taken[first_long:]} == {"C2"}
        began = host.ledger.taken[0][0]
        for name in ("C1", "C3", "C4"):
            assert host.ledger.last_rotation(name) <= began + 1


async def accepted(stack: AsyncExitStack, world: World, **budgets: Any) -> tuple[Any, dict[str, Connection], Ledger]:
    """A listening host with peers P and Q on its one socket."""
    near = await stack.enter_async_context(world.host("near", queue=100_000))
    far = await stack.enter_async_context(world.host("far", queue=100_000, budgets=Budgets(**budgets)))
    ledger = Ledger()

    def take(connection: Connection, frames: list[bytes]) -> None:
        ledger.taken.append((ledger.rotations["rotations"], frames[0].decode()))

    reception = Reception(take)
    listener = await far.listen(world.endpoint(), reception.accept)
    peers = {}
    for number, name in enumerate(("P", "Q"), start=1):
        sink = Recorder()
        peers[name] = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        peers[name].send([name.encode()])
        await reception.until(number)
    ledger.taken.clear()
    ledger.rotations = world.count_rotations(far)
    return listener, peers, ledger


@pytest.mark.contract("LV-114")
@pytest.mark.parametrize("order", ["PQ", "QP"])
async def test_peers_behind_one_socket_have_accounts_of_their_own(world: World, clock: MockClock, order: str) -> None:
    async with AsyncExitStack() as stack:
        listener, peers, ledger = await accepted(stack, world, **OUT_OF_REACH)
        listener.pause()
        numbers = {"P": 1000, "Q": 10}
        for name in order:
            for _ in range(numbers[name]):
                assert peers[name].send([name.encode()])
        world.settle()
        await trio.sleep(0.2)
        assert not ledger.taken
        started = ledger.rotations["rotations"]
        listener.resume()
        await eventually(lambda: len(ledger.taken) == 1010)
        assert ledger.per_rotation("P") == [64] * 15 + [40]
        assert sum(ledger.per_rotation("Q")) == 10
        assert ledger.last_rotation("Q") <= started + 2


async def test_bytes_are_counted_per_peer_behind_one_socket(world: World, clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        listener, peers, ledger = await accepted(stack, world, bytes=10_000, seconds=1e6)
        listener.pause()
        for _ in range(30):
            assert peers["P"].send([b"P", b"x" * 3000])
        for _ in range(30):
            assert peers["Q"].send([b"Q"])
        world.settle()
        await trio.sleep(0.2)
        listener.resume()
        await eventually(lambda: len(ledger.taken) == 60)
        assert max(ledger.per_rotation("P")) == 4


async def test_records_in_the_carry_over_survive_a_pause_and_a_disconnect(world: World, clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        listener, peers, ledger = await accepted(stack, world, **OUT_OF_REACH)
        listener.pause()
        for _ in range(300):
            assert peers["P"].send([b"P"])
        world.settle()
        await trio.sleep(0.2)
        listener.resume()
        await eventually(lambda: len(ledger.taken) >= 64)
        listener.pause()
        reached = len(ledger.taken)
        await trio.sleep(0.2)
        assert len(ledger.taken) - reached <= 64
        listener.resume()
        peers["P"].send([b"last"])
        peers["P"].close(linger=5.0)
        await eventually(lambda: len(ledger.taken) == 301)
        assert ledger.taken[-1][1] == "last"


@pytest.mark.contract("LV-117")
async def test_others_are_served_while_one_peer_is_slow_to_handle(
    world: World, clock: MockClock, inlets: type[Inlets]
) -> None:
    async with AsyncExitStack() as stack:
        host = inlets(stack, world, bytes=1 << 40, seconds=0.005)
        # 4 ms of handling per record of P: two per turn.
        await host.connect("P", "Q", slow={"P": 0.004}, clock=clock)
        await host.flood({"P": 200, "Q": 20})
        order = [name for _, name in host.ledger.taken]
        # Q is through while most of P still waits.
        assert order.index("Q") <= 4
        assert len(order) - 1 - order[::-1].index("Q") <= 30


@pytest.mark.contract("LV-112")
def test_the_budgets_exist_and_are_finite() -> None:
    defaults = Budgets()
    assert 0 < defaults.bytes < float("inf")
    assert 0 < defaults.seconds < float("inf")
    assert defaults.records == ROTATION_RECORDS
    assert defaults.seconds == ROTATION_SECONDS
    for wrong in ({"bytes": 0}, {"seconds": 0.0}, {"seconds": float("inf")}, {"records": 0}):
        with pytest.raises(ValueError, match="finite and positive"):
            Budgets(**wrong)  # type: ignore[arg-type]
