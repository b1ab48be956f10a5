"""Keys: who gets in, who is dialled, and what both ends hear when it is nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, World, echo, eventually
from tests.keys import Keyring
from zlinkpy.security import HostKeys, KeyRefusedError
from zlinkpy.transport import Pattern


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "near", "far")


@pytest.mark.parametrize("pattern", Pattern)
async def test_listed_peers_talk_and_know_each_other_by_their_keys(
    world: World, clock: MockClock, ring: Keyring, pattern: Pattern
) -> None:
    async with world.host("near", keys=ring.host("near")) as near, world.host("far", keys=ring.host("far")) as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        sink = Recorder()
        dialled = near.dial(listener.endpoint, sink, pattern=pattern, server_key=ring.public("far"))
        await sink.until_opened()
        dialled.send([b"hello", b"there"])
        await sink.until_records(1)
        assert sink.records == [[b"hello", b"there"]]
        accepted = reception.sinks[0].connection
        assert accepted is not None
        assert accepted.peer_key == ring.public("near")
        assert dialled.peer_key == ring.public("far")
        assert not dialled.security_failed


async def test_without_keys_there_is_no_peer_key(world: World, clock: MockClock) -> None:
    async with world.host("near") as near, world.host("far") as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        sink = Recorder()
        dialled = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        dialled.send([b"hello"])
        await sink.until_records(1)
        accepted = reception.sinks[0].connection
        assert accepted is not None
        assert accepted.peer_key is dialled.peer_key is None


@pytest.mark.parametrize("case", ["unlisted", "wrong key", "plain dialler", "plain listener"])
async def test_each_mistake_with_keys_has_a_message_of_its_own(
    world: World, clock: MockClock, ring: Keyring, tmp_path: Path, case: str
) -> None:
    names = {"near": "near", "far": "far"}
    if case == "unlisted":
        names["near"] = "mallory"
    near_keys: HostKeys | None = ring.host(names["near"])
    far_keys: HostKeys | None = ring.host("far")
    server_key: str | None = ring.public("far")
    if case == "wrong key":
        server_key = ring.public("near")
    elif case == "plain dialler":
        near_keys = server_key = None
    elif case == "plain listener":
        far_keys = None
    async with world.host("near", keys=near_keys) as near, world.host("far", keys=far_keys) as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        sink = Recorder()
        dialled = near.dial(listener.endpoint, sink, server_key=server_key)
        cause = await sink.until_closed(within=4.0)
        assert "opened" not in sink.told
        assert not reception.sinks
        assert dialled.security_failed
        assert {
            "unlisted": f"refused this node's key {ring.public('mallory')}: it is not on the peer's allow-list",
            "wrong key": f"whose key is not {server_key}",
            "plain dialler": "the peer demands keys and this node has none: set [security] key_file",
            "plain listener": "the peer has no keys and this node demands them",
        }[case] in cause


async def test_a_refused_connection_is_no_matter_of_keys(world: World, clock: MockClock, ring: Keyring) -> None:
    async with world.host("near", keys=ring.host("near")) as near:
        sink = Recorder()
        dialled = near.dial(world.refusing_endpoint(), sink, server_key=ring.public("far"))
        assert "refused" in await sink.until_closed()
        assert not dialled.security_failed


async def test_a_dial_that_keys_forbid_is_refused_with_the_fix(world: World, clock: MockClock, ring: Keyring) -> None:
    async with world.host("near", keys=ring.host("near")) as near, world.host("plain") as plain:
        sink = Recorder()
        with pytest.raises(KeyRefusedError, match=r"allow-list under a name and dial NAME@tcp://127\.0\.0\.1:9"):
            near.dial("tcp://127.0.0.1:9", sink)
        with pytest.raises(KeyRefusedError, match="not on the allow-list") as caught:
            near.dial("tcp://127.0.0.1:9", sink, server_key=ring.public("mallory"))
        assert f'NAME = "{ring.public("mallory")}"' in caught.value.message
        with pytest.raises(KeyRefusedError, match=r"set \[security\] key_file"):
            plain.dial("tcp://127.0.0.1:9", sink, server_key=ring.public("far"))
        for host in (near, plain):
            assert host.statistics().dialled == 0


async def test_a_changed_list_is_in_force_without_a_restart(world: World, clock: MockClock, ring: Keyring) -> None:
    async with world.host("late", keys=ring.host("late")) as late, world.host("far", keys=ring.host("far")) as far:
        listener = await far.listen(world.endpoint(), Reception(echo).accept)
        refused = Recorder()
        late.dial(listener.endpoint, refused, server_key=ring.public("far"))
        await refused.until_closed()
        ring.allow("near", "far", "late")
        with trio.fail_after(60.0):
            while True:
                sink = Recorder()
                connection = late.dial(listener.endpoint, sink, server_key=ring.public("far"))
                await sink.until(lambda sink=sink: bool(sink.told))  # type: ignore[misc]
                if sink.is_opened:
                    break
        connection.send([b"hello"])
        await sink.until_records(1)


@pytest.mark.parametrize("removed", ["near", "far"])
async def test_a_key_taken_off_the_list_ends_its_connections_and_no_other(
    world: World, clock: MockClock, tmp_path: Path, removed: str
) -> None:
    """Whichever side dialled: each goes by the list it has, and here only one side's list changes."""
    ring = Keyring(tmp_path, "near", "far", "third")
    (tmp_path / "still").mkdir()
    still = Keyring(tmp_path / "still")
    still.pairs = ring.pairs
    still.allow("near", "far", "third")
    keys = {name: (still if name == removed else ring).host(name) for name in ("near", "far", "third")}
    async with (
        world.host("near", keys=keys["near"]) as near,
        world.host("far", keys=keys["far"]) as far,
        world.host("third", keys=still.host("third")) as third,
    ):
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        other_listener = await third.listen(world.endpoint(), Reception(echo).accept)
        sinks = [Recorder(), Recorder(), Recorder()]
        victim = near.dial(listener.endpoint, sinks[0], server_key=ring.public("far"))
        bystander = near.dial(other_listener.endpoint, sinks[1], server_key=ring.public("third"))
        other = third.dial(listener.endpoint, sinks[2], server_key=ring.public("far"))
        for sink, connection in zip(sinks, (victim, bystander, other), strict=True):
            await sink.until_opened()
            connection.send([b"hello"])
            await sink.until_records(1)
        ring.allow(*({"near", "far", "third"} - {removed}))
        await sinks[0].until_closed()
        accepted = reception.sinks[0]
        await eventually(lambda: accepted.cause is not None)
        ended = accepted if removed == "near" else sinks[0]
        assert ended.cause == f"the key {ring.public(removed)} was taken off the allow-list"
        by_list = ended.connection
        assert by_list is not None
        assert by_list.security_failed
        if removed == "near":
            other.send([b"still"])
            await sinks[2].until_records(2)
        bystander.send([b"still"])
        await sinks[1].until_records(2)


async def test_any_key_gets_in_where_that_is_written_down(world: World, clock: MockClock, ring: Keyring) -> None:
    anybody = HostKeys(pair=ring.pair("far"), allow_any=True)
    async with world.host("late", keys=ring.host("late")) as late, world.host("far", keys=anybody) as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        sink = Recorder()
        connection = late.dial(listener.endpoint, sink, server_key=ring.public("far"))
        await sink.until_opened()
        connection.send([b"hello"])
        await sink.until_records(1)
        accepted = reception.sinks[0].connection
        assert accepted is not None
        assert accepted.peer_key == ring.public("late")


async def test_a_listed_subscriber_gets_what_is_published_and_another_does_not(
    world: World, clock: MockClock, ring: Keyring
) -> None:
    async with (
        world.host("near", keys=ring.host("near")) as near,
        world.host("far", keys=ring.host("far")) as far,
        world.host("late", keys=ring.host("late")) as late,
    ):
        publisher = await far.publish(world.endpoint())
        listed, unlisted = Recorder(), Recorder()
        subscription = near.subscribe(publisher.endpoint, listed, [b""], server_key=ring.public("far"))
        refused = late.subscribe(publisher.endpoint, unlisted, [b""], server_key=ring.public("far"))
        await listed.until_opened()
        assert "not on the peer's allow-list" in await unlisted.until_closed()
        assert refused.security_failed
        assert subscription.peer_key == ring.public("far")
        with trio.fail_after(10.0):
            while not listed.records:
                publisher.publish([b"topic", b"news"])
                await trio.sleep(0.01)
        with pytest.raises(KeyRefusedError, match="knows none of the peer"):
            near.subscribe(publisher.endpoint, Recorder(), [b""])


async def test_a_publisher_loses_a_subscriber_that_was_taken_off_its_list(
    world: World, clock: MockClock, tmp_path: Path
) -> None:
    """The publisher's list changes and the subscriber's does not; who is still listed comes back at once."""
    ring = Keyring(tmp_path, "near", "far", "third")
    (tmp_path / "still").mkdir()
    still = Keyring(tmp_path / "still")
    still.pairs = ring.pairs
    still.allow("near", "far", "third")
    async with (
        world.host("near", keys=still.host("near")) as near,
        world.host("third", keys=still.host("third")) as third,
        world.host("far", keys=ring.host("far")) as far,
    ):
        publisher = await far.publish(world.endpoint())
        sink = Recorder()
        near.subscribe(publisher.endpoint, sink, [b""], server_key=ring.public("far"))
        await sink.until_opened()
        ring.allow("far", "third")
        await sink.until_closed()
        again, other = Recorder(), Recorder()
        near.subscribe(publisher.endpoint, again, [b""], server_key=ring.public("far"))
        third.subscribe(publisher.endpoint, other, [b""], server_key=ring.public("far"))
        assert "not on the peer's allow-list" in await again.until_closed()
        await other.until_opened()


async def test_a_subscription_to_a_publisher_that_was_taken_off_the_list_ends(
    world: World, clock: MockClock, tmp_path: Path
) -> None:
    ring = Keyring(tmp_path, "near", "far")
    anybody = HostKeys(pair=ring.pair("far"), allow_any=True)
    async with world.host("near", keys=ring.host("near")) as near, world.host("far", keys=anybody) as far:
        publisher = await far.publish(world.endpoint())
        sink = Recorder()
        subscription = near.subscribe(publisher.endpoint, sink, [b""], server_key=ring.public("far"))
        await sink.until_opened()
        ring.allow("near")
        assert await sink.until_closed() == f"the key {ring.public('far')} was taken off the allow-list"
        assert subscription.security_failed
