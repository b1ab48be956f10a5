"""The kernel watches lanes that carry no probes: what an idle or a dead connection is asked, and when
(docs/mesh.md)."""

from __future__ import annotations

import os
import socket as network
from pathlib import Path

import trio

from tests.contract.transport.worlds import Reception, Recorder
from zlinkpy.entropy import SystemEntropy
from zlinkpy.link import PEER_DEADLINE
from zlinkpy.transport import ZmqTransport
from zlinkpy.transport.sockets import (
    KEEPALIVE_COUNT,
    KEEPALIVE_IDLE_SECONDS,
    KEEPALIVE_INTERVAL_SECONDS,
    UNACKNOWLEDGED_MS,
)


def connections_to(port: int) -> list[network.socket]:
    """Duplicates of this process's established TCP sockets with `port` at either end."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            duplicate = network.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue
        try:
            ports = {duplicate.getsockname()[1], duplicate.getpeername()[1]}
        except (OSError, IndexError, TypeError):
            ports = set()
        if port in ports:
            found.append(duplicate)
        else:
            duplicate.close()
    return found


async def test_both_ends_of_a_connection_are_kept_alive_by_the_kernel() -> None:
    async with ZmqTransport(entropy=SystemEntropy()) as transport:
        reception = Reception()
        listener = await transport.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        connection = transport.dial(listener.endpoint, sink)
        with trio.fail_after(5):
            await sink.until_opened()
        connection.send([b"hello"])
        with trio.fail_after(5):
            await reception.until(1)
        ends = connections_to(int(listener.endpoint.rpartition(":")[2]))
        try:
            assert len(ends) == 2
            for end in ends:
                option = lambda name, level=network.IPPROTO_TCP: end.getsockopt(level, name)  # noqa: E731
                assert option(network.SO_KEEPALIVE, network.SOL_SOCKET) == 1
                assert option(network.TCP_KEEPIDLE) == KEEPALIVE_IDLE_SECONDS
                assert option(network.TCP_KEEPINTVL) == KEEPALIVE_INTERVAL_SECONDS
                assert option(network.TCP_KEEPCNT) == KEEPALIVE_COUNT
                assert option(network.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_MS
        finally:
            for end in ends:
                end.close()


def test_the_kernel_is_slower_than_the_probes() -> None:
    assert KEEPALIVE_IDLE_SECONDS + KEEPALIVE_COUNT * KEEPALIVE_INTERVAL_SECONDS > PEER_DEADLINE
    assert UNACKNOWLEDGED_MS / 1000 > PEER_DEADLINE
