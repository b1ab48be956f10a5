"""The ZeroMQ context of a transport, and how its I/O thread is scheduled.

Under the system's normal policy the I/O thread interrupts whoever wakes it: the event loop is taken off its processor
at each record it sends, the record goes out alone, and the next one wakes the thread again. As a *batch* thread it gets
the same share of the processors without interrupting anybody: a burst is written as one, at a third of the cost
(1.5 us of processor time per record, not 4.5), and two nodes on two processors do a third more requests.

The price is paid where all processors are busy with other things: a record may wait there for the end of a time slice,
a few milliseconds. An idle processor takes the thread at once.
"""

from __future__ import annotations

import os
import threading
from functools import cache

import zmq


def make_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A new context; its I/O thread is a batch thread where the system has and allows such, and nobody has chosen
    another policy for this process."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    if batch_is_allowed() and os.sched_getscheduler(0) == os.SCHED_OTHER:
        context.set(zmq.THREAD_SCHED_POLICY, os.SCHED_BATCH)
    return context


@cache
def batch_is_allowed() -> bool:
    """Ask once, on a thread that then ends: libzmq aborts the process where it is refused (a sandbox may)."""
    allowed = False

    def ask() -> None:
        nonlocal allowed
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            allowed = True
        except (AttributeError, OSError):
            pass

    thread = threading.Thread(target=ask, name="zlinkpy scheduling probe")
    thread.start()
    thread.join()
    return allowed
