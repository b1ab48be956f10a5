"""Fanout between hosts with keys: who hears whom, and what is said when nobody does (LV-22 for fanout)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.contract.fanout.world import CHANNEL, TOPIC, Placed, World
from tests.keys import Keyring
from tests.puppet import until
from zlinkpy.link import FailureReason

Secure = Callable[..., dict[str, Any]]


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "p", "s")


@pytest.fixture
def secure(ring: Keyring) -> Secure:
    """The arguments of a host with the keys of `name`."""

    def arguments(name: str, **more: Any) -> dict[str, Any]:
        options: dict[str, Any] = {"secret_key": ring.pair(name).secret, "allow_list": str(ring.path)} | more
        return {"security": zl.SecurityOptions(**options)}

    return arguments


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in found if "no connection with publisher" in text]


@pytest.mark.parametrize("store", [False, True])
async def test_a_subscriber_with_keys_hears_a_publisher_with_keys(
    autojump_clock: object, world: World, secure: Secure, store: bool
) -> None:
    p = await world.publisher(store=store, **secure("p"))
    named = () if store else (f"p@{p.rt.publisher_endpoint(CHANNEL)}",)
    s = await world.subscriber(*named, store=store, **secure("s"))
    await s.ready(p.rt.publisher_endpoint(CHANNEL))
    await trio.sleep(1)
    await p.rt.publish(CHANNEL, TOPIC, Placed(3))
    await until(lambda: s.numbers == [3])


@pytest.mark.contract("LV-22")
async def test_a_subscriber_that_is_not_listed_is_told_so_once_until_it_was_let_in(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    p = await world.publisher(**secure("p"))
    endpoint = p.rt.publisher_endpoint(CHANNEL)
    s = await world.subscriber(f"p@{endpoint}", name="m", **secure("mallory", allow_any=True))
    await trio.sleep(20)
    assert s.failure(endpoint).reason is FailureReason.SECURITY_MISMATCH
    assert s.heard(endpoint).dials > 2
    assert len(warnings(caplog)) == 1
    assert ring.public("mallory") in warnings(caplog)[0]
    ring.allow("p", "s", "mallory")
    await s.ready(endpoint)
    ring.allow("p", "s")
    await until(lambda: not s.is_ready(endpoint))
    await trio.sleep(20)
    assert s.failure(endpoint).reason is FailureReason.SECURITY_MISMATCH
    assert len(warnings(caplog)) == 2


@pytest.mark.contract("LV-22")
async def test_a_publisher_that_only_the_store_knows_is_not_dialled_and_it_is_a_matter_of_keys(
    autojump_clock: object, world: World, ring: Keyring, secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    p = await world.publisher(store=True, **secure("mallory", allow_any=True))
    s = await world.subscriber(store=True, **secure("s"))
    await trio.sleep(20)
    endpoint = p.rt.publisher_endpoint(CHANNEL)
    assert s.failure(endpoint).reason is FailureReason.SECURITY_MISMATCH
    assert p.rt.fanout_status(CHANNEL).publisher.subscribers == 0
    assert len(warnings(caplog)) == 1
    assert "allow-list" in warnings(caplog)[0]
