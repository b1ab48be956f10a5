"""Keys on real sockets: what is on the wire, who answers for the authenticator, and what is said when nobody does."""

from __future__ import annotations

import logging
import re
import socket
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import zmq
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, block_the_loop, echo, eventually
from tests.integration.transport.conftest import Host
from tests.keys import Keyring
from zlinkpy.entropy import SeededEntropy
from zlinkpy.security import HostKeys, KeyPair, Secret
from zlinkpy.transport import ZmqTransport, authenticator, generate_key_pair, key_pair_of
from zlinkpy.transport.greeting import mechanism_at


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "near", "far")


def test_a_secret_key_leads_to_its_public_one() -> None:
    pair = generate_key_pair()
    assert key_pair_of(Secret(pair.secret.reveal())) == pair


class Wiretap:
    """A relay to `port` that keeps every byte that passes. Ends with the connection."""

    def __init__(self, port: int) -> None:
        self.seen = bytearray()
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with self._server, self._server.accept()[0] as near, socket.create_connection(("127.0.0.1", self._port)) as far:
            back = threading.Thread(target=self._pump, args=(far, near))
            back.start()
            self._pump(near, far)
            back.join()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                self.seen.extend(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("keyed", [False, True])
async def test_what_is_sent_cannot_be_read_on_the_wire(
    host: Host, fast_clock: MockClock, ring: Keyring, keyed: bool
) -> None:
    near_keys, far_keys = (ring.host("near"), ring.host("far")) if keyed else (None, None)
    async with host(keys=near_keys) as near, host(keys=far_keys) as far:
        listener = await far.listen("tcp://127.0.0.1:0", Reception(echo).accept)
        tap = Wiretap(int(listener.endpoint.rpartition(":")[2]))
        sink = Recorder()
        connection = near.dial(tap.endpoint, sink, server_key=ring.public("far") if keyed else None)
        await sink.until_opened()
        connection.send([b"an open secret"])
        await sink.until_records(1)
    tap.join()
    assert len(tap.seen) > 100
    assert (b"an open secret" in tap.seen) is not keyed


async def test_a_busy_loop_turns_nobody_away(host: Host, ring: Keyring) -> None:
    """The authenticator answers while a handler holds the loop for longer than a handshake may take."""
    options = {"handshake_seconds": 0.5}
    async with host(keys=ring.host("far"), **options) as far:
        reception = Reception(echo)
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        outcome: list[bytes] = []

        def client() -> None:
            context = zmq.Context()
            with context.socket(zmq.DEALER) as dealer:
                dealer.set(zmq.LINGER, 0)
                dealer.set(zmq.RECONNECT_IVL, 60_000)
                dealer.set(zmq.HANDSHAKE_IVL, 500)
                dealer.set(zmq.RCVTIMEO, 10_000)
                pair = ring.pair("near")
                dealer.set(zmq.CURVE_SERVERKEY, ring.public("far").encode())
                dealer.set(zmq.CURVE_PUBLICKEY, pair.public.encode())
                dealer.set(zmq.CURVE_SECRETKEY, pair.secret.reveal().encode())
                dealer.connect(listener.endpoint)
                dealer.send(b"hello")
                outcome.append(dealer.recv())
            context.term()

        thread = threading.Thread(target=client)
        thread.start()
        block_the_loop(1.5)
        await trio.to_thread.run_sync(thread.join)
        assert outcome == [b"hello"]


@pytest.mark.parametrize("how", ["slow", "failing"])
async def test_an_authenticator_that_does_not_decide_is_named_at_both_ends(
    host: Host, fast_clock: MockClock, ring: Keyring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:  # fmt: skip
    release = threading.Event()
    far_keys = ring.host("far")

    def judge(self: object, request: list[bytes]) -> object:
        if how == "failing":
            raise RuntimeError("no idea")
        release.wait(20)
        return b"200", b"OK", b""

    monkeypatch.setattr(authenticator.Authenticator, "_judge", judge)
    async with host(keys=ring.host("near")) as near, host(keys=far_keys) as far:
        listener = await far.listen("tcp://127.0.0.1:0", Reception(echo).accept)
        sink = Recorder()
        dialled = near.dial(listener.endpoint, sink, server_key=ring.public("far"))
        cause = await sink.until_closed()
        if how == "slow":
            await eventually(lambda: "was not let in" in caplog.text)
        release.set()
        assert dialled.security_failed
        if how == "slow":
            assert "did not finish the key exchange in time: its authenticator is slow or absent" in cause
            await eventually(lambda: "the authenticator of this node was busy for" in caplog.text)
        else:
            assert "the peer's authenticator failed (status 500)" in cause
            await eventually(lambda: "the authenticator of this node failed (status 500)" in caplog.text)
            assert "nobody is let in by this answer" in caplog.text


async def test_without_an_authenticator_nobody_gets_in(
    host: Host, fast_clock: MockClock, ring: Keyring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What libzmq does by itself is to let everybody in."""
    monkeypatch.setattr(authenticator, "ENDPOINT", "inproc://somewhere-else")
    async with host(keys=ring.host("near")) as near, host(keys=ring.host("far")) as far:
        listener = await far.listen("tcp://127.0.0.1:0", Reception(echo).accept)
        sink = Recorder()
        dialled = near.dial(listener.endpoint, sink, server_key=ring.public("far"))
        # libzmq hangs up at once or lets the dialler wait; either is told as what it can be.
        assert re.search("authenticator is (slow or )?absent", await sink.until_closed())
        assert dialled.security_failed
        await eventually(lambda: "the authenticator of this node is absent" in caplog.text)


ACCEPTORS_WORDS = {
    "unlisted": "its key is not on the allow-list",
    "wrong key": "it dialled with another public key than this node's",
    "plain dialler": "without keys",
    "plain listener": "with keys",
}


@pytest.mark.parametrize("case", ACCEPTORS_WORDS)
async def test_the_listening_end_logs_what_was_wrong(
    host: Host, fast_clock: MockClock, ring: Keyring, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    near_keys = {"unlisted": ring.host("mallory"), "plain dialler": None}.get(case, ring.host("near"))
    far_keys = None if case == "plain listener" else ring.host("far")
    server_key = {"wrong key": ring.public("near"), "plain dialler": None}.get(case, ring.public("far"))
    async with host(keys=near_keys) as near, host(keys=far_keys) as far:
        listener = await far.listen("tcp://127.0.0.1:0", Reception(echo).accept)
        for _ in range(2):
            sink = Recorder()
            near.dial(listener.endpoint, sink, server_key=server_key)
            await sink.until_closed()
        await eventually(lambda: ACCEPTORS_WORDS[case] in caplog.text)
    if case == "unlisted":
        told = [record for record in caplog.records if record.name == "zlinkpy.security"]
        assert [record.levelno for record in told] == [logging.WARNING]
        assert f'add NAME = "{ring.public("mallory")}" to it' in told[0].getMessage()
        assert "127.0.0.1" in told[0].getMessage()


async def test_the_authenticator_ends_with_its_transport(ring: Keyring) -> None:
    transport = ZmqTransport(entropy=SeededEntropy(1))
    transport.secure(ring.host("far"))
    async with transport:
        assert [thread for thread in threading.enumerate() if thread.name == "zlink authenticator"]
        assert transport.statistics().sockets == 3
    assert not [thread for thread in threading.enumerate() if thread.name == "zlink authenticator"]
    assert transport.statistics().sockets == 0


async def test_what_is_no_zap_request_is_answered_by_nobody_and_stops_nothing(
    host: Host, fast_clock: MockClock, ring: Keyring, caplog: pytest.LogCaptureFixture
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    async with host(keys=ring.host("near")) as near, host(keys=ring.host("far"), context=context) as far:
        with context.socket(zmq.DEALER) as dealer:
            dealer.set(zmq.LINGER, 0)
            dealer.connect(authenticator.ENDPOINT)
            dealer.send_multipart([b"", b"9.9", b"1"])
            dealer.send_multipart([b"", b"1.0", b"7", b"", b"", b"", b"NULL"])
            await eventually(lambda: bool(dealer.poll(0)))
            assert dealer.recv_multipart()[:4] == [b"", b"1.0", b"7", b"400"]
        assert "does not understand" in caplog.text
        listener = await far.listen("tcp://127.0.0.1:0", Reception(echo).accept)
        sink = Recorder()
        near.dial(listener.endpoint, sink, server_key=ring.public("far"))
        await sink.until_opened()
    context.term()


@pytest.mark.parametrize("keyed", [False, True])
async def test_an_endpoint_is_asked_for_its_mechanism(
    host: Host, fast_clock: MockClock, ring: Keyring, keyed: bool
) -> None:
    async with host(keys=ring.host("far") if keyed else None) as far:
        listener = await far.listen("tcp://127.0.0.1:0", Reception(echo).accept)
        assert await mechanism_at(listener.endpoint) == ("CURVE" if keyed else "NULL")


async def test_what_is_no_zeromq_has_no_mechanism(fast_clock: MockClock, nursery: trio.Nursery) -> None:
    async def web(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)
        await stream.aclose()

    listeners = await nursery.start(partial(trio.serve_tcp, web, 0, host="127.0.0.1"))
    assert await mechanism_at(f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}") is None
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        port = mute.getsockname()[1]
        assert await mechanism_at(f"tcp://127.0.0.1:{port}") is None
        mute.listen()
        assert await mechanism_at(f"tcp://127.0.0.1:{port}") is None
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("length", [1, 16, 1 << 16])
async def test_records_of_every_size_survive_the_encryption(
    host: Host, fast_clock: MockClock, ring: Keyring, length: int
) -> None:
    async with host(keys=ring.host("near")) as near, host(keys=ring.host("far")) as far:
        listener = await far.listen("tcp://127.0.0.1:0", Reception(echo).accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink, server_key=ring.public("far"))
        await sink.until_opened()
        sent = [[bytes([number]) * length, b"", b"x"] for number in range(20)]
        for record in sent:
            connection.send(record)
        await sink.until_records(len(sent))
        assert sink.records == sent


def test_keys_come_before_the_first_socket() -> None:
    keys = HostKeys(pair=KeyPair("p" * 40, Secret("s" * 40)), allow_any=True)
    transport = ZmqTransport(entropy=SeededEntropy(1))

    async def late() -> None:
        async with transport:
            with pytest.raises(RuntimeError, match="before it is entered"):
                transport.secure(keys)

    trio.run(late)
