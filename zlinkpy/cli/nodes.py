"""``zlink nodes``: what the Location Store says about the nodes of a mesh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
import trio
from rich.table import Table

from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.options import json_option, opened_store, required_store, store_option
from zlinkpy.cli.output import Output, plain_table
from zlinkpy.cli.stopping import StopSignals, cancel_when, run_until_done
from zlinkpy.location.directory import NodeEntry, NodeList, list_nodes
from zlinkpy.location.open import store_label

WATCH_SECONDS = 2.0


@click.command("nodes", cls=ReportingCommand, short_help="List the nodes in the store.")
@store_option
@click.option("--mesh", metavar="NAME", help="Only this mesh.")
@click.option("--watch", is_flag=True, help=f"List again every {WATCH_SECONDS:g} seconds until Ctrl-C.")
@json_option
def nodes(store: str | None, mesh: str | None, watch: bool, as_json: bool) -> None:
    """List every node the Location Store knows: state, endpoint, channels with weights, and the lease of its process.

    A node whose lease has lapsed belongs to a process that ended without a shutdown; nobody connects to it. What is
    listed is what nodes published, not whether this machine can reach them.
    """
    url, output = required_store(store), Output(as_json=as_json)
    if watch:
        trio.run(_watch, url, mesh, output)
    else:
        print_nodes(run_until_done(lambda: _list(url, mesh, output)), output)


async def _list(url: str, mesh: str | None, output: Output) -> NodeList:
    async with opened_store(url) as store, output.waiting(lambda: f"asking the store {store_label(url)}"):
        return await list_nodes(store, mesh)


async def _watch(url: str, mesh: str | None, output: Output) -> None:
    async with opened_store(url) as store:
        with StopSignals() as stop:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_when, stop.asked, nursery.cancel_scope)
                while True:
                    print_nodes(await list_nodes(store, mesh), output)
                    await trio.sleep(WATCH_SECONDS)
                    if not output.as_json:
                        click.echo()


def print_nodes(found: NodeList, output: Output) -> None:
    """Print the list; unreadable rows go to standard error so that they are not lost in a table."""
    output.table([_document(entry) for entry in found.nodes], lambda: _table(found.nodes))
    for row in found.unreadable:
        output.note(f"unreadable row {row.key}: {row.problem}")
    if not found.nodes and not output.as_json:
        output.note("no nodes")


def _document(entry: NodeEntry) -> dict[str, Any]:
    return {
        "mesh": entry.mesh_name,
        "rid": entry.rid,
        "endpoint": entry.endpoint,
        "state": entry.state.name.lower(),
        "channels": dict(entry.channel_weights),
        "application_version": entry.application_version,
        "owner": entry.owner_id,
        "lease": "live" if entry.is_live else "lapsed",
        "lease_seconds": None if entry.lease_seconds is None else round(entry.lease_seconds, 3),
    }


def _table(entries: Iterable[NodeEntry]) -> Table:
    table = plain_table("MESH", "NODE", "STATE", "ENDPOINT", "CHANNELS", "LEASE")
    for entry in entries:
        channels = " ".join(f"{name}={weight}" for name, weight in sorted(entry.channel_weights.items())) or "-"
        lease = "lapsed" if entry.lease_seconds is None else f"{entry.lease_seconds:.0f} s"
        table.add_row(entry.mesh_name, entry.rid, entry.state.name.lower(), entry.endpoint, channels, lease)
    return table
