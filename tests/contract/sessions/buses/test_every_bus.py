"""What holds on every bus (SR section 5)."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any

import pytest
import trio
from attrs import frozen

from tests.contract.sessions.buses.nodes import CONTROL, EVENTS, Buses, Ears, event, raw, signal, until
from zlinkpy.sessions.errors import SignalPayloadError
from zlinkpy.sessions.types import SessionSignal, SignalKind


async def test_a_signal_comes_as_it_was_sent_with_its_origin(buses: Buses) -> None:
    one, two = await buses.node(), await buses.node()
    ears = Ears()
    await two.subscribe("s", ears)
    sent = SessionSignal("s", SignalKind.YIELD, "node-7", {"token": 7}, "worker-3")
    await one.publish(sent)
    await ears.count(1)
    assert ears == [sent]


@pytest.mark.contract("SR-081")
async def test_one_subscribe_call_hears_every_kind(buses: Buses) -> None:
    one, two = await buses.node(), await buses.node()
    ears = Ears()
    await two.subscribe("s", ears)
    for kind in SignalKind:
        await one.publish(signal(kind))
    await ears.count(len(SignalKind))
    assert set(ears.kinds) == set(SignalKind)


@pytest.mark.contract("SR-080")
async def test_who_leaves_events_out_hears_the_control_kinds_only(buses: Buses) -> None:
    one, two = await buses.node(), await buses.node()
    ears, all_ears = Ears(), Ears()
    await two.subscribe("s", ears, events=False)
    await two.subscribe("s", all_ears)
    for kind in (*EVENTS, *CONTROL):
        await one.publish(signal(kind))
    await all_ears.count(len(SignalKind))
    assert sorted(ears.kinds, key=CONTROL.index) == CONTROL
    # Events can be had later, and left out again.
    more = Ears()
    subscription = await two.subscribe("s", more)
    await one.publish(event(1))
    await more.count(1)
    await subscription.aclose()
    await one.publish(event(2))
    await all_ears.count(len(SignalKind) + 2)
    assert (more.numbers, ears.kinds) == ([1], ears.kinds)


async def test_sessions_do_not_hear_each_other(buses: Buses) -> None:
    one, two = await buses.node(), await buses.node()
    names = ["s", "s:t", "{s}", "%s", "Sitzung ü", "x" * 512]
    ears = {name: Ears() for name in names}
    for name in names:
        await two.subscribe(name, ears[name])
    for name in names:
        await one.publish(signal(SignalKind.EVICT, name))
        await one.publish(event(1, session=name))
    for name in names:
        await ears[name].count(2)
        assert {each.session_id for each in ears[name]} == {name}
        assert len(ears[name]) == 2


@pytest.mark.contract("SR-082")
async def test_the_back_end_subscription_ends_with_the_last_handler(buses: Buses) -> None:
    one, two = await buses.node(), await buses.node()
    first, second = Ears(), Ears()
    early = await one.subscribe("s", first)
    late = await one.subscribe("s", second)
    await early.aclose()
    await early.aclose()
    await two.publish(signal())
    await two.publish(event(1))
    await second.count(2)
    assert first == []
    assert await buses.subscribed("s")
    await late.aclose()
    with trio.fail_after(5):
        while await buses.subscribed("s"):  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.01)
    await two.publish(signal())
    again = Ears()
    await one.subscribe("s", again)
    await two.publish(event(2))
    await until(lambda: again.numbers == [2])
    assert first == []


@pytest.mark.contract("SR-083")
async def test_a_handler_that_raises_keeps_nothing_from_the_others(
    buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await buses.node(), await buses.node()
    before, after = Ears(), Ears()

    def broken(_signal: SessionSignal) -> None:
        raise RuntimeError("broken handler")

    for handler in (before, broken, after):
        await two.subscribe("s", handler)
    for kind in SignalKind:
        await one.publish(signal(kind))
    await after.count(len(SignalKind))
    assert len(before) == len(SignalKind)
    assert caplog.text.count("broken handler") >= len(SignalKind)


async def test_a_handler_that_ends_another_is_obeyed_at_once(buses: Buses) -> None:
    one, two = await buses.node(), await buses.node()
    ears, last = Ears(), Ears()
    subscriptions: list[Any] = []

    def ender(_signal: SessionSignal) -> None:
        subscriptions[0]._remove(subscriptions[0]._place)

    await two.subscribe("s", ender, events=False)
    subscriptions.append(await two.subscribe("s", ears, events=False))
    await two.subscribe("s", last, events=False)
    await one.publish(signal())
    await last.count(1)
    assert ears == []


class Colour(Enum):
    RED = "red"


@frozen
class TypedEvent:
    text: str


class Text(str):
    pass


NOT_PLAIN = [
    {"event": TypedEvent("hello")},
    {"kind": Colour.RED},
    {"text": Text("of a subclass")},
    {"data": b"bytes"},
    {"answer": None},
    {"deep": {"list": [1, {"x": {"y": object()}}]}},
    {"set": {1}},
    {"list": [None]},
    {"number": 2**64},
    {"number": -(2**63) - 1},
    {"keys": {1: "one"}},
    {"large": "x" * (4 << 20)},
]


def nested(depth: int) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for _ in range(depth):
        payload = {"in": payload}
    return payload


@pytest.mark.contract("SR-084", "SR-395")
@pytest.mark.parametrize("kind", [SignalKind.TURN_RESULT, SignalKind.EVENT])
async def test_what_is_not_plain_is_refused_and_nothing_is_delivered(buses: Buses, kind: SignalKind) -> None:
    one, two = await buses.node(), await buses.node()
    ears = Ears()
    await two.subscribe("s", ears)
    for payload in (*NOT_PLAIN, nested(32)):
        with pytest.raises(SignalPayloadError) as refused:
            await one.publish(SessionSignal("s", kind, "n1", payload))
        assert len(str(refused.value)) < 400
    await one.publish(signal(kind, n=1))
    await ears.count(1)
    await trio.sleep(0.02)
    assert ears.numbers == [1]
    assert len(ears) == 1


PLAIN: dict[str, Any] = {
    "text": "Grüße 🙂 \0",
    "empty": "",
    "yes": True,
    "no": False,
    "small": -1,
    "lowest": -(2**63),
    "highest": 2**64 - 1,
    "float": 1.5,
    "whole": 3.0,
    "list": [1, "two", [3.0, {"four": 4}], []],
    "map": {"": {"a": {"b": [True]}}},
}


@pytest.mark.contract("SR-085")
async def test_a_plain_payload_arrives_equal_and_is_nobody_elses(buses: Buses) -> None:
    one, two = await buses.node(), await buses.node()
    ears, others = Ears(), Ears()
    await two.subscribe("s", ears)
    await two.subscribe("s", others)
    sent = SessionSignal("s", SignalKind.EVENT, "n1", PLAIN | nested(31))
    await one.publish(sent)
    await others.count(1)
    (received,) = ears
    assert received.payload == PLAIN | nested(31)
    assert [type(value) for value in received.payload.values()] == [type(value) for value in sent.payload.values()]
    assert received.payload["list"] is not PLAIN["list"]
    assert received.payload["map"] is not PLAIN["map"]


NOT_SIGNALS = [
    raw(k="TELEPORT"),
    raw(k=None),
    raw(k=7),
    raw(k=["INTERRUPT"]),
    raw(s=None),
    raw(s=5),
    raw(s=""),
    raw(s="x" * 513),
    raw(o=None),
    raw(o=1),
    raw(i=1),
    raw(p=None),
    raw(p=[1]),
    b"",
    b"\xc1",
    b"\x93\x01\x02\x03",
    b"\xdd\xff\xff\xff\xff",
    raw()[:-1],
    raw() + b"\x00",
    b"\x91" * 2000,
]


@pytest.mark.contract("SR-086")
@pytest.mark.parametrize("number", range(len(NOT_SIGNALS)))
async def test_a_signal_of_another_kind_or_none_at_all_is_dropped_with_a_warning(
    buses: Buses, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await buses.node(), await buses.node()
    ears = Ears()
    await two.subscribe("s", ears)
    await buses.inject(NOT_SIGNALS[number])
    await one.publish(signal())
    await ears.count(1)
    assert ears.kinds == [SignalKind.INTERRUPT]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert any("dropped a signal" in record.getMessage() for record in warnings)


@pytest.mark.contract("SR-362")
async def test_what_a_newer_version_adds_is_no_obstacle(buses: Buses) -> None:
    await buses.node()
    two = await buses.node()
    ears = Ears()
    await two.subscribe("s", ears)
    await buses.inject(raw(k="EVICT", p={"reason": "USER", "colour": "red"}, z=[None, b"x"]))
    await ears.count(1)
    assert (ears[0].kind, ears[0].payload["reason"]) == (SignalKind.EVICT, "USER")


@pytest.mark.contract("SR-090")
async def test_one_signal_that_cannot_be_sent_does_not_stop_a_list(buses: Buses) -> None:
    one, two = await buses.node(), await buses.node()
    ears = Ears()
    await two.subscribe("s", ears)
    many: list[SessionSignal] = [event(number) for number in range(40)]
    many[20] = SessionSignal("s", SignalKind.EVENT, "n1", {"n": object()})
    many += [signal(SignalKind.MESSAGE_ENQUEUED, n=number) for number in range(40, 60)]
    many[50] = SessionSignal("s", SignalKind.EVICT, "n1", {"reason": None})
    with pytest.raises(SignalPayloadError, match=r"payload\.(n|reason)"):
        await one.publish_all(many)
    await ears.count(58)
    events = [each.payload["n"] for each in ears if each.kind is SignalKind.EVENT]
    control = [each.payload["n"] for each in ears if each.kind is not SignalKind.EVENT]
    assert events == [number for number in range(40) if number != 20]
    assert control == [number for number in range(40, 60) if number != 50]


@pytest.mark.contract("SR-091")
async def test_an_interrupt_overtakes_a_backlog_of_events(buses: Buses, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a flood may take longer than a call may.
    monkeypatch.setattr("zlinkpy.sessions.redis_bus.CALL_SECONDS", 20.0)
    one, two = await buses.node(), await buses.node()
    behind: list[int] = []
    # What has been heard by the time the interrupt is sent cannot be overtaken: on a busy machine that may be all.
    while not behind or (behind[-1] <= 500 and len(behind) < 5):
        ears = Ears()
        subscription = await two.subscribe("s", ears)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.publish_all, [event(number) for number in range(8000)])
            # Where the events of one pass arrive in one, there is no time between the first and the last.
            await until(lambda ears=ears: len(ears) > 0 or behind, 20, step=0)
            await one.publish(signal(SignalKind.INTERRUPT))
            await until(lambda ears=ears: len(ears) == 8001, 20, step=0.001)
        behind.append(8000 - ears.kinds.index(SignalKind.INTERRUPT))
        await subscription.aclose()
    assert behind[-1] > 500, f"only {behind} of 8,000 events each were overtaken"


async def test_a_signal_that_comes_twice_is_handed_on_twice(buses: Buses) -> None:
    """At least once: whoever handles signals has to bear it (SR-087)."""
    await buses.node()
    two = await buses.node()
    ears = Ears()
    await two.subscribe("s", ears)
    for _ in range(2):
        await buses.inject(raw(k="TURN_RESULT", p={"turn": "t"}))
    await ears.count(2)


async def test_many_nodes_hear_each_other(buses: Buses) -> None:
    nodes = [await buses.node() for _ in range(4)]
    ears = [Ears() for _ in nodes]
    for node, own in zip(nodes, ears, strict=True):
        await node.subscribe("s", own)
    async with trio.open_nursery() as nursery:
        for number, node in enumerate(nodes):
            nursery.start_soon(node.publish, signal(SignalKind.TURN_RESULT, n=number))
            nursery.start_soon(node.publish, event(10 + number))
    for own in ears:
        await until(lambda own=own: set(own.numbers) == {0, 1, 2, 3, 10, 11, 12, 13})


async def test_a_cancelled_subscribe_leaves_nothing_behind(buses: Buses) -> None:
    one, two = await buses.node(), await buses.node()
    ears = Ears()
    with trio.CancelScope() as scope:
        scope.cancel()
        await one.subscribe("s", ears)
    assert scope.cancelled_caught
    await two.publish(signal())
    await two.publish(event(1))
    await trio.sleep(0.05)
    assert ears == []
    with trio.fail_after(5):
        while await buses.subscribed("s"):  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.01)
