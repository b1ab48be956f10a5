"""Clients and servers of a ClientServer channel on a seeded network that delays, cuts, partitions and goes silent.

The invariants are those of the mesh simulation: every call ends exactly once and the request tables are empty
afterwards; no handler runs a message twice, or one it was not selected for; after the faults end, every client is ready
for exactly the servers that run, within a bound; one seed gives one log.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import trio
from attrs import define

from tests.contract.mesh.nodes import CHANNEL, Echo, Node, Note, World
from tests.contract.mesh.services import client, server
from tests.simulation.test_mesh_simulation import PORTS, Run, in_seeded_trio, reached_everything, run_seeds, watched
from zlinkpy.entropy import SeededEntropy
from zlinkpy.execution import JobQueueOptions
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.mesh import ClientServerClient

SERVERS = ("a", "b", "c")
CLIENTS = ("x", "y")
CALLS = ("channel send", "channel request", "weight")
RECORDS = (
    "hello", "admit", "update", "livenessProbe", "livenessAck", "receiveFlow", "close",
    "channelSend", "channelRequest", "reply",
)  # fmt: skip


@define(eq=False)
class ServiceRun(Run):
    """One simulated minute of three servers and two clients."""

    names: tuple[str, ...] = (*SERVERS, *CLIENTS)
    kinds: tuple[str, ...] = CALLS

    async def start(self, name: str) -> None:
        # A small queue, so that bursts find it full.
        options: dict[str, Any] = {
            "store": self.discovers,
            "job_queue": JobQueueOptions(max_queued_application_jobs=4),
            "shutdown_deadline": 1.0,
        }
        if name in SERVERS:
            weight = self.chance.choice((1, 100, 300))
            node: Node = await server(self.world, name, listen=PORTS[name], weight=weight, **options)
            self.runs.append((node.rid, node.got))
        else:
            known = () if self.discovers else [PORTS[each] for each in SERVERS]
            node = await client(self.world, name, servers=known, **options)
        self.nodes[name] = node

    async def place(self, node: Node, kind: str, number: int, hold: float, timeout: float) -> None:
        if kind == "weight":
            if node.name in SERVERS:
                node.rt.set_client_server_weight(CHANNEL, self.chance.choice((0, 1, 50)))
        elif node.name in SERVERS:
            return
        elif kind == "channel send":
            await node.rt.send_to_channel(CHANNEL, Note(number, hold))
        else:
            await node.rt.request_to_channel(CHANNEL, Echo(number, hold), timeout=timeout)

    def is_whole(self) -> bool:
        rids = {node.rid for node in self.nodes.values() if node.name in SERVERS}
        return all(
            {peer.node_rid for peer in node.snapshot.peers if peer.phase.value == "ready"} == rids
            if node.name in CLIENTS
            else node.targets == len(CLIENTS)
            for node in self.nodes.values()
        )

    def links_of(self, node: Node) -> int:
        return len(SERVERS) if node.name in CLIENTS else len(CLIENTS)


async def simulate(seed: int, *, discovers: bool, reached: Counter[str]) -> list[Any]:
    """Run one minute of one seed; returns everything that happened, in order."""
    chance = random.Random(f"{seed}-{discovers}-service")
    async with World.in_memory(seed=seed, latency=(0.0, 0.02)) as world, trio.open_nursery() as nursery:
        world.store = MemoryStore(entropy=SeededEntropy(seed))
        run = ServiceRun(world, chance, discovers, reached, nursery)
        with watched(run, (ClientServerClient, "select")):
            for name in run.names:
                await run.start(name)
            for name in run.names:
                nursery.start_soon(run.caller, name)
            await run.trouble()
            await run.settle()
            run.check()
            for name in SERVERS:
                run.nodes[name].rt.set_client_server_weight(CHANNEL, 100)
            await trio.sleep(0.1)
            for name in CLIENTS:
                answers = {(await run.nodes[name].echo(10**6 + number)).who for number in range(6)}
                assert answers == set(SERVERS)
        await world.stop()
        return [*run.journal, *run.network.log]


@pytest.mark.contract("LV-139", "LV-141", "LV-143")
def test_clients_and_servers_keep_their_promises_through_faults() -> None:
    reached_everything(run_seeds(range(3), simulate), CALLS, RECORDS)


@pytest.mark.slow
def test_clients_and_servers_keep_their_promises_through_many_more_faults() -> None:
    reached_everything(run_seeds(range(100, 130), simulate), CALLS, RECORDS)


@pytest.mark.parametrize("discovers", [True, False])
def test_one_seed_gives_one_log(discovers: bool) -> None:
    async def main() -> list[Any]:
        return await simulate(7, discovers=discovers, reached=Counter())

    first = in_seeded_trio(7, main)
    second = in_seeded_trio(7, main)
    assert len(first) > 300
    assert first == second
