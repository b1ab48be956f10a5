"""Operations on authority rows when answers are lost, calls fail, writers collide and callers give up (LO-180..185)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.lowlevel
from attrs import evolve

from tests.authority_hosts import (
    ENTRY,
    FAR,
    RELOCATION_ID,
    Stage,
    actor,
    actor_payload,
    cart_payload,
    committed_move,
    order,
    owner,
    spot,
)
from tests.location_hosts import OPTIONS, every, only, put, refusing
from zlinkpy.errors import DeadlineExceededError
from zlinkpy.location import StoreFailure, keys
from zlinkpy.location.authority import (
    ACTOR_SLOTS,
    CapacityRow,
    Count,
    Creation,
    CreationTerminal,
    Membership,
    ObjectState,
    Occupied,
    Refused,
    ReleaseCause,
    Released,
    Reserved,
    SpaceReserved,
    SpotKind,
    Swept,
    TerminalNote,
    Why,
    Written,
)
from zlinkpy.location.store import Delete, Put
from zlinkpy.wire import CreateOutcome, TerminalResult

READY, CLOSING = ObjectState.READY, ObjectState.CLOSING
P, Q = owner("p"), owner("q")


Operation = Callable[[], Awaitable[Any]]
Prepare = Callable[[Stage], Awaitable[tuple[str, Operation]]]


def note(object_generation: int, outcome: CreateOutcome = CreateOutcome.CREATED) -> TerminalNote:
    creation = Creation(outcome, "actor", "ann", object_generation)
    return TerminalNote("p", 7, b"\1" * 16, CreationTerminal(TerminalResult.OK, creation=creation), 1_000)


async def _reserve(stage: Stage) -> tuple[str, Operation]:
    return "q", lambda: stage.q.reserve(order(actor(), P), FAR)


async def _reserved(stage: Stage) -> Any:
    result = await stage.p.reserve(order(actor(), P), FAR)
    assert isinstance(result, Reserved)
    return result.record


async def _commit(stage: Stage) -> tuple[str, Operation]:
    record = await _reserved(stage)
    return "p", lambda: stage.p.commit(record, actor_payload(READY), FAR)


async def _commit_with_terminal(stage: Stage) -> tuple[str, Operation]:
    record = await _reserved(stage)
    return "p", lambda: stage.p.commit(record, actor_payload(READY), FAR, note(record.row.object_generation))


async def _abort(stage: Stage) -> tuple[str, Operation]:
    record = await _reserved(stage)
    return "p", lambda: stage.p.abort(record, FAR)


async def _reject(stage: Stage) -> tuple[str, Operation]:
    record = await _reserved(stage)
    end = note(record.row.object_generation, CreateOutcome.REJECTED)
    return "p", lambda: stage.p.abort(record, FAR, end)


async def _release_orphan(stage: Stage) -> tuple[str, Operation]:
    record = await _reserved(stage)
    await stage.cluster.lapse("p")
    return "q", lambda: stage.q.release_orphan(record, FAR)


async def _preserve(stage: Stage) -> tuple[str, Operation]:
    record = await stage.cluster.create(actor(), P)
    return "p", lambda: stage.p.preserve(record, actor_payload(CLOSING), FAR)


async def _join(stage: Stage) -> tuple[str, Operation]:
    await stage.cluster.create(spot(), P)
    record = await stage.cluster.create(actor(), P)
    return "p", lambda: stage.p.change_membership(record, Membership("hall", SpotKind.USER), FAR)


async def _leave(stage: Stage) -> tuple[str, Operation]:
    room = await stage.cluster.create(spot(), P)
    record = await stage.cluster.join(await stage.cluster.create(actor(), P), room)
    return "p", lambda: stage.p.change_membership(record, ENTRY, FAR)


async def _release(stage: Stage) -> tuple[str, Operation]:
    record = await stage.cluster.create(actor(), P)
    return "p", lambda: stage.p.release(record, ReleaseCause.DESTROY, FAR)


async def _release_own(stage: Stage) -> tuple[str, Operation]:
    room = await stage.cluster.create(spot(), P)
    for name in ("in1", "in2", "in3"):
        await stage.cluster.join(await stage.cluster.create(actor(name), P), room)
    return "p", lambda: stage.p.release_own(FAR)


async def _reincarnate(stage: Stage) -> tuple[str, Operation]:
    record = await stage.cluster.create(spot("cart"), P, kind="cart", payload=cart_payload(CLOSING))
    return "p", lambda: stage.p.reincarnate(record, cart_payload(), FAR)


async def _reserve_space(stage: Stage) -> tuple[str, Operation]:
    limits = stage.cluster.descriptors["q"]
    return "q", lambda: stage.q.reserve_space(Q, RELOCATION_ID, ACTOR_SLOTS, limits, FAR)


async def _return_space(stage: Stage) -> tuple[str, Operation]:
    _, operation = await _reserve_space(stage)
    assert await operation() == SpaceReserved()
    return "q", lambda: stage.q.return_space(Q, RELOCATION_ID, FAR)


async def _change_owner(stage: Stage) -> tuple[str, Operation]:
    record = await stage.cluster.create(actor(), P)
    _, operation = await _reserve_space(stage)
    assert await operation() == SpaceReserved()
    return "q", lambda: stage.q.change_owner(committed_move(record, Q), FAR)


OPERATIONS: dict[str, Prepare] = {
    "reserve": _reserve,
    "commit": _commit,
    "commit with terminal": _commit_with_terminal,
    "abort": _abort,
    "reject": _reject,
    "release orphan": _release_orphan,
    "preserve": _preserve,
    "join": _join,
    "leave": _leave,
    "release": _release,
    "release own": _release_own,
    "reincarnate": _reincarnate,
    "reserve space": _reserve_space,
    "return space": _return_space,
    "change owner": _change_owner,
}
# What a call that comes after the end is told: without a mark of its own, an absence that was there before the call
# began is somebody's, not this call's.
AFTERWARDS = {
    "abort": Refused(Why.GONE),
    "release orphan": Refused(Why.GONE),
    "release": Refused(Why.GONE),
    "release own": Swept(0, 0),
}
every_operation = pytest.mark.parametrize("name", OPERATIONS)


async def undisturbed(name: str) -> tuple[Any, dict[bytes, bytes]]:
    """What the operation gives and leaves when nothing goes wrong."""
    stage = await Stage().open()
    _, operation = await OPERATIONS[name](stage)
    return plain(await operation()), await rows(stage)


async def rows(stage: Stage) -> dict[bytes, bytes]:
    return {key: value for key, (value, _) in (await stage.cluster.image()).items()}


def plain(result: Any) -> Any:
    """A result without versions, which count every write."""
    record = getattr(result, "record", None)
    return result if record is None else evolve(result, record=evolve(record, version=""))


@pytest.mark.contract("LO-180", "LO-208")
@every_operation
@pytest.mark.parametrize("what", ["swallow", "cut", "mute", "hang", "refuse"])
async def test_a_write_without_an_answer_is_settled_from_the_rows(autojump_clock: object, name: str, what: str) -> None:
    expected, left = await undisturbed(name)
    stage = await Stage().open()
    rid, operation = await OPERATIONS[name](stage)
    gate = stage.gates[rid]
    gate.calls.clear()
    gate.rule = only(what, operation="write", times=1)
    with trio.fail_after(10):
        assert plain(await operation()) == expected
    assert await rows(stage) == left
    sent = [call for call in gate.calls if call.operation == "write"]
    assert len(sent) == (1 if what in ("swallow", "mute") else 2) + (name == "release own")  # Actors, then Spots


@pytest.mark.contract("LO-180")
@every_operation
async def test_the_same_call_again_changes_nothing_more(autojump_clock: object, name: str) -> None:
    stage = await Stage().open()
    _, operation = await OPERATIONS[name](stage)
    first = await operation()
    image = await stage.cluster.image()
    again = await operation()
    assert again == AFTERWARDS.get(name, first)
    assert await stage.cluster.image() == image


@pytest.mark.contract("LO-180")
@every_operation
async def test_an_outcome_that_cannot_be_read_stays_unknown_and_is_settled_later(
    autojump_clock: object, name: str
) -> None:
    expected, left = await undisturbed(name)
    stage = await Stage().open()
    rid, operation = await OPERATIONS[name](stage)
    gate = stage.gates[rid]
    swallow = only("swallow", operation="write", times=1)
    sent = 0

    def rule(call: Any) -> str:
        nonlocal sent
        sent += call.operation == "write"
        return swallow(call) if not sent or call.operation == "write" else "refuse"

    gate.rule = rule
    with trio.move_on_after(100) as scope:
        with pytest.raises(trio.TooSlowError), trio.fail_after(60):
            await operation()
    assert not scope.cancelled_caught
    assert sent == 1  # nothing is repeated, nothing is concluded, for as long as the store is away
    gate.rule = every("pass")
    result = plain(await operation())
    # The pass over all rows had not come to the Spot yet.
    assert result == (Swept(1, 0) if name == "release own" else AFTERWARDS.get(name, expected))
    assert await rows(stage) == left


@pytest.mark.contract("LO-183")
@every_operation
async def test_a_cancelled_caller_leaves_when_the_outcome_is_read(autojump_clock: object, name: str) -> None:
    _, left = await undisturbed(name)
    stage = await Stage().open()
    rid, operation = await OPERATIONS[name](stage)
    gate = stage.gates[rid]
    gate.calls.clear()
    gate.delay = 0.2
    sent = trio.Event()

    async def before(call: Any) -> None:
        if call.operation == "write":
            sent.set()
            await trio.lowlevel.checkpoint()

    gate.before = before
    gate.rule = only("swallow", operation="write", times=1)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(operation)
        await sent.wait()
        nursery.cancel_scope.cancel()
    kinds = [call.operation for call in gate.calls]
    assert "read" in kinds[kinds.index("write") :]
    assert kinds.count("write") == 1
    assert trio.current_time() - began < OPTIONS.owner_lease_renew_timeout
    if name != "release own":  # a pass over all rows ends where it was cancelled
        assert await rows(stage) == left
    assert gate.running == 0


@pytest.mark.contract("LO-183")
async def test_a_cancelled_caller_waits_at_most_the_renew_timeout(autojump_clock: object) -> None:
    stage = await Stage().open()
    _, operation = await _preserve(stage)
    gate = stage.gates["p"]
    sent = trio.Event()

    def rule(call: Any) -> str:
        if call.operation == "write":
            sent.set()
        return "hang" if sent.is_set() else "pass"

    gate.rule = rule
    async with trio.open_nursery() as nursery:
        nursery.start_soon(operation)
        await sent.wait()
        began = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(OPTIONS.owner_lease_renew_timeout)


@pytest.mark.contract("LO-183")
async def test_a_call_cancelled_before_it_began_sends_nothing(autojump_clock: object) -> None:
    stage = await Stage().open()
    _, operation = await _preserve(stage)
    gate = stage.gates["p"]
    gate.calls.clear()
    with trio.CancelScope() as scope:
        scope.cancel()
        await operation()
    assert [call for call in gate.calls if call.operation == "write"] == []


@pytest.mark.contract("LO-184")
@pytest.mark.parametrize("moved", ["counter", "capacity", "descriptor"])
async def test_a_conflict_about_something_else_is_repeated(autojump_clock: object, moved: str) -> None:
    stage = await Stage().open()
    gate = stage.gates["p"]
    store = stage.cluster.store
    collisions = 20

    async def before(call: Any) -> None:
        nonlocal collisions
        if call.operation != "write" or not collisions:
            return
        collisions -= 1
        if moved == "counter":
            await put(store, keys.OBJECT_COUNTER, str(1000 - collisions).encode())
        elif moved == "capacity":
            await put(store, P.capacity_key, CapacityRow(actors=Count(20 - collisions, 0)).encode())
        else:
            raw = await store.read(P.descriptor_key)
            await put(store, P.descriptor_key, raw.value)  # type: ignore[union-attr]

    gate.before = before
    with trio.fail_after(2):
        result = await stage.p.reserve(order(actor(), P), FAR)
    assert isinstance(result, Reserved)
    assert collisions == 0
    if moved == "counter":
        assert result.record.row.object_generation == 1000
    if moved == "capacity":
        assert await stage.cluster.capacity(P) == CapacityRow(actors=Count(20, 1))


@pytest.mark.contract("LO-184")
async def test_conflicts_end_at_the_deadline_and_at_no_number_of_tries(autojump_clock: object) -> None:
    stage = await Stage().open()
    gate = stage.gates["p"]

    async def before(call: Any) -> None:
        if call.operation == "write":
            await put(stage.cluster.store, keys.OBJECT_COUNTER, str(len(gate.calls)).encode())

    gate.before = before
    gate.delay = 0.0001
    began = trio.current_time()
    with pytest.raises(DeadlineExceededError):
        await stage.p.reserve(order(actor(), P), began + 1.0)
    assert trio.current_time() - began == pytest.approx(1.0, abs=0.05)
    writes = [call.at for call in gate.calls if call.operation == "write"]
    assert len(writes) > 120
    pauses = [later - earlier for earlier, later in zip(writes, writes[1:], strict=False)]
    assert 0.0012 <= min(pauses) <= max(pauses) <= 0.0062
    assert await stage.cluster.raw(actor().encode()) is None


@pytest.mark.contract("LO-185")
async def test_a_conflict_about_the_row_itself_is_the_result(autojump_clock: object) -> None:
    stage = await Stage().open()
    gate = stage.gates["p"]
    record = await stage.cluster.create(actor(), P)
    newer = evolve(record.row, payload=actor_payload(CLOSING, Membership("elsewhere", SpotKind.ENTRY)))

    async def before(call: Any) -> None:
        if call.operation == "write":
            await stage.cluster.store.write([], [Put(actor().encode(), newer.encode())])

    gate.before = before
    gate.calls.clear()
    result = await stage.p.release(record, ReleaseCause.DESTROY, trio.current_time() + 1)
    assert isinstance(result, Refused)
    assert result.why is Why.CHANGED
    assert result.record is not None
    assert result.record.row == newer
    assert len([call for call in gate.calls if call.operation == "write"]) == 1


@pytest.mark.contract("LO-185")
async def test_a_reservation_that_lost_says_who_has_the_id(autojump_clock: object) -> None:
    stage = await Stage().open()
    gate = stage.gates["p"]
    winner: list[Any] = []

    async def before(call: Any) -> None:
        if call.operation == "write":
            winner.append(await stage.q.reserve(order(actor(), Q, reservation="theirs"), FAR))

    gate.before = before
    result = await stage.p.reserve(order(actor(), P, reservation="mine"), FAR)
    assert result == Occupied(winner[0].record)
    assert await stage.cluster.capacity(P) == CapacityRow()


@pytest.mark.contract("LO-125", "LO-303", "LO-194")
async def test_an_outage_shorter_than_the_deadline_is_not_noticed(autojump_clock: object) -> None:
    stage = await Stage().open()
    _, operation = await _change_owner(stage)
    gate = stage.gates["q"]
    began = trio.current_time()
    async with refusing(gate, 2):
        assert isinstance(await operation(), Written)
    assert 2.0 <= trio.current_time() - began < 3.1
    # Past the deadline it stops, and says that nothing was done.
    stage = await Stage().open()
    record = await stage.cluster.create(actor(), P)
    stage.gates["p"].rule = every("refuse")
    began = trio.current_time()
    with pytest.raises(StoreFailure) as failure:
        await stage.p.preserve(record, actor_payload(CLOSING), began + 2)
    assert failure.value.applied == "no"
    assert trio.current_time() - began == pytest.approx(2, abs=1.1)
    stage.gates["p"].rule = every("pass")
    later = trio.current_time() + 1
    assert isinstance(await stage.p.preserve(record, actor_payload(CLOSING), later), Written)


@pytest.mark.contract("LO-180")
async def test_a_lost_write_that_no_look_saw_stays_unknown_at_the_end(autojump_clock: object) -> None:
    # The batch may still be on its way; that a look did not see it proves nothing for later.
    stage = await Stage().open()
    record = await stage.cluster.create(actor(), P)
    ways = iter(["cut"])
    stage.gates["p"].rule = lambda call: next(ways, "refuse") if call.operation == "write" else "pass"
    with pytest.raises(StoreFailure) as failure:
        await stage.p.preserve(record, actor_payload(CLOSING), trio.current_time() + 5)
    assert failure.value.applied == "unknown"


@pytest.mark.contract("LO-180")
@pytest.mark.parametrize("name", ["preserve", "reserve"])
async def test_a_lapsed_lease_after_a_lost_answer_is_no_proof(autojump_clock: object, name: str) -> None:
    # The lease can be put back with the same bytes before the lost batch arrives.
    stage = await Stage().open()
    rid, operation = await OPERATIONS[name](stage)
    cut = only("cut", operation="write", times=1)

    async def before(call: Any) -> None:
        if call.operation == "write":
            await stage.cluster.lapse("p")

    stage.gates[rid].before, stage.gates[rid].rule = before, cut
    with pytest.raises(StoreFailure) as failure:
        await operation()
    assert failure.value.applied == "unknown"


@pytest.mark.contract("LO-236", "LO-217")
async def test_rows_seen_at_different_instants_are_not_taken_for_corruption(autojump_clock: object) -> None:
    stage = await Stage().open()
    record = await _reserved(stage)
    await stage.cluster.store.write([], [Delete(P.descriptor_key)])
    gate = stage.gates["p"]
    first = True

    async def before(call: Any) -> None:
        nonlocal first
        # The capacity row is read after somebody else released the reservation that was seen before.
        if call.operation == "read" and call.key == P.capacity_key and first:
            first = False
            await trio.sleep(0.01)
            assert await stage.q.release_orphan(record, FAR) == Released()

    gate.before = before
    result = await stage.p.release_orphan(record, FAR)
    assert result == Refused(Why.GONE)
    assert await stage.cluster.capacity(P) == CapacityRow()
