"""JSON for scripts, and progress that appears when it is wanted and not before."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
import trio

from zlinkpy.cli.output import Output, Wait, dump_json, plain_table


def test_json_is_one_line_and_takes_what_msgpack_can_carry() -> None:
    document = {
        "text": "é\n",
        1: b"\x00\xff",
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "set": {3},
        "nan": float("nan"),
        "none": None,
        "deep": [{"x": (1, 2.5, True)}],
    }
    text = dump_json(document)
    assert "\n" not in text
    assert json.loads(text) == {
        "text": "é\n",
        "1": "AP8=",
        "at": "2026-01-02T00:00:00+00:00",
        "set": [3],
        "nan": "nan",
        "none": None,
        "deep": [{"x": [1, 2.5, True]}],
    }


async def test_a_short_wait_shows_nothing(autojump_clock: trio.abc.Clock, capsys: pytest.CaptureFixture[str]) -> None:
    async with Output(as_json=False).waiting(lambda: "waiting for the store"):
        await trio.sleep(0.9)
    await trio.sleep(5)
    assert capsys.readouterr() == ("", "")


async def test_a_long_wait_says_for_what_and_for_how_long(
    autojump_clock: trio.abc.Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    what = "a"
    async with Output(as_json=True).waiting(lambda: what):
        await trio.sleep(1.5)
        what = "b"
        await trio.sleep(6)
    assert capsys.readouterr() == ("", "a (1 s)\nb (2 s)\nb (7 s)\n")


async def test_the_line_is_gone_when_the_wait_has_ended(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        wait = Wait(nursery, lambda: "x")
        await trio.sleep(3)
        await wait.end()
        assert not nursery.child_tasks
        await wait.end()


def test_columns_of_numbers_stand_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table("NAME", "COUNT>")
    table.add_row("a", "7")
    Output(as_json=False).table([], lambda: table)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["NAME  COUNT", "a         7"]
