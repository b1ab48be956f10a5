"""Garbage and strangers at the listener of a real node, while others use it."""

from __future__ import annotations

import logging
import random
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
import zmq

import zlinkpy as zl
from tests.integration.load import Load, caller
from tests.integration.programs.node import CHANNEL, MESH, Answer, Ask
from tests.puppet import until

# A ZMTP 3.1 greeting (RFC 37): signature, version, mechanism NULL, not a server.
GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + b"\0" + b"\0" * 31
READY_ROUTER = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"


noise = random.Random(5).randbytes
"""The same garbage in every run: some of it happens to look like a greeting."""


def tcp(*chunks: bytes) -> Callable[[str], Iterator[None]]:
    """Raw bytes on a TCP connection, which stays open."""

    @contextmanager
    def attack(endpoint: str) -> Iterator[None]:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            for chunk in chunks:
                try:
                    connection.sendall(chunk)
                except OSError:  # hung up on, which is the point
                    break
            yield

    return attack


def zeromq(kind: int, *records: list[bytes], curve: bool = False) -> Callable[[str], Iterator[None]]:
    """Records from another ZeroMQ application."""

    @contextmanager
    def attack(endpoint: str) -> Iterator[None]:
        context = zmq.Context()
        socket_ = context.socket(kind)
        try:
            socket_.setsockopt(zmq.LINGER, 0)
            socket_.setsockopt(zmq.SNDTIMEO, 1000)
            if curve:
                public, secret = zmq.curve_keypair()
                socket_.setsockopt(zmq.CURVE_SERVERKEY, public)
                socket_.setsockopt(zmq.CURVE_PUBLICKEY, public)
                socket_.setsockopt(zmq.CURVE_SECRETKEY, secret)
            if kind == zmq.SUB:
                socket_.setsockopt(zmq.SUBSCRIBE, b"")
            socket_.connect(endpoint)
            for record in records:
                try:
                    socket_.send_multipart(record)
                except zmq.Again:
                    break
            yield
        finally:
            socket_.close(0)
            context.destroy(0)

    return attack


ATTACKS = {
    "random bytes": tcp(noise(4096)),
    "http": tcp(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "tls": tcp(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500),
    "nothing": tcp(),
    "half a greeting": tcp(GREETING[:20]),
    "greeting and garbage": tcp(GREETING, b"\xff" * 1000),
    "a frame of 2^63 bytes": tcp(GREETING, READY_ROUTER, b"\x02\x7f" + b"\xff" * 7 + b"x" * 1000),
    "hang up at once": tcp(GREETING, READY_ROUTER, b"\x01\x05ab"),
    "another mechanism": zeromq(zmq.DEALER, [b"hello"], curve=True),
    "a subscriber": zeromq(zmq.SUB),
    "a requester": zeromq(zmq.REQ, [b"hello"]),
    "a dealer": zeromq(zmq.DEALER, [b"hello"]),
    "many frames": zeromq(zmq.DEALER, [b"x"] * 1000),
    "a huge frame": zeromq(zmq.DEALER, [b"ZM\x01\x01\x00" + b"x" * (80 << 20)]),
    "another major": zeromq(zmq.DEALER, [b"ZM\x02\x01\x00\x90"]),
    "a flood": zeromq(zmq.DEALER, *([[noise(200)]] * 2000)),
}
HANDSHAKE = "was not let in"
FIRST_RECORD = "mesh play: closing a connection at "
# What libzmq takes for a peer of an older version, or drops after a correct greeting, without an event of its own, is
# told by nobody.
SAID: dict[str, str | None] = {
    "random bytes": HANDSHAKE,
    "http": HANDSHAKE,
    "tls": None,
    "nothing": HANDSHAKE,
    "half a greeting": HANDSHAKE,
    "greeting and garbage": None,
    "a frame of 2^63 bytes": None,
    "hang up at once": None,
    "another mechanism": HANDSHAKE,
    "a subscriber": None,
    "a requester": f"{FIRST_RECORD}.*prefix",
    "a dealer": f"{FIRST_RECORD}.*prefix",
    "many frames": f"{FIRST_RECORD}.*prefix",
    "a huge frame": f"{FIRST_RECORD}.*at most 1048640 fit",
    "another major": f"{FIRST_RECORD}.*prefix.major: must be 1, is 2; the peer speaks another protocol version",
    "a flood": f"{FIRST_RECORD}.*prefix",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_garbage_disturbs_nobody(attack: str, caplog: pytest.LogCaptureFixture) -> None:
    """A node under load is attacked three times; no request fails, no connection is lost, and a line tells of it."""
    host = zl.Host()
    mesh = host.mesh(MESH, rid="n")
    mesh.serve_channel(CHANNEL)

    @mesh.on_channel_request(CHANNEL)
    async def ask(message: Ask) -> Answer:
        return Answer(message.n, 0)

    said = SAID[attack]

    def warnings() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.name.startswith("zlinkpy") and record.levelno >= logging.WARNING
        ]

    async with host.run() as rt, caller(peers=[rt.endpoint(MESH)]) as here:
        await until(lambda: here.targets == 1)
        endpoint = rt.endpoint(MESH)
        caplog.clear()
        async with Load.on(here.rt, tasks=4, timeout=5) as load:
            for number in range(3):
                before = load.ends["answered"]
                with ATTACKS[attack](rt.endpoint(MESH)):
                    await until(lambda before=before: load.ends["answered"] > before + 20)
                    if said not in (None, HANDSHAKE):
                        await until(lambda number=number: len(warnings()) > number)
                    await trio.sleep(0.05)
            if said == HANDSHAKE:
                await until(warnings)
        load.assert_each_ended_once()
        assert set(load.ends) == {"answered"}
        assert load.slowest < 2
        assert (here.connects, here.disconnects) == (1, 0)
        await trio.sleep(0.05)
    if attack == "a subscriber":
        assert all(HANDSHAKE in line for line in warnings())  # whose side of it ends first is chance
        return
    if said == HANDSHAKE:
        assert 1 <= len(warnings()) <= 2  # libzmq's own reconnects may make it ten
    else:
        assert len(warnings()) == (0 if said is None else 3)
    for line in warnings():
        assert said is not None
        assert re.search(said, line)
        assert endpoint in line
        assert re.search("check|run versions of the same major|key_file", line)


@pytest.mark.parametrize("with_what", ["mesh", "rid"])
async def test_a_node_of_another_kind_is_told_and_touches_nobody(
    caplog: pytest.LogCaptureFixture, with_what: str
) -> None:
    """A whole host with another mesh name, or with a routing id that is taken, dials for a while."""
    host = zl.Host()
    mesh = host.mesh(MESH, rid="n")
    mesh.serve_channel(CHANNEL)

    @mesh.on_channel_request(CHANNEL)
    async def ask(message: Ask) -> Answer:
        return Answer(message.n, 0)

    async with host.run() as rt, caller(peers=[rt.endpoint(MESH)]) as here:
        await until(lambda: here.targets == 1)
        async with Load.on(here.rt, tasks=4, timeout=5) as load:
            stranger = zl.Host()
            stranger.mesh(
                "other" if with_what == "mesh" else MESH,
                rid="x" if with_what == "mesh" else "n",
                peers=[rt.endpoint(MESH)],
            )
            async with stranger.run():
                await trio.sleep(1)
        load.assert_each_ended_once()
        assert set(load.ends) == {"answered"}
        assert (here.connects, here.disconnects) == (1, 0)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2  # one on each side, although it was dialled several times
    reason, fix = ("topology_mismatch", "same mesh name") if with_what == "mesh" else ("identity_mismatch", "rid")
    for line in warnings:
        assert reason in line
        assert fix in line
