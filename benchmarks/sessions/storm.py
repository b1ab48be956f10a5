"""Three nodes, one real Valkey, many keyed submits, and nodes that are killed all the time (SR-462).

usage: python -m benchmarks.sessions.storm [--submits 20000] [--sessions 200] [--kill-every 8] [--scale 0.2] [--seed N]

Exit status 1 unless there were no overlapping turns, no double executions without a death, and nothing left open. A
submit whose node dies, or whose turn is lost with its holder, is sent to another node with the same key, as clients do.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import redis
import trio
from attrs import define, field, frozen

from benchmarks.harness import ROOT
from benchmarks.sessions.ledger import Verdict, judge, read_runs
from zlinkpy.location.embedded_server import EmbeddedServer

NODES: Final = 3
SLOTS: Final = 32
"""Submits that one node has open at once."""
RETRY_PAUSE: Final = 0.2
PROGRESS_SECONDS: Final = 5.0
LOST: Final = "HolderLostError"


@frozen(kw_only=True)
class Plan:
    """What a storm does."""

    submits: int
    sessions: int
    kill_every: float
    scale: float
    seed: int
    limit: float


@define(eq=False)
class Node:
    """One process, until it is killed or told to end."""

    name: str
    process: trio.Process
    open: dict[str, str] = field(factory=dict)
    """Session by key, of what it has not answered."""
    serving: trio.Event = field(factory=trio.Event)
    room: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)
    killed: bool = False
    left: dict[str, int] | None = None


class Storm:
    """See the module."""

    def __init__(self, plan: Plan, store: str, server: redis.Redis) -> None:
        self._plan, self._store, self._server = plan, store, server
        self._random = random.Random(plan.seed)
        self._nodes: list[Node] = []
        self._started = 0
        self._waiting: list[tuple[str, str]] = []
        self._work = trio.Event()
        self._all_done = trio.Event()
        self._orders: trio.Nursery
        self.done: set[str] = set()
        self.failed: set[str] = set()
        self.errors: Counter[str] = Counter()
        self.deaths: dict[str, int] = {}
        self.left = 0
        self.session_of = {f"k{number}": f"s{self._random.randrange(plan.sessions)}" for number in range(plan.submits)}

    async def run(self) -> float:
        """Blow; how many seconds the submits took."""
        async with trio.open_nursery() as nursery:
            self._orders = nursery
            for _ in range(NODES):
                await self._start(nursery)
            began = trio.current_time()
            self._waiting = list(self.session_of.items())
            self._rouse()
            with trio.move_on_after(self._plan.limit):
                async with trio.open_nursery() as while_it_lasts:
                    while_it_lasts.start_soon(self._kill_now_and_then, nursery)
                    while_it_lasts.start_soon(self._tell)
                    await self._all_done.wait()
                    while_it_lasts.cancel_scope.cancel()
            took = trio.current_time() - began
            for node in self._nodes:
                assert node.process.stdin is not None
                await node.process.stdin.aclose()
            for node in self._nodes:
                with trio.move_on_after(120):
                    await node.ended.wait()
                if node.left is None:
                    self.left += len(node.open)
                    node.process.kill()
                else:
                    self.left += sum(node.left.values())
            nursery.cancel_scope.cancel()
        self.left += len(self.session_of) - len(self.done)
        return took

    # -- nodes

    async def _start(self, nursery: trio.Nursery) -> None:
        self._started += 1
        name = f"node-{self._started}"
        command = [sys.executable, "-m", "benchmarks.sessions.worker", "--store", self._store, "--node", name]
        command += ["--scale", str(self._plan.scale)]
        run = partial(trio.run_process, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False)
        process: trio.Process = await nursery.start(run, command)
        node = Node(name, process)
        self._nodes.append(node)
        nursery.start_soon(self._hear, node)
        nursery.start_soon(self._feed, node)
        await node.serving.wait()

    async def _hear(self, node: Node) -> None:
        assert node.process.stdout is not None
        rest = b""
        async for data in node.process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._answered(node, json.loads(line))
        node.ended.set()
        if not node.killed and node.left is None:
            raise SystemExit(f"{node.name} ended by itself with status {await node.process.wait()}")

    def _answered(self, node: Node, answer: dict[str, Any]) -> None:
        if "serving" in answer:
            node.serving.set()
        elif "left" in answer:
            node.left = answer
        else:
            key, error = answer["key"], answer["error"]
            session = node.open.pop(key)
            node.room.set()
            if error is None:
                self.done.add(key)
                if len(self.done) == len(self.session_of):
                    self._all_done.set()
                return
            self.errors[error] += 1
            if error != LOST:
                self.failed.add(key)
            self._orders.start_soon(self._again, key, session)

    async def _again(self, key: str, session: str) -> None:
        await trio.sleep(RETRY_PAUSE)
        self._waiting.append((key, session))
        self._rouse()

    def _rouse(self) -> None:
        """There is something to submit."""
        self._work.set()
        self._work = trio.Event()

    async def _feed(self, node: Node) -> None:
        assert node.process.stdin is not None
        await node.serving.wait()
        while not node.killed:
            if len(node.open) >= SLOTS:
                node.room = trio.Event()
                await node.room.wait()
                continue
            if not self._waiting:
                await self._work.wait()
                continue
            key, session = self._waiting.pop()
            node.open[key] = session
            order = json.dumps({"session": session, "key": key}).encode() + b"\n"
            try:
                await node.process.stdin.send_all(order)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def _kill_now_and_then(self, nursery: trio.Nursery) -> None:
        while True:
            await trio.sleep(self._plan.kill_every * self._random.uniform(0.5, 1.5))
            node = self._random.choice(self._nodes)
            node.process.kill()
            node.killed = True
            seconds, micros = self._server.time()
            self.deaths[node.name] = seconds * 1000 + micros // 1000
            # What it said before it died counts.
            await node.ended.wait()
            self._nodes.remove(node)
            node.room.set()
            self._waiting += node.open.items()
            self._rouse()
            await self._start(nursery)

    async def _tell(self) -> None:
        while True:
            await trio.sleep(PROGRESS_SECONDS)
            print(f"{len(self.done)} of {len(self.session_of)}, {len(self.deaths)} killed", file=sys.stderr, flush=True)

    # -- afterwards

    def lost_commits(self) -> int:
        """Keys that were told to have succeeded and are not in their session's state."""
        kept: dict[str, set[str]] = {}
        for session in set(self.session_of.values()):
            state: Any = self._server.hget(f"zl:{{{session}}}:rec", "state")
            kept[session] = set((state or b"").decode().split())
        return sum(key not in kept[self.session_of[key]] for key in self.done)


def report(storm: Storm, verdict: Verdict, took: float) -> dict[str, Any]:
    """The figures, as printed."""
    return {
        "submits": len(storm.session_of),
        "seconds": round(took, 1),
        "submits_per_s": round(len(storm.done) / took, 1),
        "nodes_killed": len(storm.deaths),
        "turns": verdict.runs,
        "turns_that_began_without_a_fence": verdict.unfenced,
        "second_runs_after_a_death": verdict.doubles_by_death,
        "second_runs_after_a_failure": verdict.doubles_by_failure,
        "errors_told": dict(storm.errors),
        "bad": {**verdict.bad, "futures left": storm.left, "results told and not kept": storm.lost_commits()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a storm and print its figures as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sessions.storm", description="Kill nodes and count.")
    parser.add_argument("--submits", type=int, default=20_000)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--kill-every", type=float, default=8.0, help="seconds between kills, on average")
    parser.add_argument("--scale", type=float, default=0.2, help="factor of all durations of the routers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which what is open counts as left")
    plan = Plan(**vars(parser.parse_args(arguments)))
    with tempfile.TemporaryDirectory(prefix="zl-storm-") as directory:
        embedded = EmbeddedServer(Path(directory))
        embedded.start()
        server = redis.Redis(unix_socket_path=embedded.socket_path, protocol=2)
        try:
            storm = Storm(plan, embedded.url, server)
            took = trio.run(storm.run)
            verdict = judge(read_runs(server), storm.deaths, frozenset(storm.failed))
            figures = report(storm, verdict, took)
        finally:
            server.close()
            embedded.stop()
    print(json.dumps(figures))
    for key in verdict.doubles[:10]:
        print(f"ran twice: {key}", file=sys.stderr)
    return 1 if any(figures["bad"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
