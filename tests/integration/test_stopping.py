"""The end of a host: in every phase, in bounded time, with the right exit code, and nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.integration.load import QUICK, Load, NodeProcess, caller, processes, settings_of
from tests.integration.programs.node import CHANNEL, MESH, Answer, Ask
from tests.location_server import TestServer
from tests.puppet import until

# -- processes


async def stopped(node: NodeProcess, seconds: float) -> int:
    """SIGTERM, and the exit code within `seconds`."""
    node.signal(signal.SIGTERM)
    with trio.fail_after(seconds):
        return await node.ended()


async def test_sigterm_while_the_store_hangs_at_the_start(place: Path, valkey: TestServer) -> None:
    valkey.pause()
    node = NodeProcess("--store", valkey.url, cwd=place)
    try:
        await until(lambda: node.catches(signal.SIGTERM))
        assert await stopped(node, 8) == 0
        assert node.session_is_empty()
    finally:
        node.close()


@pytest.mark.parametrize("phase", ["idle", "idle, store hanging", "under load", "under load, store hanging"])
async def test_sigterm_while_serving(place: Path, valkey: TestServer, phase: str) -> None:
    """Under load every request ends once: answered by who is left, or by who leaves before it has gone."""
    arguments = ["--store", valkey.url, *settings_of(QUICK)]
    async with processes(place) as start:
        a = await start(*arguments)
        async with caller(store=valkey.url) as here:
            await until(lambda: here.targets == 1)
            async with Load.on(here.rt, tasks=8 if "load" in phase else 0) as load:
                if "load" in phase:
                    b = await start(*arguments)
                    await until(lambda: load.answered_by[b.pid] > 50)
                if "hanging" in phase:
                    valkey.pause()
                    await trio.sleep(0.5)
                assert await stopped(a, 12) == 0
                assert a.session_is_empty()
                assert a.lines[-1].startswith('{"event": "stopped", "outcome": "stopped"')
                await until(lambda: not here.is_ready(a.rid), 1)
            valkey.resume()
            load.assert_each_ended_once()
            # What was accepted was answered, what came later went elsewhere.
            assert set(load.ends) <= {"answered"}


async def test_sigterm_with_a_running_handler_waits_and_says_for_what(place: Path) -> None:
    async with processes(place) as start:
        a = await start()
        async with caller(peers=[a.endpoint]) as here, trio.open_nursery() as nursery:
            await until(lambda: here.targets == 1)
            answers: list[Answer] = []

            async def ask() -> None:
                answers.append(await here.rt.request_to_channel(CHANNEL, Ask(1, hold=2.0)))

            nursery.start_soon(ask)
            await trio.to_thread.run_sync(a.line, "holding")
            assert await stopped(a, 6) == 0
            assert answers == [Answer(1, a.pid)]
            assert "ask" in a.stderr


@pytest.mark.parametrize("second", [signal.SIGTERM, None])
async def test_a_drain_ends_at_its_deadline_and_names_what_it_cut(place: Path, second: signal.Signals | None) -> None:
    """Also when SIGTERM comes again while it is draining: a supervisor that repeats itself changes nothing."""
    async with processes(place) as start:
        a = await start("--set", "shutdown_deadline=2")
        async with caller(peers=[a.endpoint]) as here, trio.open_nursery() as nursery:
            await until(lambda: here.targets == 1)
            ends: list[str] = []

            async def ask() -> None:
                try:
                    await here.rt.request_to_channel(CHANNEL, Ask(1, hold=60.0))
                except zl.ZlinkError as error:
                    ends.append(type(error).__name__)

            nursery.start_soon(ask)
            await trio.to_thread.run_sync(a.line, "holding")
            began = trio.current_time()
            a.signal(signal.SIGTERM)
            await trio.sleep(0.7)
            if second is not None:
                a.signal(second)
            with trio.fail_after(6):
                assert await a.ended() == 5
            assert 1.9 <= trio.current_time() - began < 5
            assert "tests.integration.programs.node:ask" in a.lines[-1]
            assert '"deadline_exceeded"' in a.lines[-1]
            assert a.session_is_empty()
        assert ends == ["UnavailableError"]


# -- in this process


def descriptors() -> Counter[str]:
    """What is open, without the numbers that differ each time."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing itself
            continue
        found[target.split(":", 1)[0] if target.startswith(("socket:", "pipe:", "anon_inode:")) else target] += 1
    return found


class Tasks(trio.abc.Instrument):
    """The tasks that were started and have not ended."""

    def __init__(self) -> None:
        self.alive: set[trio.lowlevel.Task] = set()

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.alive.add(task)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self.alive.discard(task)


def zlinkpy_threads() -> list[str]:
    """Threads that are not trio's own cached workers."""
    return sorted(thread.name for thread in threading.enumerate() if not thread.name.startswith("Trio thread"))


async def served(store: str | None, how: str) -> None:
    """Two hosts that talk, and an end of the given kind."""

    def build(name: str, peers: tuple[str, ...] = ()) -> zl.Host:
        host = zl.Host(location_store=store, location=QUICK if store else None, shutdown_deadline=0.3)
        mesh = host.mesh(MESH, rid_prefix=name, peers=peers)
        mesh.serve_channel(CHANNEL)

        @mesh.on_channel_request(CHANNEL)
        async def ask(message: Ask) -> Answer:
            await trio.sleep(message.hold)
            return Answer(message.n, 0)

        return host

    async def forget(rt: zl.Runtime) -> None:
        with trio.move_on_after(0.1):
            await rt.request_to_channel(CHANNEL, Ask(1, hold=100))

    async def talk() -> None:
        async with build("a").run() as a:
            async with build("b", () if store else (a.endpoint(MESH),)).run() as b:
                await until(lambda: b.mesh_status(MESH).ready_targets[CHANNEL] == 2)
                for number in range(50):
                    await b.request_to_channel(CHANNEL, Ask(number))
                if how == "error":
                    raise Stop
                if how == "cancelled":
                    scope.cancel()
                    await trio.sleep_forever()
                if how == "forced":
                    await forget(b)
                    await forget(b)
                    await a.shutdown(0.2)

    with trio.CancelScope() as scope:
        try:
            await talk()
        except Stop:
            pass


class Stop(Exception):
    """An application's own error."""


@pytest.mark.contract("LV-158")
@pytest.mark.parametrize("with_store", [False, True], ids=["configured", "discovered"])
@pytest.mark.parametrize("how", ["orderly", "error", "cancelled", "forced"])
def test_after_the_block_no_task_thread_or_descriptor_is_left(valkey: TestServer, how: str, with_store: bool) -> None:
    store = valkey.url if with_store else None
    after: list[Any] = []

    async def main() -> None:
        tasks = Tasks()
        trio.lowlevel.add_instrument(tasks)
        for _ in range(3):
            await served(store, how)
            # The system's own tasks (run_sync_soon) are not ours; everything else that began has ended.
            gc.collect()
            after.append((descriptors(), zlinkpy_threads(), len(tasks.alive)))
        trio.lowlevel.remove_instrument(tasks)

    threads = zlinkpy_threads()
    trio.run(main)
    # The first round leaves what a process keeps for good; the others leave exactly that.
    assert after[1] == after[2]
    assert after[0][0] == after[2][0]
    for _, running, tasks in after:
        assert running == threads
        assert tasks == 0


async def test_a_listener_can_be_bound_again_at_once(place: Path) -> None:
    """Three runs at one endpoint, one after the other, with a caller that is connected all the time."""
    endpoint = ""
    async with trio.open_nursery() as nursery:
        seen: list[int] = []

        async def run_caller(task_status: trio.TaskStatus[Any]) -> None:
            async with caller(peers=[endpoint]) as here:
                task_status.started(here)
                await done.wait()

        done = trio.Event()
        here: Any = None
        for number in range(3):
            host = zl.Host()
            mesh = host.mesh(MESH, rid=f"n{number}", listen=endpoint or "tcp://127.0.0.1:0")
            mesh.serve_channel(CHANNEL)

            @mesh.on_channel_request(CHANNEL)
            async def ask(message: Ask, number: int = number) -> Answer:
                return Answer(number, 0)

            async with host.run() as rt:
                endpoint = rt.endpoint(MESH)
                if here is None:
                    here = await nursery.start(run_caller)
                await until(lambda: here.targets == 1)
                seen.append((await here.rt.request_to_channel(CHANNEL, Ask(0))).n)
            await until(lambda: here.targets == 0)
        done.set()
    assert seen == [0, 1, 2]
