"""The course of the demo: three nodes, traffic, a crash, a restart, and a summary that is checked, not assumed."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import frozen

from zlinkpy.cli.demo.node import MESH, Served
from zlinkpy.cli.demo.processes import NodeProcess
from zlinkpy.cli.demo.traffic import Tally, drive
from zlinkpy.cli.demo.view import NodeRow, Picture, View, keep_showing, milliseconds
from zlinkpy.errors import UnavailableError
from zlinkpy.fanout import PublisherPhase
from zlinkpy.mesh import PeerPhase
from zlinkpy.runtime import Host, Runtime

NODES = 3
READY_SECONDS = 15.0
DOWN_SECONDS = 2.0
KILL_AFTER_SHARE = 0.4
_LOOK_SECONDS = 0.02
_REMOVE_SECONDS = 5.0


@frozen(kw_only=True)
class Summary:
    """How the demo went; times in seconds."""

    nodes: int
    requests: int
    lost: int
    cut_off: int
    wrong: int
    timed_out: int
    """Among the lost ones."""
    p50: float | None
    p99: float | None
    events: int
    """Fanout events heard."""
    back_in: float
    """From the kill to the first answer of the restarted node."""
    problems: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """No request was lost or wrong."""
        return not self.lost and not self.wrong

    def line(self) -> str:
        """The summary for people."""
        text = (
            f"demo: {self.nodes} nodes, {self.requests} requests, {self.lost} lost, {self.cut_off} cut off, "
            f"p50 {milliseconds(self.p50)}, p99 {milliseconds(self.p99)}, {self.events} events, "
            f"node killed and back in {self.back_in:.1f} s"
        )
        if self.is_good:
            return text
        return f"{text}; {self.wrong} wrong, {self.timed_out} timed out: {'; '.join(self.problems)}"


class Stage:
    """The pieces of one demo. `clear_at_once` is what a second Ctrl-C calls."""

    def __init__(self, view: View, seconds: float) -> None:
        self._view = view
        self._seconds = seconds
        self._began = 0.0
        self._directory = Path(tempfile.mkdtemp(prefix="zlink-demo-"))
        self._store = f"valkey+embedded://{self._directory / 'store'}"
        self.nodes = [NodeProcess(f"node-{number}", self._directory, self._store) for number in range(1, NODES + 1)]
        self.tally = Tally()
        self._rt: Runtime | None = None

    def clear_at_once(self) -> None:
        """Kill what runs and remove the files, without waiting for anything."""
        for node in self.nodes:
            node.kill_at_once()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def play(self) -> Summary:
        """Run the demo. Whatever way it ends, processes and files are gone."""
        self._began = trio.current_time()
        try:
            async with self._cast() as rt:
                return await self._act(rt)
        finally:
            with trio.CancelScope(shield=True):
                await self._remove_directory()

    @asynccontextmanager
    async def _cast(self) -> AsyncIterator[Runtime]:
        """The store, this process as a node that only calls, and the three servers."""
        host = Host(location_store=self._store, shutdown_deadline=2)
        client = host.mesh(MESH, rid_prefix="demo-client")
        client.use_channel("echo")
        client.use_channel("sum")
        host.use_client_server("square")
        tally = self.tally

        @host.fanout_subscriber("served").on_event()
        def served(event: Served) -> None:
            tally.events[event.by] += 1

        self._say("starting the embedded store and three nodes: a mesh, a ClientServer channel, a fanout channel")
        try:
            async with host.run() as rt:
                self._rt = rt
                async with trio.open_nursery() as nursery:
                    for node in self.nodes:
                        nursery.start_soon(node.start)
                yield rt
                # In order: servers first, while their client can still see them leave.
                await self._stop_nodes()
        finally:
            with trio.CancelScope(shield=True):
                await self._stop_nodes()

    async def _stop_nodes(self) -> None:
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(node.stop)

    async def _act(self, rt: Runtime) -> Summary:
        await self._until_ready(rt, self.nodes)
        self._say(f"three nodes are ready; {self._seconds:g} s of requests begin")
        began = trio.current_time()
        stopping = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_showing, self._view, self._picture)
            async with trio.open_nursery() as callers:
                callers.start_soon(drive, rt, self.tally, stopping)
                await trio.sleep_until(began + self._seconds * KILL_AFTER_SHARE)
                back_in = await self._crash_and_restart(rt, self.nodes[1])
                await trio.sleep_until(began + self._seconds)
                stopping.set()
            self._view.show(self._picture())
            nursery.cancel_scope.cancel()
        self._say("stopping the nodes")
        tally = self.tally
        p50, p99 = tally.overall()
        return Summary(
            nodes=len(self.nodes),
            requests=tally.started,
            lost=tally.lost,
            cut_off=tally.cut_off,
            wrong=tally.wrong,
            timed_out=tally.timed_out,
            p50=p50,
            p99=p99,
            events=tally.events.total(),
            back_in=back_in,
            problems=tuple(tally.problems),
        )

    async def _crash_and_restart(self, rt: Runtime, node: NodeProcess) -> float:
        """Kill `node`, see the others go on, start it again and see it answer. Returns the seconds it was away."""
        killed_at = trio.current_time()
        before = node.rid
        await node.kill()
        self._say(f"{node.name} was killed ({signal.SIGKILL.name})")
        await self._until(
            lambda: not self._is_in_use(rt, node.name, before), f"{node.name} was killed and still counts as ready"
        )
        answered, events = self.tally.answered, self.tally.events.total()
        self._say(f"{node.name} is not ready any more; the others go on")
        await trio.sleep_until(killed_at + DOWN_SECONDS)
        if self.tally.answered == answered:
            raise UnavailableError(f"no request was answered while {node.name} was away")
        if self.tally.events.total() == events:
            raise UnavailableError(f"no event was heard while {node.name} was away")
        self._say(f"{node.name} starts again")
        await node.start()
        assert node.rid != before
        started_at = trio.current_time()
        heard = self.tally.events[node.name]
        await self._until(
            lambda: (
                self.tally.last_answer(node.name) > started_at
                and self.tally.events[node.name] > heard
                and self._is_ready(rt, node)
            ),
            f"{node.name} is not used again",
        )
        away = trio.current_time() - killed_at
        self._say(f"{node.name} answers again under a new routing id, {away:.1f} s after it was killed")
        return away

    async def _until_ready(self, rt: Runtime, nodes: list[NodeProcess]) -> None:
        await self._until(lambda: all(self._is_ready(rt, node) for node in nodes), "the nodes are not all ready")

    async def _until(self, holds: Callable[[], bool], problem: str) -> None:
        with trio.move_on_after(READY_SECONDS) as waiting:
            while not holds():  # noqa: ASYNC110 - counters and peers have no common event
                await trio.sleep(_LOOK_SECONDS)
        if waiting.cancelled_caught:
            raise UnavailableError(f"{problem} after {READY_SECONDS:g} s")

    @staticmethod
    def _connections(rt: Runtime, name: str, rid: str | None) -> tuple[bool, bool, bool]:
        """Whether a node is ready on the mesh, as a ClientServer server, and as a fanout publisher."""
        heard = rt.fanout_status("served").subscriber
        assert heard is not None
        servers = (peer.node_rid for peer in rt.channel_status("square").peers if peer.phase is PeerPhase.READY)
        publishers = (each.rid for each in heard.publishers if each.phase is PublisherPhase.READY)
        return (
            any(peer.node_rid == rid and peer.phase is PeerPhase.READY for peer in rt.mesh_snapshot(MESH).peers),
            any((each or "").startswith(f"{name}-") for each in servers),
            any((each or "").startswith(f"{name}-") for each in publishers),
        )

    def _is_ready(self, rt: Runtime, node: NodeProcess) -> bool:
        return all(self._connections(rt, node.name, node.rid))

    def _is_in_use(self, rt: Runtime, name: str, rid: str | None) -> bool:
        return any(self._connections(rt, name, rid))

    def _picture(self) -> Picture:
        assert self._rt is not None
        now = trio.current_time()
        rows = tuple(self._row(self._rt, node, now) for node in self.nodes)
        return Picture(
            elapsed=now - self._began,
            rows=rows,
            ready_peers=self._rt.mesh_status(MESH).ready_peers,
            answered=self.tally.answered,
            cut_off=self.tally.cut_off,
            lost=self.tally.lost,
        )

    def _row(self, rt: Runtime, node: NodeProcess, now: float) -> NodeRow:
        if not node.is_running:
            state = "killed"
        elif node.rid is None:
            state = "starting"
        else:
            state = "ready" if self._is_ready(rt, node) else "not ready"
        rates = self.tally.rates(node.name, now)
        return NodeRow(
            name=node.name,
            rid=node.rid,
            state=state,
            per_second=rates.per_second,
            p50=rates.p50,
            p99=rates.p99,
            events=self.tally.events[node.name],
        )

    def _say(self, text: str) -> None:
        self._view.event(text, trio.current_time() - self._began)

    async def _remove_directory(self) -> None:
        """The embedded store leaves within moments after its last user; remove what it wrote on its way out, too."""
        with trio.move_on_after(_REMOVE_SECONDS):
            while self._directory.exists():
                await trio.to_thread.run_sync(lambda: shutil.rmtree(self._directory, ignore_errors=True))
                await trio.sleep(_LOOK_SECONDS)
