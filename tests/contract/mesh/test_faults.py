"""What a bad network does to a connection, over real sockets and a fault proxy (LV §4-§6, §10, §12, §14)."""

from __future__ import annotations

import pytest
import trio

from tests.contract.mesh.nodes import World, refused
from tests.contract.mesh.proxied import KINDS, SLACK, LinkUnderTest, each_kind
from tests.fault_proxy import DOWN, UP, Direction
from tests.puppet import until
from zlinkpy.errors import UnavailableError
from zlinkpy.link import FailureReason
from zlinkpy.link.constants import CHECK_INTERVAL, DIAL_DEADLINE, PEER_DEADLINE
from zlinkpy.telemetry import catalogue

BOTH = (UP, DOWN)
each_hole = pytest.mark.parametrize("hole", [(UP,), (DOWN,), BOTH], ids=["up", "down", "both"])


async def healthy(link: LinkUnderTest) -> None:
    """Ready, working, and old enough to have been probed."""
    await link.ready()
    await link.work()
    await link.stays_ready(CHECK_INTERVAL + SLACK)


@each_kind
@each_hole
@pytest.mark.contract("LV-74", "LV-75", "LV-133", "LV-144")
async def test_a_half_open_connection_is_not_ready_within_the_deadline_at_both_ends(
    fast_clock: object, sockets: World, kind: str, hole: tuple[Direction, ...]
) -> None:
    async with KINDS[kind](sockets) as link:
        await healthy(link)
        link.proxy.swallow(*hole)
        losses = await link.losses(PEER_DEADLINE + SLACK)
        # Nothing but the silence told them: the last answer was at most one interval old.
        assert max(losses) > PEER_DEADLINE - CHECK_INTERVAL - SLACK
        for end in link.deaf(*hole):
            assert end.disconnects(FailureReason.PEER_DEADLINE) == 1
        with refused(UnavailableError):
            await link.work()
        await trio.sleep(PEER_DEADLINE)
        assert not any(end.is_ready() for end in link.ends)
        link.nobody_else_noticed()
        link.proxy.heal()
        await link.ready()
        await link.work()
        link.nobody_else_noticed()


@each_kind
@pytest.mark.contract("LV-120", "LV-133", "LV-144")
@pytest.mark.parametrize("reset", [True, False], ids=["RST", "FIN"])
async def test_a_cut_connection_is_not_ready_at_once_at_both_ends(
    fast_clock: object, sockets: World, kind: str, reset: bool
) -> None:
    async with KINDS[kind](sockets) as link:
        await healthy(link)
        link.proxy.refuse()
        link.proxy.cut(reset=reset)
        losses = await link.losses(2 * SLACK)
        assert max(losses) < CHECK_INTERVAL
        for end in link.ends:
            assert end.disconnects(FailureReason.TRANSPORT_ERROR) == 1
        with refused(UnavailableError):
            await link.work()
        link.nobody_else_noticed()
        link.proxy.admit()
        await link.ready()
        await link.work()


@each_kind
@pytest.mark.contract("LV-27", "LV-120")
@pytest.mark.parametrize("connection", [0, 1])
async def test_one_cut_socket_of_a_connection_takes_the_rest_along(
    fast_clock: object, sockets: World, kind: str, connection: int
) -> None:
    async with KINDS[kind](sockets) as link:
        await healthy(link)
        if connection >= len(link.proxy.connections):
            connection = 0  # a kind with one socket
        link.proxy.refuse()
        link.proxy.connections[connection].cut()
        await link.losses(2 * SLACK)
        await until(lambda: link.proxy.connections == [])
        link.nobody_else_noticed()


@each_kind
@pytest.mark.contract("LV-74", "LV-65")
@pytest.mark.parametrize("fault", ["delay", "throttle", "hold"])
@pytest.mark.slow
async def test_a_slow_network_below_the_deadline_costs_nothing(
    fast_clock: object, sockets: World, kind: str, fault: str
) -> None:
    async with KINDS[kind](sockets) as link:
        await healthy(link)
        dials = link.dials()
        if fault == "delay":
            # An answer is asked for once per interval, so that much of the deadline is not the network's.
            link.proxy.delay((PEER_DEADLINE - CHECK_INTERVAL) / 2 - SLACK)
        elif fault == "throttle":
            link.proxy.throttle(40)
        else:
            link.proxy.hold()
            await link.stays_ready(PEER_DEADLINE - CHECK_INTERVAL - 2 * SLACK)
            link.proxy.pass_on()
        await link.stays_ready(4 * PEER_DEADLINE)
        await link.work()
        assert link.dials() == dials
        for end in link.ends:
            assert end.node.telemetry.total(catalogue.PEER_DISCONNECTS) == 0
        link.nobody_else_noticed()


@each_kind
@pytest.mark.contract("LV-74", "LV-67")
@pytest.mark.parametrize("fault", ["delay", "hold"])
async def test_answers_that_come_after_the_deadline_are_too_late(
    fast_clock: object, sockets: World, kind: str, fault: str
) -> None:
    async with KINDS[kind](sockets) as link:
        await healthy(link)
        if fault == "delay":
            link.proxy.delay(PEER_DEADLINE + CHECK_INTERVAL)
        else:
            link.proxy.hold()
        await link.losses(PEER_DEADLINE + SLACK)
        assert sum(end.disconnects(FailureReason.PEER_DEADLINE) for end in link.ends) >= 1
        if fault == "hold":
            # What was held belongs to connections that are given up: it revives nothing.
            link.proxy.refuse()
            link.proxy.pass_on()
            await trio.sleep(3 * SLACK)
            assert not any(end.is_ready() for end in link.ends)
        link.nobody_else_noticed()


# Enough for the handshake of ZMTP 3 without security (greeting 64 bytes, READY 43), and for nothing after it.
ZMTP_HANDSHAKE = 107


@each_kind
@pytest.mark.contract("LV-176")
@pytest.mark.parametrize("why", ["says nothing", "up", "down", "no hello", "no admit"])
async def test_a_handshake_into_a_black_hole_ends_after_the_dial_deadline_and_is_repeated(
    fast_clock: object, sockets: World, kind: str, why: str
) -> None:
    async with KINDS[kind](sockets) as link:
        await healthy(link)
        proxy, dialler = link.proxy, link.ends[0]
        if why == "says nothing":
            proxy.ignore()
        else:
            way = UP if why in ("up", "no hello") else DOWN
            proxy.swallow(way, after=ZMTP_HANDSHAKE if why.startswith("no ") else 0)
        connections = proxy.accepted
        proxy.cut()
        await proxy.until(lambda: proxy.accepted > connections)
        dialled, dials = trio.current_time(), link.dials()
        failures = dialler.disconnects(FailureReason.TRANSPORT_ERROR)
        if why == "no hello":
            await proxy.until(lambda: any(each.swallowed for each in proxy.ways(UP)))
        await trio.sleep_until(dialled + DIAL_DEADLINE - SLACK)
        assert link.dials() == dials
        await until(lambda: link.dials() > dials, 2 * SLACK)
        took = trio.current_time() - dialled
        # The deadline of a dial, then the first retry: 100 ms, give or take a fifth.
        assert DIAL_DEADLINE - SLACK < took < DIAL_DEADLINE + SLACK
        assert not any(end.is_ready() for end in link.ends)
        # Never admitted, so nothing was disconnected; what failed stands in the snapshot.
        assert dialler.disconnects(FailureReason.TRANSPORT_ERROR) == failures
        assert link.failure() is FailureReason.TRANSPORT_ERROR
        await until(lambda: link.dials() > dials + 1, 7 + SLACK)
        link.nobody_else_noticed()
        proxy.heal()
        await link.ready()
        await link.work()
