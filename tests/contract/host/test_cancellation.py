"""Cancellation at every step of every call: afterwards no permit is in use, the table is empty, and nobody waits.

Each scenario is run again and again. In run k the calling task is cancelled when it is resumed for the k-th time (0:
before the call), until a run is no longer cut short. What may be seen afterwards is the same for all of them: the
message was handled at most once; handled exactly once where the call returned (SA-205, SA-241, SA-213).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import define

from tests.contract.host.hosts import CHANNEL, MESH, Ask, Lan, Node, Note
from tests.puppet import until

STEPS = 60
quiet = trio.testing.wait_all_tasks_blocked


class CutAt(trio.abc.Instrument):
    """Cancels a scope when its task is resumed for the n-th time; 0: at once."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, step: int) -> None:
        self._task = task
        self._scope = scope
        self._left = step
        self.fired = False
        self._look()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """The task's wait is over; a cancellation now is delivered at its next one."""
        if task is self._task:
            self._left -= 1
            self._look()

    def _look(self) -> None:
        if self._left == 0:
            self.fired = True
            self._scope.cancel()


@define
class Cut:
    """What one run saw."""

    fired: bool
    cancelled: bool


async def run_cut(call: Callable[[], Awaitable[object]], step: int) -> Cut:
    """Run `call` in a task of its own, cut at `step`."""
    result: list[Cut] = []

    async def main() -> None:
        with trio.CancelScope() as scope:
            cutter = CutAt(trio.lowlevel.current_task(), scope, step)
            trio.lowlevel.add_instrument(cutter)
            try:
                await call()
            finally:
                trio.lowlevel.remove_instrument(cutter)
        result.append(Cut(cutter.fired, scope.cancelled_caught))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(main)
    return result[0]


@define
class Scene:
    """Where a call is made, and what the rest of the world does meanwhile."""

    caller: Node
    server: Node
    meanwhile: Callable[[], Awaitable[None]] | None = None
    after: Callable[[], None] | None = None
    again: Callable[[], bool] | None = None
    """True once the scene is as it was before the call."""


@asynccontextmanager
async def remote(lan: Lan) -> AsyncIterator[Scene]:
    """Another node, that takes the message at once."""
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        yield Scene(z, a)


@asynccontextmanager
async def slow(lan: Lan) -> AsyncIterator[Scene]:
    """Another node, 10 ms away each way."""
    async with remote(lan) as scene:
        lan.network.delay("a", "z", 0.01)
        yield scene


@asynccontextmanager
async def paused(lan: Lan) -> AsyncIterator[Scene]:
    """Another node that asked to hold back, and goes on while the call waits."""
    async with remote(lan) as scene:
        held = [scene.server.use_up_permits()]
        await until(lambda: scene.caller.snapshot("a").paused)

        async def go_on() -> None:
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            held[0].all()

        def hold_again() -> None:
            held[0] = scene.server.use_up_permits()

        scene.meanwhile, scene.after = go_on, hold_again
        scene.again = lambda: scene.caller.snapshot("a").paused
        yield scene
        held[0].all()


@asynccontextmanager
async def local(lan: Lan) -> AsyncIterator[Scene]:
    """The caller's own node."""
    async with lan.node("a", port=1, weight=100) as a:
        yield Scene(a, a)


@asynccontextmanager
async def local_full(lan: Lan) -> AsyncIterator[Scene]:
    """The caller's own node without a free permit, until one comes back while the call waits."""
    async with lan.node("a", port=1, weight=100) as a:
        held = [a.use_up_permits()]

        async def go_on() -> None:
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            held[0].all()

        def hold_again() -> None:
            held[0] = a.use_up_permits()

        yield Scene(a, a, go_on, hold_again)
        held[0].all()


@asynccontextmanager
async def admission(lan: Lan) -> AsyncIterator[Scene]:
    """A client whose connection is being made while the call waits for it."""
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        lan.network.delay("a", "z", 0.05)
        (holder,) = z.core.holders

        def is_made() -> bool:
            return z.targets == 0 and holder._is_under_way()

        def lose() -> None:
            lan.network.cut(("a", "z"))

        lose()
        await until(is_made)
        yield Scene(z, a, after=lose, again=is_made)


CALLS: dict[str, Callable[[Node, int], Awaitable[object]]] = {
    "send_to_channel": lambda node, n: node.rt.send_to_channel(CHANNEL, Note(n)),
    "request_to_channel": lambda node, n: node.rt.request_to_channel(CHANNEL, Ask(n, hold=0.01), timeout=5),
    "send_to_node": lambda node, n: node.rt.send_to_node(MESH, "a", Note(n)),
    "request_to_node": lambda node, n: node.rt.request_to_node(MESH, "a", Ask(n, hold=0.01), timeout=5),
}


MESH_SCENES = (remote, slow, paused, local, local_full)
CHANNEL_SCENES = (remote, slow, paused, admission)
CHANNEL_CALLS = ("send_to_channel", "request_to_channel")


@pytest.mark.contract("SA-205", "SA-241")
@pytest.mark.parametrize(
    ("lan", "scene", "call"),
    [
        *(("mesh", scene, call) for scene in MESH_SCENES for call in CALLS),
        *(("client_server", scene, call) for scene in CHANNEL_SCENES for call in CHANNEL_CALLS),
    ],
    indirect=["lan"],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_a_call_cut_at_any_step_leaves_nothing_behind(
    autojump_clock: object, lan: Lan, scene: Callable[[Lan], object], call: str
) -> None:
    cut_short = 0
    async with scene(lan) as at:  # type: ignore[attr-defined]
        for step in range(STEPS):
            before = len(at.server.got)
            async with trio.open_nursery() as nursery:
                if at.meanwhile is not None:
                    nursery.start_soon(at.meanwhile)
                cut = await run_cut(lambda step=step: CALLS[call](at.caller, step), step)
            await trio.sleep(1)
            handled = at.server.numbers[before:]
            assert handled in ([], [step]), (step, cut)
            if not cut.cancelled:
                assert handled == [step], (step, cut)
            at.caller.assert_nothing_held()
            at.server.assert_nothing_held()
            if not cut.fired:
                break
            cut_short += cut.cancelled
            if at.after is not None:
                at.after()
                if at.again is not None:
                    await until(at.again)
        else:
            raise AssertionError(f"still cut after {STEPS} steps")
        statistics = at.caller.rt.request_statistics
        ended = statistics.replied + statistics.cancelled
        assert statistics.started == ended
        assert statistics.pending == 0
    assert cut_short >= 1


@pytest.mark.contract("SA-213", "SA-245")
async def test_a_cancelled_waiter_lets_the_others_go_first(autojump_clock: object, lan: Lan) -> None:
    """Of fifty that wait for one peer every place in the line is cancelled once; the others arrive, in order."""
    async with remote(lan) as at:
        for victim in range(0, 50, 7):
            before = len(at.server.got)
            release = at.server.use_up_permits()
            await until(lambda: at.caller.snapshot("a").paused)
            scopes = [trio.CancelScope() for _ in range(50)]

            async def send(number: int, scopes: list[trio.CancelScope] = scopes) -> None:
                with scopes[number]:
                    await at.caller.rt.send_to_channel(CHANNEL, Note(number))

            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(send, number)
                    await quiet()
                scopes[victim].cancel()
                release.all()
            await until(lambda before=before: len(at.server.got) == before + 49)
            assert at.server.numbers[before:] == [number for number in range(50) if number != victim]
            at.caller.assert_nothing_held()


@pytest.mark.contract("SA-207")
async def test_a_cancelled_nursery_of_requests_leaves_the_table_empty(autojump_clock: object, lan: Lan) -> None:
    async with remote(lan) as at:
        with trio.move_on_after(0.5):
            async with trio.open_nursery() as nursery:
                for number in range(500):
                    nursery.start_soon(
                        lambda n=number: at.caller.rt.request_to_channel(CHANNEL, Ask(n, hold=n / 500), timeout=5)
                    )
        at.caller.assert_nothing_held()
        statistics = at.caller.rt.request_statistics
        assert statistics.replied + statistics.cancelled == 500
        assert statistics.replied > 200
        assert statistics.cancelled > 200
        await trio.sleep(2)
        assert len(at.server.got) == 500
        at.server.assert_nothing_held()
