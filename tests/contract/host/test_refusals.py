"""Peers that cannot be admitted, and garbage: one line names who, where, why and the fix; nobody else notices."""

from __future__ import annotations

import logging

import pytest
import trio

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Ask, Lan
from tests.location_hosts import Gate
from tests.puppet import APP, until
from zlinkpy.wire import NodeSend, PayloadHead, encode


def spoken(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings about connections so far."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "zlinkpy.mesh" and record.levelno >= logging.WARNING
    ]


@pytest.mark.parametrize(
    ("fields", "why", "fix"),
    [
        ({"mesh": "other"}, "topology_mismatch (it names the mesh 'other')", "give both the same mesh name"),
        ({"rid": "n"}, "identity_mismatch", "check peers and rid"),
        ({"capabilities": ()}, "capability_mismatch", "upgrade it"),
        ({"endpoint": "tcp://0.0.0.0:1"}, "invalid_descriptor", "advertise_host"),
    ],
    ids=["mesh", "rid", "capability", "endpoint"],
)
async def test_a_peer_that_does_not_belong_here_is_named_once_with_the_fix(
    autojump_clock: object, lan: Lan, caplog: pytest.LogCaptureFixture, fields: dict[str, str], why: str, fix: str
) -> None:
    async with lan.node("n", port=1, weight=100) as n, lan.node("z", peers=[1]) as z:
        await z.target()
        puppet = lan.puppet(**{"rid": "stranger"} | fields)
        for _ in range(3):
            puppet.dial(n.rt.endpoint(MESH))
            await until(lambda: puppet.pair.is_gone)
            assert puppet.pair.reject is not None
        (line,) = spoken(caplog)
        assert line.startswith("mesh play: no connection with node ")
        assert puppet.endpoint in line
        assert why in line
        assert fix in line
        assert z.is_ready("n")
        assert (await z.rt.request_to_channel(CHANNEL, Ask(1))).who == "n"
        assert z.rt.request_statistics.route_failed == 0


async def test_the_dialling_side_says_it_too(
    autojump_clock: object, lan: Lan, caplog: pytest.LogCaptureFixture
) -> None:
    """A node whose configured peer is a member of another mesh: both ends say so, once, however often it is dialled."""
    host, _ = lan.host("other")
    host.mesh("another", rid="o", listen=lan.endpoint(1))
    async with host.run(), lan.node("z", peers=[1]):
        await trio.sleep(60)
    lines = spoken(caplog)
    assert len(lines) == 2
    (dialling,) = (line for line in lines if line.startswith("mesh play: "))
    (accepting,) = (line for line in lines if line.startswith("mesh another: "))
    assert (
        f"no connection with {lan.endpoint(1)}: the peer rejected the application lane: topology_mismatch" in dialling
    )
    assert "node z at " in accepting
    assert "'play'" in accepting


async def test_a_peer_with_another_security_identity_is_named(
    autojump_clock: object, lan: Lan, caplog: pytest.LogCaptureFixture
) -> None:
    """Discovery says who a node is; somebody else who answers under its name is refused."""
    async with lan.node("n", weight=100, location_store=Gate(lan.store)) as n:
        async with lan.node("a", location_store=Gate(lan.store)) as a:
            await until(lambda: n.is_ready(a.rt.node_rid(MESH)))
            puppet = lan.puppet(a.rt.node_rid(MESH), security="somebody-else", endpoint=a.rt.endpoint(MESH))
            puppet.dial(n.rt.endpoint(MESH))
            # Held until no list can be expected to vouch for this run of it any more.
            await until(lambda: puppet.pair.is_gone, 10)
            (line,) = spoken(caplog)
            assert "security_identity_mismatch" in line
            assert a.rt.node_rid(MESH) in line
            assert "check the keys" in line
            assert n.is_ready(a.rt.node_rid(MESH))


async def test_an_admission_makes_the_next_refusal_news(
    autojump_clock: object, lan: Lan, caplog: pytest.LogCaptureFixture
) -> None:
    async with lan.node("n", port=1) as n:
        for mesh in ("other", MESH, "other"):
            puppet = lan.puppet("p", mesh=mesh, endpoint="tcp://10.0.0.1:1", generation=7)
            puppet.dial(n.rt.endpoint(MESH))
            await trio.sleep(1)
            puppet.pair.hang_up()
            await trio.sleep(1)
        assert len(spoken(caplog)) == 2


@pytest.mark.parametrize(
    ("frames", "why", "fix"),
    [
        ([b"GET / HTTP/1.1"], "prefix.magic", "no mesh node"),
        ([b"ZM\x02\x01\x00\x90"], "prefix.major: must be 1, is 2", "versions of the same major"),
        ([b"ZM\x01"], "prefix", "breaks the protocol"),
        ([b""], "prefix", "breaks the protocol"),
        ([b"ZM\x01\x01\x00" + b"\xff" * 100], "body", "breaks the protocol"),
        ([b"ZM\x01\x01\x00\xdd\xff\xff\xff\xff"], "body", "breaks the protocol"),
        (encode(NodeSend(PayloadHead("Note", "application/msgpack")), parts=[b"\x80"]), "hello", "breaks the protocol"),
        ([b"a"] * 50, "prefix", "breaks the protocol"),
    ],
    ids=["http", "major", "short", "empty", "body", "claims 4 GiB", "no hello", "frames"],
)
async def test_garbage_ends_its_own_connection_with_one_line(
    autojump_clock: object, lan: Lan, caplog: pytest.LogCaptureFixture, frames: list[bytes], why: str, fix: str
) -> None:
    async with lan.node("n", port=1, weight=100) as n, lan.node("z", peers=[1]) as z:
        await z.target()
        puppet = lan.puppet()
        pair = puppet.dial(n.rt.endpoint(MESH), silent=True)
        await until(lambda: pair.lanes[APP].is_open)
        pair.app.send_raw(frames)
        await until(lambda: pair.is_gone)
        (line,) = spoken(caplog)
        assert line.startswith(f"mesh play: closing a connection at {n.rt.endpoint(MESH)}: ")
        assert why in line
        assert fix in line
        assert (await z.rt.request_to_channel(CHANNEL, Ask(1))).who == "n"
        assert z.rt.request_statistics.route_failed == 0
        assert n.telemetry.total("zlink.mesh_node.peer.refusals", reason="protocol_error") == 1


async def test_half_a_handshake_is_let_go(autojump_clock: object, lan: Lan) -> None:
    """Admitted on one lane, and the other never comes."""
    async with lan.node("n", port=1) as n:
        puppet = lan.puppet()
        puppet.opens_completion = False
        pair = puppet.dial(n.rt.endpoint(MESH))
        await until(lambda: pair.admitted)
        await trio.sleep(4)
        assert not pair.is_gone
        assert not n.is_ready("puppet")
        await trio.sleep(2)
        assert pair.is_gone
        assert n.rt.status.state is zl.HostState.SERVING
