"""``zlink request`` and ``zlink send``: one call from the command line, by a node that lives as long as the call.

The caller joins the mesh like any other node, through the store or by dialling a peer, so what works here works for
an application, and what does not work fails with the same error. JSON is translated to msgpack and back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click
import trio
from attrs import frozen

from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.joining import Joining, joined, joining_of, joining_options, using
from zlinkpy.cli.options import split_pairs
from zlinkpy.cli.output import Output, dump_json
from zlinkpy.cli.payloads import decoded, encoded
from zlinkpy.cli.stopping import run_until_done
from zlinkpy.errors import UnavailableError
from zlinkpy.runtime import RawMessage, Runtime


@frozen(kw_only=True)
class Call:
    """What to call and how to get there."""

    channel: str | None
    node: str | None
    message: RawMessage
    joining: Joining
    metadata: Mapping[str, str]
    client_server: bool
    """The channel is a ClientServer channel, not one of a mesh."""

    @property
    def target(self) -> str:
        """What is called, for people."""
        return f"channel {self.channel}" if self.channel is not None else f"node {self.node}"


def _call_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = joining_options(function)
    function = click.option("--metadata", "pairs", multiple=True, metavar="KEY=VALUE", help="Attach it; repeat it.")(
        function
    )
    function = click.option(
        "--client-server",
        is_flag=True,
        help="CHANNEL is a ClientServer channel; its servers come from the store, or are named with --peer.",
    )(function)
    function = click.option("--node", metavar="RID", help="Call exactly this node; leave CHANNEL out.")(function)
    return click.argument("words", metavar="CHANNEL PACKET [JSON]", nargs=-1, required=True)(function)


@click.command("request", cls=ReportingCommand, short_help="Send one request and print the reply.")
@_call_options
def request(**arguments: Any) -> None:
    """Ask one server of CHANNEL and print its reply as JSON.

    PACKET is the packet name (the message class's name, unless declared otherwise). JSON is its fields, {} by default;
    - reads it from standard input. A bytes field cannot be given in JSON; bytes in a reply are printed as base64.

    \b
    zlink request echo Echo '{"text": "hello"}' --store redis://localhost
    zlink request --node play-1 --peer tcp://10.0.0.5:7001 --mesh play Status
    zlink request --client-server orders Place '{"item": "lamp"}' --peer tcp://10.0.0.5:5501
    """
    call, output = _call_of(**arguments)
    reply = run_until_done(lambda: _carry_out(call, output, _request))
    document = decoded(reply)
    if output.as_json:
        output.data({"packet": reply.packet_name if reply is not None else None, "reply": document}, list)
    else:
        click.echo(dump_json(document))


@click.command("send", cls=ReportingCommand, short_help="Send one one-way message.")
@_call_options
def send(**arguments: Any) -> None:
    """Hand a one-way message to one server of CHANNEL, or with --node to exactly one node.

    Arguments are those of zlink request. Exit code 0 says that the message was handed to a ready connection; whether
    it was handled only a request can tell.
    """
    call, output = _call_of(**arguments)
    run_until_done(lambda: _carry_out(call, output, _send))
    output.data({"sent": True, "target": call.target}, lambda: [f"sent to {call.target}"])


def _call_of(
    *,
    words: tuple[str, ...],
    node: str | None,
    pairs: tuple[str, ...],
    client_server: bool,
    as_json: bool,
    **arguments: Any,
) -> tuple[Call, Output]:
    if client_server and (node is not None or arguments["mesh"] is not None):
        raise click.UsageError("--client-server excludes --node and --mesh: such a channel belongs to no mesh")
    joining = joining_of(**arguments, needs_mesh=not client_server)
    wanted = "PACKET [JSON]" if node is not None else "CHANNEL PACKET [JSON]"
    fewest = 1 if node is not None else 2
    if not fewest <= len(words) <= fewest + 1:
        with_node = "with --node " if node is not None else ""
        raise click.UsageError(f"{with_node}expected {wanted}, not {len(words)} arguments")
    call = Call(
        channel=None if node is not None else words[0],
        node=node,
        message=RawMessage(words[fewest - 1], encoded(words[fewest] if len(words) > fewest else "{}")),
        joining=joining,
        metadata=split_pairs(pairs, "--metadata"),
        client_server=client_server,
    )
    return call, Output(as_json=as_json)


async def _carry_out(
    call: Call, output: Output, act: Callable[[Runtime, str, Call, float], Awaitable[RawMessage | None]]
) -> RawMessage | None:
    """Get connected, wait for the target, act; all within the call's timeout."""
    if call.client_server:
        assert call.channel is not None
        async with using(call.joining, output, call.channel) as (rt, deadline):
            return await act(rt, "", call, max(0.001, deadline - trio.current_time()))
    async with joined(call.joining, output, channel=call.channel) as node:
        if call.channel is not None:
            await node.ready_channel(call.channel)
        else:
            await node.ready_node(call.node)
        node.now(f"waiting for the answer of {call.target}")
        return await act(node.rt, node.mesh, call, node.seconds_left)


async def _request(rt: Runtime, mesh: str, call: Call, seconds: float) -> RawMessage | None:
    reply: RawMessage | None
    if call.channel is not None:
        reply = await rt.request_to_channel(call.channel, call.message, timeout=seconds, metadata=call.metadata)
    else:
        assert call.node is not None
        reply = await rt.request_to_node(mesh, call.node, call.message, timeout=seconds, metadata=call.metadata)
    return reply


async def _send(rt: Runtime, mesh: str, call: Call, seconds: float) -> None:
    with trio.move_on_after(seconds) as scope:
        if call.channel is not None:
            await rt.send_to_channel(call.channel, call.message, metadata=call.metadata)
        else:
            assert call.node is not None
            await rt.send_to_node(mesh, call.node, call.message, metadata=call.metadata)
    if scope.cancelled_caught:
        raise UnavailableError(f"{call.target} took no message within {call.joining.timeout:g} s")
