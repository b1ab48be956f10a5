"""``zlink store``: the embedded store in the foreground, for development on one machine."""

from __future__ import annotations

import click
import trio

from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.options import json_option
from zlinkpy.cli.output import Output
from zlinkpy.cli.stopping import StopSignals, cancel_when
from zlinkpy.location.embedded import serve_embedded


@click.command("store", cls=ReportingCommand, short_help="Run the embedded store in the foreground.")
@click.argument("path", type=click.Path(file_okay=False))
@json_option
def store(path: str, as_json: bool) -> None:
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
