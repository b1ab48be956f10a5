"""Which error a call ends with, and where it is raised (SA §P)."""

from __future__ import annotations

import pytest
import trio

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Ask, Lan, Note
from tests.puppet import until
from zlinkpy.wire import NodeRequest


@pytest.mark.contract("SA-249")
async def test_errors_of_calls_are_caught_by_kind_and_by_base(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n") as n:
        for catch in (zl.NotFoundError, zl.ZlinkError):
            with pytest.raises(catch) as caught:
                await n.rt.send_to_channel("nowhere", Note())
            assert caught.value.kind is zl.ErrorKind.NOT_FOUND
            assert "nowhere" in str(caught.value)
            assert not [name for name in dir(caught.value) if "retry" in name.lower()]


@pytest.mark.contract("SA-250")
async def test_bad_arguments_are_local(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        for error, call in (
            (TypeError, lambda: z.rt.send_to_channel(CHANNEL, {"n": 1})),
            (TypeError, lambda: z.rt.send_to_channel(CHANNEL, Note)),
            (TypeError, lambda: z.rt.send_to_node(MESH, "a", None)),
            (TypeError, lambda: z.rt.send_to_channel(CHANNEL, Note(), metadata=[("a", "b")])),
            (ValueError, lambda: z.rt.send_to_channel(CHANNEL, Note(), metadata={"a": "x" * 1025})),
            (ValueError, lambda: z.rt.send_to_channel(CHANNEL, Note(), metadata={"a\0": "x"})),
        ):
            with pytest.raises(error):
                await call()  # type: ignore[no-untyped-call]
        await trio.sleep(1)
        assert a.numbers == []
    with pytest.raises(zl.ShuttingDownError):
        await z.rt.send_to_channel(CHANNEL, Note())
    z.assert_nothing_held()


@pytest.mark.contract("SA-252")
@pytest.mark.parametrize(("result", "code"), [(0, 5), (106, 3), (106, 99), (99, 0), (150, 0)])
async def test_an_unknown_code_of_a_remote_node_is_a_protocol_error(
    autojump_clock: object, lan: Lan, result: int, code: int
) -> None:
    """No wire code, no kind to guess: that connection ends, and the request with it."""
    async with lan.node("n") as n:
        puppet, other = lan.puppet(), lan.puppet("other")
        pair = await puppet.connect(n.rt.endpoint(MESH))
        bystander = await other.connect(n.rt.endpoint(MESH))
        ends: list[zl.ZlinkError] = []

        async def ask() -> None:
            with pytest.raises(zl.ZlinkError) as caught:
                await n.rt.request_to_node(MESH, "puppet", Ask(), timeout=5)
            ends.append(caught.value)

        others: list[zl.ZlinkError] = []

        async def ask_too() -> None:
            with pytest.raises(zl.ZlinkError) as caught:
                await n.rt.request_to_node(MESH, "puppet", Ask(), timeout=5)
            others.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_too)
            await until(lambda: pair.app.commands(NodeRequest))
            nursery.start_soon(ask)
            await until(lambda: len(pair.app.commands(NodeRequest)) == 2)
            frame = (
                b"ZM\x01\x14\x00\x95"
                + bytes((pair.app.commands(NodeRequest)[-1].corr,))
                + b"\xcc%c\xcc%c\xc0\xc0" % (result, code)
            )
            pair.completion.send_raw([frame])
        assert [error.kind for error in ends] == [zl.ErrorKind.PROTOCOL_ERROR]
        assert [error.kind for error in others] == [zl.ErrorKind.UNAVAILABLE]
        assert bystander.is_up
        n.assert_nothing_held()


@pytest.mark.contract("SA-248")
async def test_kinds_keep_their_numbers_across_hosts(autojump_clock: object, lan: Lan) -> None:
    numbers = [zl.ErrorKind(number).name for number in range(12)]
    assert numbers == [
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "TYPE_MISMATCH",
        "NOT_CONFIGURED",
        "REJECTED",
        "UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "SHUTTING_DOWN",
        "PROTOCOL_ERROR",
        "INVALID_OPERATION",
        "DATA_LOST",
        "INTERNAL_FAILURE",
    ]
