"""What serves every socket of a transport, one task at a time, and the three ways it is kept from sleeping too long.

The descriptor of a ZeroMQ socket says "something happened since you last looked", once. *Any* operation on the socket
counts as looking, a send by another task too. Three rules follow:

1. A turn ends at a bound (and the source stays in the ready set) or when a receive answers EAGAIN. EAGAIN proves that
   every pending event was processed, so the next arrival signals anew.
2. A send looks: while the stage is parked, the send itself reads `EVENTS` once (1.2 us); while it runs, the source is
   marked as touched and looked at before the stage can park.
3. Nothing is handed from the socket to a sink across an `await`.

Only the first send of a scheduler pass goes out by itself. Those behind it are corked by their connection and submitted
together when the pass is over, by the stage or, while that is parked, by a second task, the looker, which also looks
once for all of them. So a lone request pays for one look and wakes nobody, and a burst pays for one look and one task
switch. Waking the stage itself would cost a system call and, on the way back, 8 us for every arrival.

The task that serves is the *leader*. At first it is the stage's own, `run`. `borrow` lends the leadership to the tasks
that do the work which records bring, so that a record and its answer need no task switch in between:

    own --borrow()--> asked --own task left its wait--> lent --give_back()--> own

A leader calls `wait` and then `serve` until that answers False, and may do other work between any two calls; what that
work sent leaves with the next of them. So a turn comes in slices: the other side has the first answers while the rest
is still worked on. After a rotation that left something unread turns come whole: what arrives faster than it is worked
on has to wait where it is counted, in the job queue, whose pressure is told to peers, and not in libzmq and the
kernel, where probes would wait behind it (LV-116).

Only `wait` awaits, and a leader cancelled there has lost nothing. Whoever borrowed gives back, also when cancelled:
connections have to be seen to end. The borrower's failure inside `wait` or `serve` is the stage's own: `run` raises it.

A sender that found the send queue full waits until its source shows activity, and tries again. A dialled socket has one
peer and shows exactly when it has room. A listening socket has many and shows room when *any* peer has it, so its
blocked senders are tried on every activity of the socket; what a read of `EVENTS` swallows between two tries is
caught by a slow tick that exists only while somebody is blocked (`BLOCKED_TICK`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

import trio

from zlinkpy.transport.readiness import Readiness
from zlinkpy.transport.rotation import Budgets, Rotation

# Seconds between two tries for senders blocked on a listening socket that shows no activity at all.
BLOCKED_TICK = 0.1

# Records of a turn that are handed over before what they brought is worked on and its answers leave. With fewer, waking
# the other side costs more than working at the same time as it gains.
SLICE_RECORDS = 16


class TurnEnd(Enum):
    """How a turn ended."""

    EMPTY = auto()
    """Nothing is waiting; the descriptor will say when that changes."""
    BOUND = auto()
    """A bound was reached; more may be waiting."""
    PAUSED = auto()
    """The owner wants no more; `schedule` when that changes."""
    SLICE = auto()
    """No end: the turn goes on when what its records brought has been worked on."""


class Source(Protocol):
    """A socket with its monitor, as the stage sees it."""

    touch_level: int
    """0: not touched since the last look; 1: touched by a refused send; 2: by a successful one."""

    def take_turn(self, budgets: Budgets, clock: Callable[[], float], *, fresh: bool) -> TurnEnd:
        """Hand over at most a slice of records. Not `fresh`: go on with the turn that the last slice was part of."""

    def look(self) -> bool:
        """Read `EVENTS`; True: input is waiting. Notes by itself whether blocked senders should try again."""

    def observe(self) -> None:
        """Read the monitor."""

    def relieve(self, *, fresh: bool) -> bool:
        """Let blocked senders try again; True: call once more in the next cycle, with or without a fresh sign."""

    @property
    def is_blocked(self) -> bool: ...


class Corked(Protocol):
    """A connection with corked records."""

    def uncork(self) -> None: ...


class ReceiveStage:
    """The receive stage of one transport. Everything here runs on the trio thread and is synchronous but for the
    three tasks and what a leader waits in."""

    def __init__(self, readiness: Readiness[Callable[[], None]], budgets: Budgets) -> None:
        self._readiness = readiness
        self._budgets = budgets
        self._clock = trio.lowlevel.current_clock().current_time
        self._rotation: Rotation[Source] = Rotation()
        self._ready: dict[Source, None] = {}
        # True: there is a fresh sign of room; False: the sender woken last has not been refused yet.
        self._relief: dict[Source, bool] = {}
        self._touched: list[Source] = []
        # Connections that hold records to be submitted at the end of this scheduler pass.
        self._corked: list[Corked] = []
        self._chores: deque[Callable[[], None]] = deque()
        self._parked = False
        # What is left of the rotation under way, its next source last, and whether that source's turn has begun.
        self._plan: list[Source] = []
        self._begun = False
        self._rotation_ends_at = 0.0
        # Whether the last rotation left something unread, and whether the present one does.
        self.is_behind = False
        self._falls_behind = False
        self._own_lead: trio.CancelScope | None = None
        self._is_lent = False
        self._lent = trio.Event()
        self._given_back = trio.Event()
        self._failure: BaseException | None = None
        self._idle_looker: trio.lowlevel.Task | None = None
        self._deadlines: list[tuple[float, int, Callable[[], None]]] = []
        self._deadline_numbers = count()
        self._deadline_changed = trio.Event()

    @property
    def clock(self) -> Callable[[], float]:
        """The run's monotonic clock (LV-10)."""
        return self._clock

    # -- called by sources and connections

    def add(self, source: Source, socket_fd: int, monitor_fd: int) -> None:
        self._rotation.add(source)
        self.add_monitor(monitor_fd, source.observe)
        self._readiness.register(socket_fd, partial(self.activity, source))
        self.schedule(source)

    def add_monitor(self, monitor_fd: int, observe: Callable[[], None]) -> None:
        self._readiness.register(monitor_fd, observe)
        # Whatever was signalled before the descriptor was watched is found by looking once.
        self.chore(observe)

    def remove_socket(self, source: Source, socket_fd: int) -> None:
        """Serve the socket no more; its monitor is still read."""
        self._readiness.unregister(socket_fd)
        self._rotation.discard(source)
        self._ready.pop(source, None)
        self._relief.pop(source, None)

    def remove_monitor(self, monitor_fd: int) -> None:
        self._readiness.unregister(monitor_fd)

    def activity(self, source: Source) -> None:
        """The source's descriptor fired: input, or room in a send queue."""
        if source in self._rotation:
            self._ready[source] = None
            if source.is_blocked:
                self._relief[source] = True

    def touch(self, source: Source, level: int) -> None:
        """A send, refused or not, may have swallowed a wake-up of `source`."""
        if not source.touch_level:
            self._touched.append(source)
        source.touch_level = level
        if self._parked:
            self._look_at(source, level)
            if self._has_work():
                self._readiness.wake()

    def cork(self, connection: Corked) -> None:
        """`connection` holds records: have them submitted when this scheduler pass is over."""
        self._corked.append(connection)
        if self._parked and self._idle_looker is not None:
            looker, self._idle_looker = self._idle_looker, None
            trio.lowlevel.reschedule(looker)

    def schedule(self, source: Source) -> None:
        """Give `source` a turn, unless its socket is gone."""
        if source in self._rotation:
            self._ready[source] = None
            self._wake()

    def request_relief(self, source: Source) -> None:
        self._relief[source] = True
        self._wake()

    def chore(self, work: Callable[[], None]) -> None:
        """Run `work` in the stage, soon: callbacks to sinks never happen inside a caller's `send` or `close`."""
        self._chores.append(work)
        self._wake()

    def at(self, when: float, work: Callable[[], None]) -> None:
        """Run `work` in the stage at `when`. There is no cancelling: `work` looks whether it still applies."""
        heappush(self._deadlines, (when, next(self._deadline_numbers), work))
        if self._deadlines[0][2] is work:
            self._deadline_changed.set()

    def _wake(self) -> None:
        if self._parked:
            self._readiness.wake()

    # -- the tasks

    async def run(self) -> None:
        """Lead whenever nobody else does, until cancelled."""
        while True:
            if not self._is_lent:
                with trio.CancelScope() as self._own_lead:
                    while True:
                        await self.wait()
                        while self.serve():
                            pass
            self._own_lead = None
            self._lent.set()
            await self._given_back.wait()
            if self._failure is not None:
                raise self._failure

    # -- the leadership

    async def borrow(self) -> None:
        """Become the leader in place of `run`. One borrower at a time."""
        self._is_lent = True
        self._lent = trio.Event()
        self._given_back = trio.Event()
        if self._own_lead is not None:
            self._own_lead.cancel()
        try:
            await self._lent.wait()
        except BaseException:
            self.give_back()
            raise

    def give_back(self, failure: BaseException | None = None) -> None:
        """Let `run` lead again, or end with what made the borrower's `wait` or `serve` fail."""
        self._is_lent = False
        self._failure = failure
        self._given_back.set()

    async def wait(self, *, busy: bool = False) -> None:
        """Let other tasks run and wait until there is something to serve; `busy`: do not wait for it."""
        self._uncork()
        if busy or self._has_work() or self._look_at_touched():
            await trio.lowlevel.checkpoint()
            callbacks = self._readiness.poll()
        else:
            self._parked = True
            try:
                callbacks = await self._readiness.wait()
            finally:
                self._parked = False
        for callback in callbacks:
            callback()
        self._do_chores()
        self._begin_rotation()

    def serve(self) -> bool:
        """Serve one slice of one source, or all of them after a rotation that left something unread; True: more of this
        rotation is left."""
        more = self._serve_slice()
        while more and self.is_behind:
            more = self._serve_slice()
        return more

    def _serve_slice(self) -> bool:
        self._uncork()
        plan = self._plan
        while plan:
            source = plan[-1]
            if source in self._ready:
                end = source.take_turn(self._budgets, self._clock, fresh=not self._begun)
                self._begun = end is TurnEnd.SLICE
                if self._clock() >= self._rotation_ends_at:
                    self._turn_over(source, TurnEnd.BOUND if self._begun else end)
                    self._rotation.stopped(source)
                    plan.clear()
                    break
                if not self._begun:
                    self._turn_over(source, end)
                    plan.pop()
                if plan:
                    return True
                break
            plan.pop()
            self._begun = False
        self._relieve()
        return False

    async def run_looker(self) -> None:
        """Submit what was corked while the stage is parked, and look at its sources."""

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle_looker = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            self._idle_looker = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)
            self._uncork()
            if self._look_at_touched():
                self._wake()

    async def run_timer(self) -> None:
        """Turn due deadlines into chores."""
        while True:
            self._deadline_changed = trio.Event()
            when = self._deadlines[0][0] if self._deadlines else float("inf")
            with trio.move_on_at(when):
                await self._deadline_changed.wait()
            now = self._clock()
            while self._deadlines and self._deadlines[0][0] <= now:
                self.chore(heappop(self._deadlines)[2])

    # -- one cycle

    def _has_work(self) -> bool:
        return bool(self._ready or self._chores or self._relief)

    def _uncork(self) -> None:
        if self._corked:
            corked, self._corked = self._corked, []
            for connection in corked:
                connection.uncork()

    def _look_at_touched(self) -> bool:
        """Look once at every touched source; True: there is work for the stage."""
        touched, self._touched = self._touched, []
        for source in touched:
            level, source.touch_level = source.touch_level, 0
            self._look_at(source, level)
        return self._has_work()

    def _look_at(self, source: Source, level: int) -> None:
        if source not in self._rotation:
            return
        if source.look():
            self._ready[source] = None
        if level == 2 and source.is_blocked:
            self._relief[source] = True

    def _do_chores(self) -> None:
        # Those that chores leave behind are for the next cycle, so that the sockets get their turn.
        for _ in range(len(self._chores)):
            self._chores.popleft()()

    def _begin_rotation(self) -> None:
        self.is_behind = self._falls_behind
        self._falls_behind = False
        if self._plan:
            # Its leader was called away in the middle, or had no more time.
            self._rotation.stopped(self._plan[-1])
            self.is_behind = True
        self._plan = self._rotation.plan(self._ready)
        self._plan.reverse()
        self._begun = False
        self._rotation_ends_at = self._clock() + self._budgets.seconds

    def _turn_over(self, source: Source, end: TurnEnd) -> None:
        self._begun = False
        if end is TurnEnd.BOUND:
            self._rotation.stopped(source)
            self._falls_behind = True
        else:
            self._ready.pop(source, None)
        if source.is_blocked:
            self._relief[source] = True

    def _relieve(self) -> None:
        relief, self._relief = self._relief, {}
        for source, fresh in relief.items():
            if source.relieve(fresh=fresh):
                self._relief.setdefault(source, False)
