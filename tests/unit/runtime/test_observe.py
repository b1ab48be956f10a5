"""Subscriptions to a status: what they give, and that leaving early needs nothing."""

from __future__ import annotations

import gc

import trio

from zlinkpy.runtime.status import StatusSource


async def test_a_subscription_gives_one_item_at_once_and_then_the_newest(autojump_clock: trio.abc.Clock) -> None:
    source = StatusSource()
    source.publish()
    changes = source.changes()
    assert (await anext(changes)).coalesced == 0
    for _ in range(3):
        source.publish()
    assert (await anext(changes)).coalesced == 2
    with trio.move_on_after(1) as waiting:
        await anext(changes)
    assert waiting.cancelled_caught
    source.end()
    assert (await anext(changes)).coalesced == 2
    assert [item async for item in changes] == []


async def test_leaving_a_subscription_early_leaves_nothing_to_close() -> None:
    source = StatusSource()
    async for _ in source.changes():
        break
    gc.collect()  # an unfinished generator would be complained about here
