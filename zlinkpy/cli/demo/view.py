"""What the demo shows: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable

import trio
from attrs import frozen
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from zlinkpy.cli.output import Output, plain_table

_STYLES = {"ready": "green", "killed": "red", "starting": "yellow", "not ready": "yellow"}
_EVENTS_SHOWN = 6
_RID_SHOWN = 12


@frozen(kw_only=True)
class NodeRow:
    """One node at one instant; times in seconds."""

    name: str
    rid: str | None
    state: str
    per_second: float
    p50: float | None
    p99: float | None
    events: int
    """Fanout events heard of it so far."""


@frozen(kw_only=True)
class Picture:
    """Everything that is shown at one instant."""

    elapsed: float
    rows: tuple[NodeRow, ...]
    ready_peers: int
    answered: int
    cut_off: int
    lost: int


def milliseconds(seconds: float | None) -> str:
    """``1.3 ms``, or a dash."""
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"


class PlainView:
    """One line a second and one per event."""

    refresh_seconds = 1.0

    def __init__(self, output: Output) -> None:
        self._output = output

    def event(self, text: str, elapsed: float) -> None:
        """Something happened."""
        document = {"event": "step", "elapsed": round(elapsed, 1), "text": text}
        self._output.data(document, lambda: [f"{elapsed:5.1f} s  {text}"])

    def show(self, picture: Picture) -> None:
        """Print where things stand."""
        self._output.data(_document(picture), lambda: [_line(picture)])

    def close(self) -> None:
        """Nothing to take away."""


class LiveView:
    """A table that is drawn again and again in place; its last state stays."""

    refresh_seconds = 0.2

    def __init__(self) -> None:
        self._events: list[str] = []
        # Drawn by the demo's own task: rich's refreshing would be a thread.
        self._live = Live(console=Console(file=sys.stdout), auto_refresh=False)
        self._live.start()

    def event(self, text: str, elapsed: float) -> None:
        """Something happened."""
        self._events.append(f"{elapsed:5.1f} s  {text}")

    def show(self, picture: Picture) -> None:
        """Draw where things stand."""
        table = plain_table("NODE", "ROUTING ID", "STATE", "REQUESTS/S>", "P50>", "P99>", "EVENTS>")
        for row in picture.rows:
            state = Text(row.state, style=_STYLES.get(row.state, ""))
            rid = f"…{row.rid[-_RID_SHOWN:]}" if row.rid else "-"  # the table fits 80 columns
            table.add_row(
                row.name,
                rid,
                state,
                f"{row.per_second:.0f}",
                milliseconds(row.p50),
                milliseconds(row.p99),
                str(row.events),
            )
        totals = (
            f"{picture.ready_peers} peers ready, {picture.answered} answered, {picture.cut_off} cut off, "
            f"{picture.lost} open or lost"
        )
        events = [Text(event, style="dim") for event in self._events[-_EVENTS_SHOWN:]]
        self._live.update(Group(table, Text(totals), *events), refresh=True)

    def close(self) -> None:
        """Leave the last table and give the cursor back."""
        self._live.stop()


def _line(picture: Picture) -> str:
    nodes = ", ".join(f"{row.name} {row.state} {row.per_second:.0f}/s" for row in picture.rows)
    p99 = max((row.p99 for row in picture.rows if row.p99 is not None), default=None)
    return (
        f"{picture.elapsed:5.1f} s  {nodes}; {picture.ready_peers} peers ready, {picture.answered} answered, "
        f"p99 {milliseconds(p99)}, {sum(row.events for row in picture.rows)} events"
    )


def _document(picture: Picture) -> dict[str, object]:
    return {
        "event": "status",
        "elapsed": round(picture.elapsed, 1),
        "ready_peers": picture.ready_peers,
        "answered": picture.answered,
        "cut_off": picture.cut_off,
        "nodes": [
            {
                "name": row.name,
                "rid": row.rid,
                "state": row.state,
                "requests_per_second": round(row.per_second, 1),
                "p50_ms": _rounded(row.p50),
                "p99_ms": _rounded(row.p99),
                "events": row.events,
            }
            for row in picture.rows
        ],
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


View = PlainView | LiveView


async def keep_showing(view: View, take: Callable[[], Picture]) -> None:
    """Show a fresh picture again and again until cancelled."""
    while True:
        view.show(take())
        await trio.sleep(view.refresh_seconds)
