"""``zlink peers``: how the connections of one running node stand, as the node itself sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import click
import trio
from rich.table import Table

from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.joining import Joined, Joining, joined, joining_of, joining_options
from zlinkpy.cli.output import Output, plain_table
from zlinkpy.cli.stopping import run_until_done
from zlinkpy.errors import NotFoundError
from zlinkpy.mesh import ConnectionReport, NodeConnections

# A node of the command line is a guest: it is in the answer of whoever is asked, and of no interest.
_GUEST = "zlink-cli-"
_SETTLE_SECONDS = 0.5


@click.command("peers", cls=ReportingCommand, short_help="Show the connections of one running node.")
@click.argument("rid", metavar="[NODE]", required=False)
@joining_options
def peers(rid: str | None, as_json: bool, **arguments: Any) -> None:
    """Ask the node NODE (a routing id, see zlink nodes) for its connections and print them.

    Every mesh and channel the node takes part in is shown: the other side, how far the connection got, the last failure
    and how long ago it was. NODE can be left out where only one node can be meant: with one --peer, or in a mesh of
    one.

    \b
    zlink peers play-7f2e… --store redis://localhost
    zlink peers --peer tcp://10.0.0.5:7001 --mesh play
    """
    joining, output = joining_of(**arguments), Output(as_json=as_json)
    node, answer = run_until_done(lambda: _ask(joining, output, rid))
    shown = [report for report in answer.connections if not (report.peer or "").startswith(_GUEST)]
    if as_json:
        document = {"node": node, "state": answer.state, "omitted": answer.omitted}
        output.data({**document, "connections": [_document(report) for report in shown]}, list)
        return
    output.table([], lambda: _table(shown))
    output.note(f"node {node} is {answer.state}" + (f"; {answer.omitted} more not shown" if answer.omitted else ""))


async def _ask(joining: Joining, output: Output, rid: str | None) -> tuple[str, NodeConnections]:
    async with joined(joining, output) as node:
        asked = await node.ready_node(rid if rid is not None else await _only_node(node, joining))
        node.now(f"waiting for the answer of node {asked}")
        return asked, await node.rt.connections_of(node.mesh, asked, timeout=node.seconds_left)


async def _only_node(node: Joined, joining: Joining) -> str | None:
    """The one node that can be meant, None for "whoever answers at the one peer". Raises NotFoundError."""
    if len(joining.peers) == 1:
        return None
    await node.ready_node(None)
    # Whoever else is there becomes known within the same list; its connection takes a moment longer.
    with trio.move_on_after(_SETTLE_SECONDS):
        await trio.sleep_until(node.deadline)
    known = sorted(
        peer.node_rid
        for peer in node.rt.mesh_snapshot(node.mesh).peers
        if peer.node_rid is not None and not peer.node_rid.startswith(_GUEST)
    )
    if len(known) != 1:
        raise NotFoundError(f"mesh {node.mesh} has {len(known)} nodes; name one: {', '.join(known[:5])}")
    return known[0]


def _document(report: Any) -> dict[str, Any]:
    return attrs.asdict(report)


def _table(reports: Iterable[ConnectionReport]) -> Table:
    table = plain_table("KIND", "NAME", "PEER", "PHASE", "STATE", "ENDPOINT", "HEARD>", "LAST FAILURE")
    for report in reports:
        failure = "-"
        if report.last_failure is not None:
            failure = f"{report.last_failure}, {_seconds(report.failed_ago)} ago: {report.failure_detail}"
        table.add_row(
            report.kind,
            report.name,
            report.peer or "-",
            report.phase + (" (paused)" if report.paused else ""),
            report.state or "-",
            report.endpoint or "-",
            _seconds(report.heard_ago),
            failure,
        )
    return table


def _seconds(age: float | None) -> str:
    return "-" if age is None else f"{age:.1f} s"
