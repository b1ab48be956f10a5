"""``zlink store``: the embedded store in the foreground, and the rows that dead processes left in any store."""

from __future__ import annotations

from typing import Any

import click
import trio

from zlinkpy.cli.exit_codes import EPILOG
from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.options import json_option, opened_store, required_store, store_option
from zlinkpy.cli.output import Output
from zlinkpy.cli.stopping import StopSignals, cancel_when, run_until_done
from zlinkpy.location.descriptor_kind import Descriptor
from zlinkpy.location.directory import Listed
from zlinkpy.location.embedded import serve_embedded
from zlinkpy.location.maintenance import Cleaned, clean_store
from zlinkpy.location.open import store_label


class _StoreGroup(click.Group):
    """``zlink store PATH`` is short for ``zlink store run PATH``; a directory called like a command is ./command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group("store", cls=_StoreGroup, epilog=EPILOG, short_help="Run the embedded store, or clean a store.")
def store() -> None:
    """The Location Store: `zlink store PATH` keeps the embedded one in directory PATH running in the foreground;
    `zlink store clean` removes the rows of processes that will not come back."""


@store.command("clean", cls=ReportingCommand, short_help="Remove the rows of dead processes.")
@store_option
@click.option("--mesh", metavar="NAME", help="Only the nodes of this mesh.")
@click.option("--channel", metavar="NAME", help="Only the servers and publishers of this channel.")
@json_option
def clean(store: str | None, mesh: str | None, channel: str | None, as_json: bool) -> None:
    """Delete what processes without a valid lease left in the Location Store: nodes, ClientServer servers, publishers.

    Such rows are hidden from everybody and harm nothing. Each is looked at again before it goes: a process that came
    back in the meantime keeps its rows.
    """
    url, output = required_store(store), Output(as_json=as_json)
    cleaned = run_until_done(lambda: _clean(url, mesh, channel, output))
    output.data(
        {
            "removed": [_document(entry) for entry in cleaned.removed],
            "kept": [_document(entry) for entry in cleaned.kept],
            "unreadable": cleaned.unreadable,
        },
        lambda: [
            *(f"removed {_line(entry)}" for entry in cleaned.removed),
            *(f"kept {_line(entry)}: it came back" for entry in cleaned.kept),
            f"{len(cleaned.removed)} removed, {len(cleaned.kept)} kept, {cleaned.unreadable} unreadable",
        ],
    )


def _document(entry: Listed[Descriptor]) -> dict[str, Any]:
    kind = entry.descriptor.kind
    return {"kind": kind.name, kind.scope_name: entry.descriptor.scope, "rid": entry.rid}


def _line(entry: Listed[Descriptor]) -> str:
    return f"{entry.descriptor.kind.name} {entry.descriptor.scope} {entry.rid}"


async def _clean(url: str, mesh: str | None, channel: str | None, output: Output) -> Cleaned:
    async with opened_store(url) as opened, output.waiting(lambda: f"cleaning the store {store_label(url)}"):
        return await clean_store(opened, mesh=mesh, channel=channel)


@store.command("run", cls=ReportingCommand, short_help="Run the embedded store in the foreground.")
@click.argument("path", type=click.Path(file_okay=False))
@json_option
def run(path: str, as_json: bool) -> None:
    """Keep the embedded Location Store in directory PATH running until Ctrl-C or SIGTERM.

    Processes of this machine use it as valkey+embedded://PATH. They can do so without this command, too: the first
    one starts the store and it stops after the last. This command keeps it while none of them runs.
    """
    trio.run(_keep, path, Output(as_json=as_json))


async def _keep(path: str, output: Output) -> None:
    with StopSignals() as stop:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when, stop.asked, nursery.cancel_scope)
            async with output.waiting(lambda: f"starting the store in {path}"):
                url = await nursery.start(serve_embedded, path)
            output.data({"event": "serving", "store": url}, lambda: [f"serving: store {url}"])
    output.data({"event": "stopped"}, lambda: ["stopped"])
