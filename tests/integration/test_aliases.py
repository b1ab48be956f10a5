"""One node under several names: configured endpoints that lead to the same node, or home (wire.md §4, Duplicates)."""

from __future__ import annotations

import socket

import pytest
import trio
from trio.testing import MockClock

import zlinkpy as zl

MESH = "play"


@zl.message
class Note:
    n: int


@pytest.fixture
def fast_clock() -> MockClock:
    return MockClock(rate=20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def ready(rt: zl.Runtime, count: int) -> None:
    with trio.fail_after(100):
        async for _ in rt.observe():
            if rt.mesh_status(MESH).ready_peers == count:
                return


async def test_two_names_of_one_node_make_one_connection_that_stays(fast_clock: MockClock) -> None:
    taken: list[int] = []
    server = zl.Host()
    mesh = server.mesh(MESH)

    @mesh.on_node_send
    def note(message: Note) -> None:
        taken.append(message.n)

    async with server.run() as there:
        endpoint = there.endpoint(MESH)
        client = zl.Host()
        client.mesh(MESH, peers=[endpoint, endpoint.replace("127.0.0.1", "localhost")])
        async with client.run() as here:
            await trio.sleep(10)
            await ready(here, 1)
            for n in range(200):
                await here.send_to_node(MESH, there.node_rid(MESH), Note(n))
                await trio.sleep(0.1)
            status = here.mesh_status(MESH)
            assert (status.ready_peers, len(status.peers), status.state.value) == (1, 1, "ready")
            assert sum(peer.dials for peer in here.mesh_snapshot(MESH).peers) <= 4
        assert (await there.shutdown()).outcome is zl.TerminationOutcome.STOPPED
        assert taken == list(range(200))


async def test_a_node_that_is_among_its_own_peers_under_another_name_does_not_go_on_dialling_itself(
    fast_clock: MockClock,
) -> None:
    port = free_port()
    host = zl.Host()
    host.mesh(MESH, listen=f"tcp://127.0.0.1:{port}", peers=[f"tcp://localhost:{port}"])
    async with host.run() as rt:
        await trio.sleep(60)
        status = rt.mesh_status(MESH)
        assert (status.peers, status.state.value) == ((), "ready")
        assert sum(peer.dials for peer in rt.mesh_snapshot(MESH).peers) <= 2
