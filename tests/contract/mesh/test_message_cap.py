"""The operator's bound on one frame, `max_message_bytes` (wire.md §5), over real sockets."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.contract.mesh.nodes import CHANNEL, World
from tests.puppet import MESH, admission
from zlinkpy.errors import ConfigurationError, UnavailableError
from zlinkpy.link import FailureReason
from zlinkpy.runtime import Settings
from zlinkpy.runtime.setting_values import LEAST_MESSAGE_CAP
from zlinkpy.telemetry import catalogue
from zlinkpy.transport.interface import FIRST_RECORD_SECONDS
from zlinkpy.wire import Hello, Lane, encode
from zlinkpy.wire.limits import ADMISSION_MAX, JOIN_PAYLOAD_MAX

CAP = 2 << 20

GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + b"\0" * 31
READY = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"


async def stranger(endpoint: str) -> trio.SocketStream:
    """A TCP connection that has ended the handshake of ZMTP 3 by hand, as anybody can."""
    stream = await trio.open_tcp_stream("127.0.0.1", int(endpoint.rpartition(":")[2]))
    await stream.send_all(GREETING + bytes([4, len(READY)]) + READY)
    return stream


async def announce(stream: trio.SocketStream, size: int) -> None:
    """The head of a frame of `size` bytes, and none of them."""
    await stream.send_all(b"\x02" + struct.pack(">Q", size))


async def ended_after(stream: trio.SocketStream) -> float:
    """After how long the other side hangs up."""
    began = trio.current_time()
    with trio.fail_after(4 * FIRST_RECORD_SECONDS):
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
    return trio.current_time() - began


@pytest.mark.parametrize(("size", "at_once"), [(CAP + 1, True), (1 << 40, True), (CAP, False)])
async def test_a_stranger_s_frame_is_dropped_before_it_is_sent(
    fast_clock: object, sockets: World, size: int, at_once: bool
) -> None:
    n = await sockets.host("n", max_message_bytes=CAP)
    async with await stranger(n.endpoint) as stream:
        await announce(stream, size)
        # One within the bound is waited for as long as any first record.
        assert (await ended_after(stream) < FIRST_RECORD_SECONDS / 2) is at_once


async def test_without_the_bound_any_frame_is_waited_for(fast_clock: object, sockets: World) -> None:
    n = await sockets.host("n")
    async with await stranger(n.endpoint) as stream:
        await announce(stream, 1 << 30)
        assert await ended_after(stream) >= FIRST_RECORD_SECONDS / 2


@pytest.mark.parametrize("role", ["listens", "dials"])
async def test_a_peer_s_larger_frame_ends_its_connection_and_no_other(
    fast_clock: object, sockets: World, role: str
) -> None:
    q = await sockets.host("q")
    n = await sockets.host(
        "n",
        serves={CHANNEL: 100},
        max_message_bytes=CAP,
        peers=[q.endpoint] if role == "dials" else [],
    )
    p = await sockets.host("p", peers=[n.endpoint])
    if role == "listens":
        q = await sockets.host("q2", peers=[n.endpoint])
    await q.ready("n")
    await p.ready("n")

    async def send(size: int) -> Any:
        return await q.rt.request_to_node(MESH, "n", zl.RawMessage("Unknown", b"\xc0" * size), timeout=20.0)

    with pytest.raises(zl.NotFoundError):  # it came; nothing handles it
        await send(CAP - 1)
    assert q.telemetry.total(catalogue.PEER_DISCONNECTS) == 0
    with pytest.raises(UnavailableError):
        await send(CAP + 1)
    assert q.telemetry.total(catalogue.PEER_DISCONNECTS, reason="transport_error") == 1
    assert n.telemetry.total(catalogue.PEER_DISCONNECTS) == 1
    failure = q.failure("n")
    assert failure is not None
    assert failure.reason is FailureReason.TRANSPORT_ERROR
    await q.ready("n", seconds=20)
    with pytest.raises(zl.NotFoundError):
        await send(100)
    assert p.telemetry.total(catalogue.PEER_DISCONNECTS) == 0
    assert (await p.echo(3)).n == 3


@pytest.mark.parametrize(("in_code", "in_settings", "in_force"), [(CAP, 0, False), (0, CAP, True), (CAP, None, True)])
async def test_settings_replace_what_the_code_says(
    fast_clock: object, in_code: int, in_settings: int | None, in_force: bool
) -> None:
    host = zl.Host(watchdog=False)
    host.mesh(MESH, max_message_bytes=in_code)
    overrides = {} if in_settings is None else {f"mesh.{MESH}.max_message_bytes": in_settings}
    async with host.run(settings=Settings.load(environ={}, overrides=overrides)) as rt:
        async with await stranger(rt.endpoint(MESH)) as stream:
            await announce(stream, CAP + 1)
            assert (await ended_after(stream) < FIRST_RECORD_SECONDS / 2) is in_force


@pytest.mark.parametrize("size", [1, -1, CAP - 1, 2**32, True, 3e6, "3000000"])
def test_a_bound_that_the_framework_s_own_records_do_not_fit_is_refused(size: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"mesh\.play\.max_message_bytes is .* in 2097152\.\.4294967295"):
        zl.Host().mesh(MESH, max_message_bytes=size)


def test_the_framework_s_own_records_fit_the_least_bound() -> None:
    names = tuple((f"{number:05}".ljust(255, "c"), 1) for number in range(4000))
    largest = admission("p" * 200, "tcp://127.0.0.1:1", channels=dict(names))
    (head,) = encode(Hello(largest, Lane.APPLICATION, b"12345678"))
    assert 0.95 * ADMISSION_MAX < len(head) < ADMISSION_MAX + 1024
    assert max(ADMISSION_MAX, JOIN_PAYLOAD_MAX) + 1024 < LEAST_MESSAGE_CAP == CAP
