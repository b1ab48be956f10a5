"""Keys and admission: what a node says it is has to be what its connection proved (wire.md §4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import zlinkpy as zl
from tests.contract.mesh.nodes import CHANNEL, Echo, Echoed, Node, World
from tests.keys import Keyring
from tests.location_hosts import Gate
from tests.puppet import MESH, Puppet, PuppetPair, until
from tests.service_puppet import ServicePuppet
from zlinkpy.link import FailureReason
from zlinkpy.location import LeaseDriver
from zlinkpy.security import write_key_file
from zlinkpy.transport import MemoryTransport
from zlinkpy.wire import Lane, RejectReason

Secure = Callable[..., dict[str, Any]]


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "a", "b", "p")


@pytest.fixture
def secure(ring: Keyring, tmp_path: Path) -> Secure:
    """The arguments of a host with the keys of `name`."""

    def arguments(name: str, **more: Any) -> dict[str, Any]:
        path = tmp_path / f"{name}.key"
        if not path.exists():
            write_key_file(path, ring.pair(name))
        options: dict[str, Any] = {"key_file": str(path), "allow_list": str(ring.path)} | more
        return {"security": zl.SecurityOptions(**options)}

    return arguments


def key_the_wire(world: World, ring: Keyring, name: str) -> MemoryTransport:
    """Another transport for puppets, with the keys of `name`."""
    assert world.network is not None
    transport = world.network.transport(f"puppet {name}")
    transport.secure(ring.host(name))
    return transport


def failures(node: Node) -> set[FailureReason]:
    return {peer.last_failure.reason for peer in node.snapshot.peers if peer.last_failure is not None}


async def connected(a: Node, b: Node) -> None:
    await until(lambda: a.is_ready(b.rid) and b.is_ready(a.rid))
    assert (await a.echo()).who == b.name


async def test_nodes_with_keys_call_each_other(autojump_clock: object, world: World, secure: Secure) -> None:
    b = await world.host("b", serves={CHANNEL: 100}, **secure("b"))
    a = await world.host("a", peers=[f"b@{b.endpoint}"], **secure("a"))
    await connected(a, b)


async def test_nodes_with_keys_find_each_others_keys_in_the_store(
    autojump_clock: object, world: World, secure: Secure
) -> None:
    b = await world.host("b", serves={CHANNEL: 100}, store=True, **secure("b"))
    a = await world.host("a", store=True, **secure("a"))
    await connected(a, b)


async def test_nodes_with_keys_call_each_other_over_sockets(fast_clock: object, sockets: World, secure: Secure) -> None:
    b = await sockets.host("b", serves={CHANNEL: 100}, **secure("b"))
    a = await sockets.host("a", peers=[f"b@{b.endpoint}"], **secure("a"))
    await connected(a, b)


@pytest.mark.contract("LV-22")
@pytest.mark.parametrize("wrong", ["unlisted", "plain", "wrong key"])
async def test_a_node_with_the_wrong_keys_stays_outside_and_both_ends_say_why(
    fast_clock: object, sockets: World, ring: Keyring, secure: Secure, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    b = await sockets.host("b", serves={CHANNEL: 100}, **secure("b"))
    if wrong == "unlisted":
        (ring.path.parent / "own").mkdir()
        own = Keyring(ring.path.parent / "own")
        own.pairs = ring.pairs
        own.allow("b")
        arguments = secure("mallory", allow_list=str(own.path))
        peer = f"b@{b.endpoint}"
    elif wrong == "plain":
        arguments, peer = {}, b.endpoint
    else:
        arguments, peer = secure("a"), f"p@{b.endpoint}"
    x = await sockets.host("x", peers=[peer], **arguments)
    await until(lambda: FailureReason.SECURITY_MISMATCH in failures(x))
    [state] = x.snapshot.peers
    assert state.last_failure is not None
    said = {
        "unlisted": f"refused this node's key {ring.public('mallory')}",
        "plain": "demands keys and this node has none",
        "wrong key": f"whose key is not {ring.public('p')}",
    }[wrong]
    assert said in state.last_failure.detail
    heard = {
        "unlisted": "it is not on the allow-list",
        "plain": "without keys",
        "wrong key": "with another public key than this node's",
    }[wrong]
    await until(lambda: heard in caplog.text)
    assert f"mesh {MESH}: no connection with peer {b.endpoint}" in caplog.text
    assert not b.snapshot.peers
    with pytest.raises(zl.UnavailableError):
        await x.echo(timeout=1.0)


@pytest.mark.contract("LV-22")
@pytest.mark.parametrize("claim", ["the key of another node", "anonymous"])
async def test_a_dialler_that_claims_another_key_than_its_own_is_rejected(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure, claim: str
) -> None:
    b = await world.host("b", serves={CHANNEL: 100}, **secure("b"))
    async with key_the_wire(world, ring, "p") as wire:
        identity = ring.public("a") if claim.startswith("the") else claim
        puppet = Puppet(Keyed(wire, ring.public("b")), "p", security=identity)
        pair = puppet.dial(b.endpoint)
        await until(lambda: pair.reject is not None or pair.is_up)
        assert pair.reject is RejectReason.SECURITY_IDENTITY_MISMATCH
    assert not b.is_ready("p")


async def test_a_dialler_that_claims_its_own_key_is_admitted(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure
) -> None:
    b = await world.host("b", serves={CHANNEL: 100}, **secure("b"))
    async with key_the_wire(world, ring, "p") as wire:
        puppet = Puppet(Keyed(wire, ring.public("b")), "p", security=ring.public("p"))
        await puppet.connect(b.endpoint)
        await b.ready("p")


@pytest.mark.contract("LV-22")
async def test_an_acceptor_that_claims_another_key_than_it_proved_is_not_admitted(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure
) -> None:
    async with key_the_wire(world, ring, "p") as wire:
        puppet = Puppet(wire, "p", security=ring.public("a"))
        await puppet.listen("tcp://127.0.0.1:0")
        n = await world.host("b", peers=[f"p@{puppet.endpoint}"], **secure("b"))
        await until(lambda: FailureReason.SECURITY_MISMATCH in failures(n))
        assert not n.is_ready("p")


class Keyed:
    """A wire of a puppet that knows the key of whom it dials."""

    def __init__(self, transport: MemoryTransport, server_key: str) -> None:
        self._transport = transport
        self._server_key = server_key

    def dial(self, endpoint: str, sink: Any) -> Any:
        return self._transport.dial(endpoint, sink, server_key=self._server_key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_nobody_joins_the_pair_of_another_key(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure
) -> None:
    """The second lane of a pair has to prove the key of the first, even from somebody who knows the pair's id."""
    b = await world.host("b", serves={CHANNEL: 100}, **secure("b"))
    async with key_the_wire(world, ring, "p") as wire, key_the_wire(world, ring, "a") as other_wire:
        puppet = Puppet(Keyed(wire, ring.public("b")), "p", security=ring.public("p"))
        puppet.opens_completion = False
        pair = puppet.dial(b.endpoint)
        await until(lambda: Lane.APPLICATION in pair.admitted)
        thief = Puppet(Keyed(other_wire, ring.public("b")), "p", security=ring.public("p"))
        stolen = PuppetPair(thief, pair.pair_id, dialled=True)
        thief.dial_completion(stolen, b.endpoint)
        await until(lambda: stolen.reject is not None or stolen.admitted)
        assert stolen.reject is RejectReason.SECURITY_IDENTITY_MISMATCH


async def test_a_listed_node_cannot_take_the_place_of_another_one_by_its_name(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure
) -> None:
    b = await world.host("b", serves={CHANNEL: 100}, **secure("b"))
    async with key_the_wire(world, ring, "p") as wire, key_the_wire(world, ring, "a") as other_wire:
        puppet = Puppet(Keyed(wire, ring.public("b")), "p", security=ring.public("p"))
        await puppet.connect(b.endpoint)
        await b.ready("p")
        impostor = Puppet(Keyed(other_wire, ring.public("b")), "p", security=ring.public("a"))
        pair = impostor.dial(b.endpoint)
        await until(lambda: pair.reject is not None or pair.is_up)
        assert pair.reject is RejectReason.SECURITY_IDENTITY_MISMATCH
        assert b.is_ready("p")
        assert puppet.pair.is_up


@pytest.mark.contract("LV-121")
async def test_a_node_taken_off_the_list_loses_its_connection_and_does_not_come_back(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure
) -> None:
    b = await world.host("b", serves={CHANNEL: 100}, **secure("b"))
    a = await world.host("a", peers=[f"b@{b.endpoint}"], **secure("a"))
    await connected(a, b)
    ring.allow("b", "p")
    await until(lambda: not b.is_ready(a.rid))
    failure = b.failure(a.rid)
    assert failure is not None
    assert failure.reason is FailureReason.SECURITY_MISMATCH
    assert f"the key {ring.public('a')} was taken off the allow-list" in failure.detail
    ring.allow("a", "b", "p")
    await connected(a, b)


@pytest.mark.contract("LV-126")
@pytest.mark.parametrize("name", ["a0", "c0"])
async def test_a_store_cannot_bring_in_a_node_that_is_not_listed(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure, name: str
) -> None:
    """Whoever can write to the store publishes a key of his own. The smaller id dials: nobody dials him, and nobody
    lets him in."""
    x = await world.host(name, serves={CHANNEL: 100}, store=True, **secure("mallory", allow_any=True))
    b = await world.host("b", store=True, **secure("b"))
    dialler = x if name < "b" else b
    await until(lambda: FailureReason.SECURITY_MISMATCH in failures(dialler))
    assert not b.is_ready(x.rid)
    assert not x.is_ready(b.rid)


# -- ClientServer


@asynccontextmanager
async def till(world: World, name: str, *, store: bool = False, **arguments: Any) -> AsyncIterator[zl.Runtime]:
    """A host that serves the channel ``orders``."""
    host = service_host(world, name, store=store, **arguments)
    orders = host.serve_client_server("orders")

    @orders.on_request
    async def echo(request: Echo) -> Echoed:
        return Echoed(request.n, name)

    async with host.run() as rt:
        yield rt


def service_host(world: World, name: str, *, store: bool = False, **arguments: Any) -> zl.Host:
    network = world.network
    assert network is not None
    return zl.Host(
        transport=lambda _: network.transport(name),
        location_store=Gate(world.store) if store else None,
        lease_driver=LeaseDriver.LOOP,
        watchdog=False,
        **arguments,
    )


@pytest.mark.parametrize("store", [False, True])
async def test_clients_and_servers_with_keys_talk(
    autojump_clock: object, world: World, secure: Secure, store: bool
) -> None:
    async with till(world, "b", store=store, **secure("b")) as server:
        host = service_host(world, "a", store=store, **secure("a"))
        host.use_client_server("orders", servers=() if store else [f"b@{server.channel_endpoint('orders')}"])
        async with host.run() as rt:
            await until(lambda: rt.channel_status("orders").is_ready)
            assert await rt.request_to_channel("orders", Echo(7)) == Echoed(7, "b")


@pytest.mark.contract("LV-22", "LV-121")
async def test_a_client_that_is_not_listed_is_refused_and_one_that_is_taken_off_is_cut(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure
) -> None:
    async with till(world, "b", **secure("b")) as server:
        host = service_host(world, "m", **secure("mallory", allow_any=True))
        host.use_client_server("orders", servers=[f"b@{server.channel_endpoint('orders')}"])
        async with host.run() as rt:

            def reasons() -> list[FailureReason]:
                peers = rt.channel_status("orders").peers
                return [peer.last_failure.reason for peer in peers if peer.last_failure is not None]

            await until(lambda: reasons() == [FailureReason.SECURITY_MISMATCH])
            assert server.channel_status("orders").ready_clients == 0
            ring.allow("a", "b", "mallory")
            await until(lambda: server.channel_status("orders").ready_clients == 1)
            ring.allow("a", "b")
            await until(lambda: server.channel_status("orders").ready_clients == 0)
            failure = server.channel_status("orders").last_client_failure
            assert failure is not None
            assert failure.reason is FailureReason.SECURITY_MISMATCH


@pytest.mark.contract("LV-22")
async def test_a_client_that_claims_another_key_than_its_own_is_rejected(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure
) -> None:
    async with till(world, "b", **secure("b")) as server, key_the_wire(world, ring, "p") as wire:
        for claim, reject in ((ring.public("a"), RejectReason.SECURITY_IDENTITY_MISMATCH), (ring.public("p"), None)):
            puppet = ServicePuppet(Keyed(wire, ring.public("b")), "p", channel="orders", security=claim, serves=False)
            pair = puppet.dial(server.channel_endpoint("orders"))
            await until(lambda pair=pair: pair.reject is not None or bool(pair.admitted))  # type: ignore[misc]
            assert pair.reject is reject
