"""The tasks that run application callbacks.

Ready jobs wait in one queue that one worker at a time drains inline: for a job that never waits, a turn costs a
function call and no scheduling. The worker holds the *drain token* while it does. When a handler suspends, its worker
is stuck inside it; it gives the token up, and if jobs are waiting, a spare worker (parked, or new) is woken with the
token and goes on. When the handler ends, its worker takes the token back if nobody has it, else it becomes a spare.

With a `Receiver` one worker is also the *leader*: it waits for input and hands it to the sinks in the task that then
drains what they submitted, so that a record, its turn and its answer cost no task switch. The roles of a worker:

    parked --handed the token--> draining --queue empty--> parked
                                    | handler suspends: the token goes to a spare, or is put down
                                 in its handler --ends, token free--> draining; token taken --> parked
    parked --handed token and lead--> leading: drain, then wait with the token put down, serve with it taken, drain …
                                    | handler suspends: token and lead go to a spare, jobs or not
                                 in its handler (as above)
    leading --cancelled, or anything raised--> the receiver leads itself again

While the leader waits, a job from elsewhere wakes a spare for the token alone; a leader that comes back to a token held
by another serves without it.

Invariants:

- Jobs wait in the queue only while some worker holds the token. It is given in `submit` and when a handler suspends,
  taken back when one ends, and put down only with the queue empty.
- The token is held by one worker, which is running, or scheduled to run.
- The lead is with one worker from `borrow` to `give_back`. Its holder is never inside a suspended handler, and gives it
  back whatever ends it: the receiver outlives cancelled workers.
- A worker holds it for at most `DRAIN_SECONDS` or `DRAIN_JOBS` without a checkpoint: sockets and timers get their turn.

Rejected: a task per job (28 k turns/s against 114 k), and waking a spare before every first instruction, which pays for
scheduling also where no handler ever waits. The coroutine is driven by hand up to its first suspension instead; that is
the moment a spare is needed, not before.

Handlers run in the workers' nursery, outside the cancel scope of whoever received or submitted the job, and each in a
copy of the context `run` was called in, so what a handler sets in a `ContextVar` is not seen by the next one.
"""

from __future__ import annotations

import contextvars
import math
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Protocol

import outcome
import trio
from attrs import frozen

from zlinkpy.execution.permits import Permits
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.execution")

DRAIN_SECONDS = 0.010
"""Longest stretch of turns without a checkpoint; a running handler is not interrupted for it (SA-186)."""

DRAIN_JOBS = 1024
"""Most turns without a checkpoint: under a clock that stands still, time alone would never end the stretch."""

SUSPENDED_JOBS = 48
"""Most turns between two rotations of the receiver once a handler has suspended in between: each then costs a pass of
the scheduler. Fewer than one source's rotation brings: what arrives faster than it is worked on shows in the queue,
and peers are told to pause (SA-232)."""

SPARE_WORKERS = 64
"""Idle workers kept. A burst of waiting handlers may need thousands of tasks; those above this number end."""

_IN_TURN: contextvars.ContextVar[bool] = contextvars.ContextVar("zlinkpy_in_turn", default=False)


def in_turn() -> bool:
    """Whether the caller runs inside a handler, or in a task a handler started (SA-242)."""
    return _IN_TURN.get()


class Job(Protocol):
    """One accepted piece of work. It holds one permit, which the workers return just before `run` (SA-233)."""

    @property
    def label(self) -> str:
        """What a person would call it: ``module:qualname`` of the handler."""
        ...

    def run(self) -> Coroutine[Any, Any, None] | None:
        """Take the turn: do the work, or return the coroutine that does it.

        Errors of the handler are the job's own to answer. What escapes all the same is logged and counted.
        """
        ...


class Receiver(Protocol):
    """Where jobs come from, when it lets a worker do its waiting and serving. `serve` is where it calls `submit`."""

    async def borrow(self) -> None:
        """Make the caller the one who waits and serves."""

    def give_back(self, failure: BaseException | None = None) -> None:
        """Take that over again, or fail with what `wait` or `serve` raised."""

    async def wait(self, *, busy: bool = False) -> None:
        """Let other tasks run and wait until there is something to serve; `busy`: do not wait for it."""

    def serve(self) -> bool:
        """Serve some of it; True: more is to be had without a `wait`."""


@frozen(kw_only=True)
class WorkerStatistics:
    """A copy of the counts of one moment.

    Attributes:
        queued: Jobs whose callback has not begun.
        running: Jobs whose callback has begun and not ended, waiting ones included.
        suspended: Those of them that have given their turn's thread away at least once.
        workers: Worker tasks, spares included.
        spares: Parked worker tasks.
        peak_queued: Highest `queued` so far.
        peak_running: Highest `running` so far.
        completed: Jobs that ended, whether well or not.
        escaped: Exceptions that a job let out.
    """

    queued: int
    running: int
    suspended: int
    workers: int
    spares: int
    peak_queued: int
    peak_running: int
    completed: int
    escaped: int


class Workers:
    """The job queue of one host and the tasks that work on it. All methods belong to the thread of the event loop."""

    def __init__(self, permits: Permits, *, on_escape: Callable[[Job, BaseException], None] | None = None) -> None:
        """`permits` takes each job's permit back; `on_escape` is told what a job let out, besides the log."""
        self._permits = permits
        self._on_escape = on_escape
        self._ready: deque[Job] = deque()
        self._parked: list[trio.lowlevel.Task] = []
        self._suspended_jobs: dict[trio.lowlevel.Task, Job] = {}
        self._current: Job | None = None
        self._token = False
        self._receiver: Receiver | None = None
        # None also while the lead is on its way to a worker that has been scheduled.
        self._leader: trio.lowlevel.Task | None = None
        # What is left of a rotation and of the turns that may be taken before the next one, whoever leads meanwhile.
        self._more = False
        self._until = 0.0
        self._left = 0
        self._nursery: trio.Nursery | None = None
        self._stopped = False
        self._idle = trio.lowlevel.ParkingLot()
        self._context = contextvars.Context()
        self._task_context = contextvars.Context()
        self._clock: Callable[[], float]
        self._workers = 0
        self._tasks: set[trio.lowlevel.Task] = set()
        self._peak_queued = 0
        self._peak_running = 0
        self._completed = 0
        self._escaped = 0

    def __repr__(self) -> str:
        return f"<Workers {len(self._ready)} queued, {self.running} running, {len(self._parked)} spare>"

    @property
    def queued(self) -> int:
        """Jobs whose callback has not begun."""
        return len(self._ready)

    @property
    def running(self) -> int:
        """Jobs whose callback has begun and not ended, those that wait included."""
        return len(self._suspended_jobs) + (self._current is not None)

    def submit(self, job: Job) -> None:
        """Queue a job that holds a permit; its callback starts in submission order, never inside this call (SA-182).

        After `cancel_remaining` nothing starts any more: the permit goes back and the job is dropped.
        """
        if self._stopped:
            self._permits.release()
            return
        ready = self._ready
        ready.append(job)
        if len(ready) > self._peak_queued:
            self._peak_queued = len(ready)
        if not self._token and self._nursery is not None:
            self._hand_over(self._nursery)

    def lead(self, receiver: Receiver) -> None:
        """Wait for and serve `receiver` in the workers, from `run` until they are cancelled. To be called before it."""
        self._receiver = receiver

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until `cancel_remaining` or until cancelled; then every handler has been cancelled and has ended."""
        context = contextvars.copy_context()
        context.run(_IN_TURN.set, True)
        self._context = context
        self._task_context = contextvars.copy_context()
        self._clock = trio.lowlevel.current_clock().current_time
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                if self._receiver is not None:
                    # For the leader: jobs that come before it runs wait for it.
                    self._token = True
                    await self._receiver.borrow()
                    self._start_worker(nursery, lead=True)
                elif self._ready and not self._token:
                    self._hand_over(nursery)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self.cancel_remaining()

    async def drain(self, deadline: float) -> bool:
        """Wait until no job is queued and none is running.

        Args:
            deadline: On trio's clock.

        Returns:
            True when everything ended; False when the deadline came first. Nothing is cut, see `cancel_remaining`.
        """
        with trio.CancelScope(deadline=deadline):
            while self._ready or self.running:
                await self._idle.park()
        return not (self._ready or self.running)

    def cancel_remaining(self) -> list[str]:
        """End the workers: queued jobs are dropped with their permits returned, running ones are cancelled.

        Returns:
            The labels of what was cut, running ones first. Empty after a successful `drain`.
        """
        self._stopped = True
        cut = self.labels()
        for _ in range(len(self._ready)):
            self._ready.popleft()
            self._permits.release()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
        return cut

    def labels(self) -> list[str]:
        """What is being worked on and what is queued, running jobs first."""
        running = [job.label for job in self._suspended_jobs.values()]
        if self._current is not None:
            running.append(self._current.label)
        return running + [job.label for job in self._ready]

    def statistics(self) -> WorkerStatistics:
        """The counts of this moment."""
        return WorkerStatistics(
            queued=len(self._ready),
            running=self.running,
            suspended=len(self._suspended_jobs),
            workers=self._workers,
            spares=len(self._parked),
            peak_queued=self._peak_queued,
            peak_running=self._peak_running,
            completed=self._completed,
            escaped=self._escaped,
        )

    def _hand_over(self, nursery: trio.Nursery, *, lead: bool = False) -> None:
        """Give the token, which nobody holds, and perhaps the lead to a spare or to a new worker."""
        self._token = True
        if self._parked:
            trio.lowlevel.reschedule(self._parked.pop(), outcome.Value(lead))
        else:
            self._start_worker(nursery, lead=lead)

    def _start_worker(self, nursery: trio.Nursery, *, lead: bool) -> None:
        self._workers += 1
        # Sinks run in the task of the leader: they must not take themselves for what happened to call `submit` first.
        self._task_context.run(partial(nursery.start_soon, self._work, lead, name="zlinkpy worker"))

    async def _work(self, lead: bool) -> None:
        parked = self._parked
        task = trio.lowlevel.current_task()
        self._tasks.add(task)

        def abort(_: Callable[[], Any]) -> trio.lowlevel.Abort:
            parked.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            while True:
                if lead:
                    await self._lead(task)
                else:
                    await self._drain(task, self._clock() + DRAIN_SECONDS)
                self._tell_idle()
                if self._stopped or len(parked) >= SPARE_WORKERS:
                    return
                parked.append(task)
                lead = await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            self._workers -= 1
            self._tasks.discard(task)
            self._tell_idle()

    def _tell_idle(self) -> None:
        if self._idle and not self._ready and not self.running:
            self._idle.unpark_all()

    def is_worker(self, task: trio.lowlevel.Task) -> bool:
        """Whether `task` is one of these workers, so that whatever runs in it is a handler."""
        return task in self._tasks

    async def _lead(self, task: trio.lowlevel.Task) -> None:
        """Drain, wait and serve until a handler suspends. Called with the token and the lead."""
        receiver = self._receiver
        assert receiver is not None
        now = self._clock
        failure: Exception | None = None
        self._leader = task
        holds = True
        try:
            while True:
                if holds:
                    await self._drain(task, self._until, self._left)
                    if self._leader is not task:
                        return
                try:
                    if not self._more or self._ready or now() >= self._until:
                        if holds:
                            holds = self._token = bool(self._ready)
                        self._tell_idle()
                        await receiver.wait(busy=holds)
                        self._until = now() + DRAIN_SECONDS
                        self._left = DRAIN_JOBS
                    if not self._token:
                        # Taken before the sinks submit: nobody has to be woken for what is drained here.
                        holds = self._token = True
                    self._more = receiver.serve()
                except Exception as error:  # noqa: BLE001 - the receiver's own failure, raised where it is at home
                    failure = error
                    return
        finally:
            if self._leader is task:
                self._leader = None
                if holds:
                    self._token = False
                receiver.give_back(failure)

    async def _drain(self, task: trio.lowlevel.Task, until: float, most: int = DRAIN_JOBS) -> None:
        """Run jobs until none is left or the token has gone to another worker; a leader only `most` and `until` then.

        Called with the token, which a leader keeps.
        """
        ready = self._ready
        now = self._clock
        release = self._permits.release
        left = most
        while ready:
            if not left or now() >= until:
                if self._leader is task:
                    break
                await trio.lowlevel.cancel_shielded_checkpoint()
                until = now() + DRAIN_SECONDS
                left = DRAIN_JOBS
                continue
            left -= 1
            job = ready.popleft()
            release()
            self._current = job
            # job.run() counts as the start of the callback: a sync handler is over when it returns.
            context = self._context.copy()
            suspended = False
            try:
                coroutine = context.run(job.run)
                if coroutine is not None:
                    try:
                        request = context.run(coroutine.send, None)
                    except StopIteration:
                        pass
                    else:
                        suspended = True
                        if self._leader is task:
                            self._left = min(left, SUSPENDED_JOBS)
                        await self._finish(job, task, context, coroutine, request)
            except BaseException as error:  # noqa: BLE001 - sorted in _escape
                self._escape(job, error)
            self._completed += 1
            if not suspended:
                self._current = None
            elif self._token:
                return
            else:
                self._token = True
                until = now() + DRAIN_SECONDS
                left = DRAIN_JOBS
        if self._leader is task:
            self._left = left
        else:
            self._token = False

    @types.coroutine
    def _finish(
        self,
        job: Job,
        task: trio.lowlevel.Task,
        context: contextvars.Context,
        coroutine: Coroutine[Any, Any, None],
        request: Any,
    ) -> Generator[Any, Any, None]:
        """Give away the token and drive a handler to its end that suspended with `request`."""
        step: Callable[[Any], Any]
        value: Any
        self._current = None
        self._suspended_jobs[task] = job
        self._token = False
        running = self.running
        if running > self._peak_running:
            self._peak_running = running
        leads = self._leader is task
        if leads:
            self._leader = None
        if (leads or self._ready) and self._nursery is not None:
            self._hand_over(self._nursery, lead=leads)
        try:
            while True:
                try:
                    value = yield request
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown into the handler, which is who it is for
                    step, value = coroutine.throw, error
                else:
                    step = coroutine.send
                request = context.run(step, value)
        except StopIteration:
            return
        finally:
            del self._suspended_jobs[task]

    def _escape(self, job: Job, error: BaseException) -> None:
        """Deal with what a job let out; re-raises what is not the job's: cancellation of the workers, Ctrl-C.

        A `SystemExit` of a handler is a failure of that handler: one message must not end the process (SA-199).
        """
        if isinstance(error, GeneratorExit):
            raise error
        if isinstance(error, trio.Cancelled) and trio.current_effective_deadline() == -math.inf:
            raise error
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, BaseExceptionGroup):
            interrupts = error.subgroup(KeyboardInterrupt)
            if interrupts is not None:
                raise interrupts
        self._escaped += 1
        log.error("job %s let an exception out", job.label, exc_info=error)
        if self._on_escape is not None:
            self._on_escape(job, error)
