"""The framework's published channels: those who have one hear of each other (wire.md §9)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.puppet import MESH, until
from zlinkpy.mesh import Member, MemberChannel
from zlinkpy.transport import MemoryNetwork

NAME = "zlink.gossip"


class Owner:
    """Keeps what a channel tells it."""

    def __init__(self, channel: MemberChannel) -> None:
        self.channel = channel
        self.joined: list[Member] = []
        self.left: list[Member] = []
        self.told: list[bytes] = []
        self.asked: list[bytes] = []
        channel.on_joined, channel.on_left = self.joined.append, self.left.append
        channel.told["word"] = lambda _member, data: self.told.append(data)
        channel.asked["question"] = lambda _member, data: self.asked.append(data)
        channel.refresh()


@asynccontextmanager
async def hosts(
    count: int, prepare: Callable[[Any], None] = lambda mesh: mesh.serve_member_channel(NAME)
) -> AsyncIterator[list[Any]]:
    """The registrations of so many running hosts, connected."""
    network = MemoryNetwork(seed=1)
    async with AsyncExitStack() as stack:
        meshes: list[Any] = []
        endpoints: list[str] = []
        for number in range(count):
            host = zl.Host(watchdog=False, transport=lambda _entropy, number=number: network.transport(f"h{number}"))
            mesh = host.mesh(MESH, rid=f"h{number}", peers=endpoints)
            prepare(mesh)
            rt = await stack.enter_async_context(host.run())
            endpoints.append(rt.endpoint(MESH))
            meshes.append(mesh)
        yield meshes


async def test_members_are_told_and_asked_and_hear_who_comes_and_goes(autojump_clock: object) -> None:
    async with hosts(3) as meshes:
        owners = [Owner(mesh.member_channel(NAME)) for mesh in meshes]
        await until(lambda: all(len(owner.joined) == 2 for owner in owners))
        one, two, three = owners
        assert sorted(member.rid for member in one.channel) == ["h1", "h2"]
        for member in one.channel:
            assert member.is_ready
            assert member.tell(one.channel.frames("word", b"\xa2hi"))
            await member.ask("question", b"\xa3why", timeout=1)
        assert two.told == three.told == [b"\xa2hi"]
        assert two.asked == three.asked == [b"\xa3why"]
        gone = next(member for member in one.channel if member.rid == "h1")
        gone._link.lanes[next(iter(gone._link.lanes))].close()
        await until(lambda: one.left == [gone])
        with pytest.raises(zl.UnavailableError):
            gone.tell(one.channel.frames("word", b"\xa2hi"))
        await until(lambda: len(one.joined) == 3, 30)
        # A new connection is a new member.
        assert one.joined[-1].rid == "h1"
        assert one.joined[-1] is not gone


async def test_an_owner_that_fails_is_answered_for_and_harms_nothing(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with hosts(2) as meshes:
        one, two = (Owner(mesh.member_channel(NAME)) for mesh in meshes)
        await until(lambda: one.joined and two.joined)

        def broken(*_arguments: object) -> None:
            raise RuntimeError("a broken owner")

        (member,) = one.channel
        two.channel.told["word"] = two.channel.asked["question"] = broken
        assert member.tell(one.channel.frames("word", b"\xc0"))
        with pytest.raises(zl.InternalFailureError):
            await member.ask("question", b"\xc0", timeout=1)
        assert "a broken owner" in caplog.text
        two.channel.on_left = two.channel.on_joined = broken
        member._link.lanes[next(iter(member._link.lanes))].close()
        await until(lambda: len(one.joined) == 2, 30)
        two.channel.told["word"] = lambda _member, data: two.told.append(data)
        assert one.joined[-1].tell(one.channel.frames("word", b"\xa2ok"))
        await until(lambda: two.told == [b"\xa2ok"])


async def test_a_closed_channel_hears_nothing_and_can_be_opened_again(autojump_clock: object) -> None:
    async with hosts(2) as meshes:
        one = Owner(meshes[0].member_channel(NAME))
        two = Owner(meshes[1].member_channel(NAME))
        await until(lambda: one.joined and two.joined)
        two.channel.close()
        two.channel.close()
        (member,) = one.channel
        assert member.tell(one.channel.frames("word", b"\xc0"))
        with pytest.raises(zl.NotFoundError):
            await member.ask("question", b"\xc0", timeout=1)
        assert two.told == []
        again = Owner(meshes[1].member_channel(NAME))
        assert [each.rid for each in again.joined] == ["h0"]
        await member.ask("question", b"\xc0", timeout=1)
        assert again.asked == [b"\xc0"]


async def test_a_paused_member_takes_nothing_now_and_in_line_later(autojump_clock: object) -> None:
    async with hosts(2) as meshes:
        one, two = (Owner(mesh.member_channel(NAME)) for mesh in meshes)
        await until(lambda: one.joined and two.joined)
        (member,) = one.channel
        permits = meshes[1].node.core.permits
        for _ in range(permits.maximum):
            permits.take_over()
        await trio.sleep(0.01)
        assert not member.tell(one.channel.frames("word", b"\x01"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.tell_later, lambda: one.channel.frames("word", b"\x02"))
            await trio.sleep(1)
            assert two.told == []
            for _ in range(permits.maximum):
                permits.release()
        await until(lambda: two.told == [b"\x02"])


async def test_only_the_framework_has_such_channels_and_only_from_the_start(autojump_clock: object) -> None:
    mesh = zl.Host(watchdog=False).mesh("m")
    with pytest.raises(zl.ConfigurationError, match="no channel of the framework"):
        mesh.serve_member_channel("orders")
    with pytest.raises(zl.InvalidOperationError, match="host is not running"):
        mesh.member_channel(NAME)
    async with hosts(1, lambda mesh: None) as (plain,):
        with pytest.raises(zl.InvalidOperationError, match="made before"):
            plain.member_channel(NAME)
        with pytest.raises(zl.InvalidOperationError):
            plain.serve_member_channel(NAME)
    with pytest.raises(zl.InvalidOperationError, match="host is not running"):
        plain.member_channel(NAME)
