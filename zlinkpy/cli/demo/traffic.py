"""Real requests, each counted exactly once by how it ended.

Answered and right, cut off (the node it was given to died), wrong, or lost. Only the last two are failures: a request
that was in flight to a killed process cannot be answered, and saying so at once is what the framework promises.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence

import trio
from attrs import define, field, frozen

from zlinkpy.cli.demo.node import MESH, Echo, Greet, Square, Sum
from zlinkpy.errors import DeadlineExceededError, NotFoundError, UnavailableError, ZlinkError
from zlinkpy.mesh import PeerPhase
from zlinkpy.runtime import Runtime

CALLERS = 8
PAUSE_SECONDS = 0.005
TIMEOUT_SECONDS = 3.0
WINDOW_SECONDS = 1.0


@frozen
class Rates:
    """Figures of some requests; times in seconds, None without requests."""

    per_second: float
    p50: float | None
    p99: float | None


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of `ordered` do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else None


@define(eq=False)
class Tally:
    """Counts and times of one run."""

    started: int = 0
    answered: int = 0
    cut_off: int = 0
    wrong: int = 0
    timed_out: int = 0
    problems: list[str] = field(factory=list)
    """What was wrong, for the summary; at most a few."""
    seconds: list[float] = field(factory=list)
    events: Counter[str] = field(factory=Counter)
    """Events heard of each node."""
    _recent: dict[str, deque[tuple[float, float]]] = field(factory=dict)

    @property
    def lost(self) -> int:
        """Requests without an end, and those that only time ended."""
        return self.started - self.answered - self.cut_off - self.wrong

    def answer(self, node: str, at: float, seconds: float) -> None:
        """Count one right answer."""
        self.answered += 1
        self.seconds.append(seconds)
        self._recent.setdefault(node, deque()).append((at, seconds))

    def problem(self, text: str) -> None:
        """Keep the first few."""
        if len(self.problems) < 3:
            self.problems.append(text)

    def last_answer(self, node: str) -> float:
        """When `node` answered last, as far as the window reaches; minus infinity for "not lately"."""
        recent = self._recent.get(node)
        return recent[-1][0] if recent else -math.inf

    def rates(self, node: str, now: float) -> Rates:
        """Of one node, over the last seconds."""
        recent = self._recent.setdefault(node, deque())
        while recent and recent[0][0] < now - WINDOW_SECONDS:
            recent.popleft()
        ordered = sorted(seconds for _, seconds in recent)
        return Rates(len(ordered) / WINDOW_SECONDS, percentile(ordered, 0.5), percentile(ordered, 0.99))

    def overall(self) -> tuple[float | None, float | None]:
        """p50 and p99 of all answers."""
        ordered = sorted(self.seconds)
        return percentile(ordered, 0.5), percentile(ordered, 0.99)


async def drive(rt: Runtime, tally: Tally, stopping: trio.Event) -> None:
    """Keep asking until `stopping` is set; returns when the last request has ended."""
    async with trio.open_nursery() as nursery:
        for number in range(CALLERS):
            nursery.start_soon(_caller, rt, tally, stopping, number)


async def _caller(rt: Runtime, tally: Tally, stopping: trio.Event, number: int) -> None:
    count = number
    while not stopping.is_set():
        count += 1
        tally.started += 1
        began = trio.current_time()
        try:
            node = await _ask(rt, count)
        except DeadlineExceededError as error:
            tally.timed_out += 1
            tally.problem(error.message)
        except (UnavailableError, NotFoundError):
            tally.cut_off += 1
        except (ZlinkError, ValueError) as error:
            tally.wrong += 1
            tally.problem(str(error))
        else:
            now = trio.current_time()
            tally.answer(node, now, now - began)
        await trio.sleep(PAUSE_SECONDS)


async def _ask(rt: Runtime, count: int) -> str:
    """One request, of four kinds in turn; returns who answered. Raises ValueError for a wrong answer."""
    kind = count % 4
    if kind == 3:
        squared = await rt.request_to_channel("square", Square(count), timeout=TIMEOUT_SECONDS)
        if squared.value != count * count:
            raise ValueError(f"{count} squared came back as {squared.value}")
        return squared.served_by
    if kind == 0:
        text = f"message {count}"
        echoed = await rt.request_to_channel("echo", Echo(text), timeout=TIMEOUT_SECONDS)
        if echoed.text != text:
            raise ValueError(f"echo of {text!r} came back as {echoed.text!r}")
        return echoed.served_by
    ready = [peer.node_rid for peer in rt.mesh_snapshot(MESH).peers if peer.phase is PeerPhase.READY]
    if kind == 1 or not ready:
        total = await rt.request_to_channel("sum", Sum([count, 1]), timeout=TIMEOUT_SECONDS)
        if total.value != count + 1:
            raise ValueError(f"{count} + 1 came back as {total.value}")
        return total.served_by
    rid = ready[count // 4 % len(ready)]
    assert rid is not None
    greeting = await rt.request_to_node(MESH, rid, Greet(), timeout=TIMEOUT_SECONDS)
    if not rid.startswith(greeting.served_by):
        raise ValueError(f"{greeting.served_by} answered a request to {rid}")
    return greeting.served_by
