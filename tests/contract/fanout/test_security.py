"""Keys on PUB and SUB sockets: who hears whom, and what is said otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zlinkpy as zl
from tests.contract.fanout.world import CHANNEL, TOPIC, Placed, World
from tests.keys import Keyring
from tests.puppet import until
from zlinkpy.link import FailureReason
from zlinkpy.security import write_key_file

Secure = Callable[..., dict[str, Any]]


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "p", "s")


@pytest.fixture
def secure(ring: Keyring, tmp_path: Path) -> Secure:
    """The arguments of a host with the keys of `name`; `lists`: the names on its own allow-list."""

    def arguments(name: str, *lists: str) -> dict[str, Any]:
        path = tmp_path / f"{name}.key"
        write_key_file(path, ring.pair(name))
        listing = tmp_path / f"{name}.toml"
        listing.write_text("".join(f'{each} = "{ring.public(each)}"\n' for each in lists or ("p", "s")))
        return {"security": zl.SecurityOptions(key_file=str(path), allow_list=str(listing))}

    return arguments


@pytest.mark.parametrize("store", [False, True])
async def test_a_publisher_and_a_subscriber_with_keys(
    autojump_clock: object, world: World, secure: Secure, store: bool
) -> None:
    p = await world.publisher(store=store, **secure("p"))
    where = () if store else (f"p@{p.rt.publisher_endpoint(CHANNEL)}",)
    s = await world.subscriber(*where, store=store, **secure("s"))
    await s.rt.wait_ready_publisher(CHANNEL)
    await p.rt.publish(CHANNEL, TOPIC, Placed(5))
    await until(lambda: s.numbers == [5])


async def test_a_publisher_and_a_subscriber_with_keys_over_sockets(
    fast_clock: object, sockets: World, secure: Secure
) -> None:
    p = await sockets.publisher(**secure("p"))
    s = await sockets.subscriber(f"p@{p.rt.publisher_endpoint(CHANNEL)}", **secure("s"))
    await s.rt.wait_ready_publisher(CHANNEL)
    await p.rt.publish(CHANNEL, TOPIC, Placed(5))
    await until(lambda: s.numbers == [5])


@pytest.mark.parametrize("wrong", ["unlisted there", "unlisted here"])
async def test_who_is_not_listed_hears_nothing_and_says_why(
    fast_clock: object, sockets: World, secure: Secure, tmp_path: Path, wrong: str
) -> None:
    p = await sockets.publisher(**secure("p", *(["p"] if wrong == "unlisted there" else [])))
    endpoint = p.rt.publisher_endpoint(CHANNEL)
    s = await sockets.subscriber(f"p@{endpoint}", **secure("s"))
    if wrong == "unlisted here":
        await s.ready(endpoint)
        # Taken off the list while connected: heard no more, within two seconds and the next look.
        take_off(tmp_path / "s.toml", "p")
    await until(lambda: s.failure(endpoint) is not None, 60)
    failure = s.failure(endpoint)
    assert failure is not None
    assert failure.reason is FailureReason.SECURITY_MISMATCH
    assert not s.is_ready(endpoint)
    assert "allow-list" in failure.detail


def take_off(listing: Path, name: str) -> None:
    lines = listing.read_text().splitlines()
    listing.write_text("\n".join(line for line in lines if not line.startswith(f"{name} ")))
