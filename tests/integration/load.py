"""A caller inside the test's process and its requests, against nodes in processes of their own."""

from __future__ import annotations

import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

import zlinkpy as zl
from tests.integration.cli.zlink import Running
from tests.integration.programs.node import CHANNEL, MESH, Ask
from zlinkpy.mesh import PeerPhase
from zlinkpy.telemetry.memory import InMemoryTelemetry

PROGRAM = "tests.integration.programs.node:host"
QUICK = zl.LocationOptions(
    owner_lease_renew_interval=0.4,
    owner_lease_ttl=2.0,
    owner_lease_renew_timeout=0.3,
    owner_lease_fencing_margin=0.5,
    polling_interval=0.2,
    store_failure_grace=30.0,
)


def settings_of(options: zl.LocationOptions) -> list[str]:
    """The same times as arguments of `zlink run`."""
    names = (
        "owner_lease_renew_interval",
        "owner_lease_ttl",
        "owner_lease_renew_timeout",
        "owner_lease_fencing_margin",
        "polling_interval",
        "store_failure_grace",
    )
    return [part for name in names for part in ("--set", f"location.{name}={getattr(options, name)}")]


def free_endpoint() -> str:
    """An endpoint nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class NodeProcess(Running):
    """A node in a process of its own; `rid` and `endpoint` are known once it serves."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        super().__init__("run", PROGRAM, "--json", "--log-level", "info", *arguments, cwd=cwd)
        self.rid = ""
        self.endpoint = ""

    async def serving(self) -> None:
        """Wait until it serves, without holding the event loop."""
        document = await trio.to_thread.run_sync(self.document)
        assert document["event"] == "serving"
        (node,) = document["nodes"]
        self.rid, self.endpoint = node["rid"], node["endpoint"]

    async def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        return await trio.to_thread.run_sync(self.end)

    def catches(self, number: signal.Signals) -> bool:
        """Whether it has a handler for the signal by now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)

    @property
    def pid(self) -> int:
        return self.process.pid


@asynccontextmanager
async def processes(cwd: Path) -> AsyncIterator[Any]:
    """``start(*arguments)`` starts nodes and waits until they serve; all of them are gone afterwards."""
    started: list[NodeProcess] = []

    async def start(*arguments: str) -> NodeProcess:
        node = NodeProcess(*arguments, cwd=cwd)
        started.append(node)
        await node.serving()
        return node

    try:
        yield start
    finally:
        for node in started:
            node.close()


@define(eq=False)
class Caller:
    """A host in this process that uses the channel."""

    rt: zl.Runtime
    telemetry: InMemoryTelemetry

    def peer(self, rid: str) -> Any:
        return next((peer for peer in self.rt.mesh_snapshot(MESH).peers if peer.node_rid == rid), None)

    def is_ready(self, rid: str) -> bool:
        peer = self.peer(rid)
        return peer is not None and peer.phase is PeerPhase.READY

    @property
    def targets(self) -> int:
        return self.rt.mesh_status(MESH).ready_targets[CHANNEL]

    @property
    def connects(self) -> int:
        """How many connections became ready so far."""
        return int(self.telemetry.total("zlink.mesh_node.peer.connects"))

    @property
    def disconnects(self) -> int:
        return int(self.telemetry.total("zlink.mesh_node.peer.disconnects"))


@asynccontextmanager
async def caller(*, peers: Sequence[str] = (), store: str | None = None, **options: Any) -> AsyncIterator[Caller]:
    telemetry = InMemoryTelemetry()
    host = zl.Host(location_store=store, telemetry=telemetry, location=QUICK if store else None, **options)
    host.mesh(MESH, rid_prefix="caller", peers=peers).use_channel(CHANNEL)
    async with host.run() as rt:
        yield Caller(rt, telemetry)


@define(eq=False)
class Load:
    """Tasks that ask all the time. Every request is noted when it starts and when it ends."""

    rt: zl.Runtime
    timeout: float = 10.0
    started: int = 0
    ends: Counter[str] = field(factory=Counter)
    answered_by: Counter[int] = field(factory=Counter)
    slowest: float = 0.0
    _stopping: bool = False

    @classmethod
    @asynccontextmanager
    async def on(cls, rt: zl.Runtime, *, tasks: int = 8, timeout: float = 10.0) -> AsyncIterator[Load]:
        load = cls(rt, timeout)
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(load._ask_all_the_time)
            yield load
            load._stopping = True

    async def _ask_all_the_time(self) -> None:
        while not self._stopping:
            self.started += 1
            began = trio.current_time()
            try:
                answer = await self.rt.request_to_channel(CHANNEL, Ask(self.started), timeout=self.timeout)
            except zl.ZlinkError as error:
                self.ends[type(error).__name__] += 1
            else:
                self.ends["answered"] += 1
                self.answered_by[answer.pid] += 1
            self.slowest = max(self.slowest, trio.current_time() - began)
            await trio.sleep(0.002)

    def assert_each_ended_once(self, *, besides: int = 0) -> None:
        """Nothing is open, and the table agrees with the callers about how often what happened. `besides`: answered
        requests that were not ours."""
        table = self.rt.request_statistics
        assert sum(self.ends.values()) == self.started
        assert (table.pending, table.cancelled, table.shut_down) == (0, 0, 0)
        assert table.replied == self.ends["answered"] + besides
        assert table.timed_out == self.ends["DeadlineExceededError"]
        # An Unavailable either never got a target or lost the route it was given to.
        assert table.route_failed <= self.ends["UnavailableError"]
