"""The I/O thread interrupts nobody where the system allows that, and works where it does not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from zlinkpy.transport.context import batch_is_allowed, make_context


@pytest.fixture
def asked_anew() -> Iterator[None]:
    batch_is_allowed.cache_clear()
    yield
    batch_is_allowed.cache_clear()


def policies_of_new_threads(expected: int) -> list[int]:
    """Scheduling policies of the threads that a new context starts with its first socket; each sets its own, soon."""
    tasks = Path("/proc/self/task")
    before = {each.name for each in tasks.iterdir()}
    context = make_context()
    with context.socket(zmq.PAIR):
        for _ in range(500):
            found = [os.sched_getscheduler(int(each.name)) for each in tasks.iterdir() if each.name not in before]
            if len(found) >= 2 and set(found) == {expected}:
                break
            time.sleep(0.01)
    context.term()
    return found


def refuse(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_libzmq_s_threads_are_batch_threads_and_ours_is_not(asked_anew: None) -> None:
    found = policies_of_new_threads(os.SCHED_BATCH)
    assert len(found) >= 2
    assert set(found) == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.parametrize("why", ["refused", "unknown to the system"])
def test_without_batch_threads_they_are_ordinary_ones(
    asked_anew: None, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "refused":
        monkeypatch.setattr(os, "sched_setscheduler", refuse)
    else:
        monkeypatch.delattr(os, "SCHED_BATCH")
    found = policies_of_new_threads(os.SCHED_OTHER)
    assert len(found) >= 2
    assert set(found) == {os.SCHED_OTHER}


def test_the_system_is_asked_once(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert batch_is_allowed()
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert batch_is_allowed()


def test_a_policy_that_was_chosen_for_the_process_stays(asked_anew: None) -> None:
    found: list[int] = []

    def chosen() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        found.extend(policies_of_new_threads(os.SCHED_IDLE))

    thread = threading.Thread(target=chosen)
    thread.start()
    thread.join()
    assert len(found) >= 2
    assert set(found) == {os.SCHED_IDLE}
