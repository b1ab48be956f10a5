"""How `zlink` prints: tables and lines for people, JSON for scripts, progress for whoever waits.

Data goes to standard output and nothing else does, so that ``zlink nodes --json | jq`` works while progress and
errors are shown on standard error. JSON is one document per line; a command that prints one answer prints one line.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import click
import trio
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

PROGRESS_AFTER = 1.0
"""Seconds a wait may take before something is shown about it."""
_REPEAT_SECONDS = 5.0
_FRAME_SECONDS = 0.1


class Output:
    """Where one command prints to. `as_json` is the command's ``--json``."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def data(self, document: Any, lines: Callable[[], Iterable[str]]) -> None:
        """Print `document` as one line of JSON, or `lines` for people."""
        if self.as_json:
            click.echo(dump_json(document))
        else:
            for line in lines():
                click.echo(line)

    def table(self, documents: Sequence[Mapping[str, Any]], table: Callable[[], Table]) -> None:
        """Print a list: one line of JSON with an array, or a table."""
        if self.as_json:
            click.echo(dump_json(documents))
        else:
            console_for(sys.stdout).print(table())

    def note(self, text: str) -> None:
        """Say something about the run itself, on standard error."""
        click.echo(text, err=True)

    @asynccontextmanager
    async def waiting(self, describe: Callable[[], str]) -> AsyncIterator[None]:
        """Show what is waited for while the block runs; see `Wait`."""
        async with trio.open_nursery() as nursery:
            wait = Wait(nursery, describe)
            yield
            await wait.end()


class Wait:
    """Shows what is waited for once it takes longer than a second, until `end`.

    On a terminal it is a line with a spinner that disappears; elsewhere a plain line whenever the description
    changes, and every five seconds. It lives in the caller's nursery and ends with it.
    """

    def __init__(self, nursery: trio.Nursery, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        nursery.start_soon(self._show)

    async def end(self) -> None:
        """Take the line away; it is gone when this returns. Idempotent."""
        self._scope.cancel()
        await self._ended.wait()

    async def _show(self) -> None:
        try:
            with self._scope:
                started = trio.current_time()
                await trio.sleep(PROGRESS_AFTER)
                await (self._spin(started) if sys.stderr.isatty() else self._tell(started))
        finally:
            self._ended.set()

    async def _tell(self, started: float) -> None:
        shown, shown_at = "", started
        while True:
            text, now = self._describe(), trio.current_time()
            if text != shown or now - shown_at >= _REPEAT_SECONDS:
                click.echo(f"{text} ({now - started:.0f} s)", err=True)
                shown, shown_at = text, now
            await trio.sleep(_FRAME_SECONDS)

    async def _spin(self, started: float) -> None:
        spinner = Spinner("dots")
        # Refreshed by this task: rich's own refreshing would be a thread that outlives a cancellation by a frame.
        with Live(spinner, console=Console(stderr=True), transient=True, auto_refresh=False) as live:
            while True:
                spinner.update(text=f"{self._describe()} ({trio.current_time() - started:.0f} s)")
                live.refresh()
                await trio.sleep(_FRAME_SECONDS)


def console_for(stream: Any) -> Console:
    """A console that writes tables in full where no terminal cuts them off."""
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=stream, highlight=False, width=200, no_color=True)


def plain_table(*columns: str) -> Table:
    """The one look of tables: no frame, so that column tools can cut it. ``NAME>`` is a column of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        name, numeric, _ = column.partition(">")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    return table


def dump_json(document: Any) -> str:
    """One line of JSON. Bytes become base64 text, times ISO 8601; a map's keys become text."""
    return json.dumps(_plain(document), ensure_ascii=False, separators=(", ", ": "), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Iterable):
        return [_plain(entry) for entry in value]
    return str(value)
