"""The receive stage lent to another task: one leader at a time, turns in slices, and the way back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.contract.transport.worlds import Reception, Recorder, block_the_loop
from tests.integration.transport.conftest import Host
from zlinkpy.transport import Connection, ZmqTransport
from zlinkpy.transport.receive_stage import SLICE_RECORDS


@asynccontextmanager
async def connected(host: Host) -> AsyncIterator[tuple[ZmqTransport, Connection, Recorder]]:
    """A transport, a peer's connection to it, and what the transport receives over that."""
    async with host() as near, host() as far:
        reception = Reception()
        listener = await near.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        dialled = far.dial(listener.endpoint, sink)
        await sink.until_opened()
        dialled.send([b"hello"])
        accepted = await reception.until(1)
        await accepted.until_records(1)
        yield near, dialled, accepted


async def test_a_borrowed_stage_is_served_by_the_borrower_alone(host: Host, fast_clock: MockClock) -> None:
    async with connected(host) as (near, dialled, accepted):
        stage = near.receive_stage
        await stage.borrow()
        dialled.send([b"for the borrower"])
        await trio.sleep(0.2)
        assert len(accepted.records) == 1
        with trio.fail_after(10):
            while len(accepted.records) < 2:
                await stage.wait()
                while stage.serve():
                    pass
        stage.give_back()
        dialled.send([b"for the owner"])
        await accepted.until_records(3)


async def test_a_turn_comes_in_slices_and_whole_while_the_stage_is_behind(host: Host, fast_clock: MockClock) -> None:
    async with connected(host) as (near, dialled, accepted):
        stage = near.receive_stage
        await stage.borrow()
        for _ in range(200):
            dialled.send([b"one of many"])
        await wait_all_tasks_blocked()
        block_the_loop(0.1)
        rotations: list[tuple[bool, list[int]]] = []
        while len(accepted.records) < 201:
            await stage.wait()
            slices: list[int] = []
            rotations.append((stage.is_behind, slices))
            more = True
            while more:
                taken = len(accepted.records)
                more = stage.serve()
                slices.append(len(accepted.records) - taken)
        await stage.wait(busy=True)
        assert not stage.is_behind
        stage.give_back()
    first_is_behind, first = rotations[0]
    assert not first_is_behind
    assert max(first) == SLICE_RECORDS == 16
    assert sum(first) == 64
    behind = [slices for is_behind, slices in rotations if is_behind]
    # What is left unread shows once, at the end of the rotation before.
    assert [64] in behind
    assert all(len(slices) == 1 for slices in behind)


async def test_what_was_sent_between_two_slices_leaves_with_the_second(host: Host, fast_clock: MockClock) -> None:
    async with connected(host) as (near, dialled, accepted):
        stage = near.receive_stage
        held: list[int] = []
        connection = accepted.connection
        assert connection is not None
        await stage.borrow()
        # A busy machine may bring the records one by one; then they come in no slices, and once more.
        while len(held) < 4:
            for _ in range(40):
                dialled.send([b"one of many"])
            await wait_all_tasks_blocked()
            block_the_loop(0.1)
            await stage.wait()
            while stage.serve():
                held.append(len(stage._corked))
                # The first of a pass leaves at once, the second is held.
                connection.send([b"answer"])
                connection.send([b"answer"])
                held.append(len(stage._corked))
        stage.give_back()
    assert held == [0, 1] * (len(held) // 2)


async def test_a_leader_called_away_in_the_middle_of_a_rotation_loses_nothing(
    host: Host, fast_clock: MockClock
) -> None:
    async with connected(host) as (near, dialled, accepted):
        stage = near.receive_stage
        for _ in range(5):
            await stage.borrow()
            for _ in range(100):
                dialled.send([b"one of many"])
            await wait_all_tasks_blocked()
            block_the_loop(0.02)
            await stage.wait()
            stage.serve()
            stage.give_back()
        await accepted.until_records(501)


@pytest.mark.parametrize("when", ["borrowing", "waiting"])
async def test_a_cancelled_borrower_gives_back(host: Host, fast_clock: MockClock, when: str) -> None:
    async with connected(host) as (near, dialled, accepted):
        stage = near.receive_stage
        for number in range(2, 5):
            with trio.CancelScope() as scope:
                if when == "borrowing":
                    scope.cancel()
                await stage.borrow()
                try:
                    scope.cancel()
                    await stage.wait()
                finally:
                    stage.give_back()
            dialled.send([b"for the owner"])
            await accepted.until_records(number)


async def test_the_failure_of_a_borrower_ends_the_transport(host: Host, fast_clock: MockClock) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True):
        async with host() as transport:
            await transport.receive_stage.borrow()
            transport.receive_stage.give_back(ZeroDivisionError())
            await trio.sleep(10)


async def test_a_transport_closes_while_its_stage_is_lent_to_a_living_borrower(
    host: Host, fast_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery, connected(host) as (near, _, accepted):
        stage = near.receive_stage

        async def lead() -> None:
            try:
                while accepted.cause is None:
                    await stage.wait()
                    while stage.serve():
                        pass
            finally:
                stage.give_back()

        await stage.borrow()
        nursery.start_soon(lead)
