"""``zlink request`` and ``zlink send``: one call from the command line, by a node that lives as long as the call.

The caller joins the mesh like any other node, through the store or by dialling a peer, so what works here works for
an application, and what does not work fails with the same error. JSON is translated to msgpack and back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click
import msgpack
import trio
from attrs import frozen

from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.joining import Joined, Joining, joined, joining_of, joining_options
from zlinkpy.cli.options import split_pairs
from zlinkpy.cli.output import Output, dump_json
from zlinkpy.cli.stopping import run_until_done
from zlinkpy.errors import ProtocolError, UnavailableError
from zlinkpy.messages import CONTENT_TYPE
from zlinkpy.runtime import RawMessage


@frozen(kw_only=True)
class Call:
    """What to call and how to get there."""

    channel: str | None
    node: str | None
    message: RawMessage
    joining: Joining
    metadata: Mapping[str, str]

    @property
    def target(self) -> str:
        """What is called, for people."""
        return f"channel {self.channel}" if self.channel is not None else f"node {self.node}"


def _call_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = joining_options(function)
    function = click.option("--metadata", "pairs", multiple=True, metavar="KEY=VALUE", help="Attach it; repeat it.")(
        function
    )
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
    """
    call, output = _call_of(**arguments)
    reply = run_until_done(lambda: _on_mesh(call, output, _request))
    document = _decoded(reply)
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
    run_until_done(lambda: _on_mesh(call, output, _send))
    output.data({"sent": True, "target": call.target}, lambda: [f"sent to {call.target}"])


def _call_of(
    *, words: tuple[str, ...], node: str | None, pairs: tuple[str, ...], as_json: bool, **arguments: Any
) -> tuple[Call, Output]:
    joining = joining_of(**arguments)
    wanted = "PACKET [JSON]" if node is not None else "CHANNEL PACKET [JSON]"
    fewest = 1 if node is not None else 2
    if not fewest <= len(words) <= fewest + 1:
        with_node = "with --node " if node is not None else ""
        raise click.UsageError(f"{with_node}expected {wanted}, not {len(words)} arguments")
    call = Call(
        channel=None if node is not None else words[0],
        node=node,
        message=RawMessage(words[fewest - 1], _encoded(words[fewest] if len(words) > fewest else "{}")),
        joining=joining,
        metadata=split_pairs(pairs, "--metadata"),
    )
    return call, Output(as_json=as_json)


def _encoded(text: str) -> bytes:
    """msgpack of a JSON object."""
    if text == "-":
        text = sys.stdin.read()
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise click.BadParameter(
            f"not JSON: {error.msg} at line {error.lineno} column {error.colno}", param_hint="JSON"
        ) from None
    if not isinstance(fields, dict):
        raise click.BadParameter(f"a message is an object of fields, not {dump_json(fields)}", param_hint="JSON")
    try:
        packed: bytes = msgpack.packb(fields)
    except (ValueError, OverflowError, TypeError) as error:
        raise click.BadParameter(f"cannot be sent: {error}", param_hint="JSON") from None
    return packed


def _decoded(reply: RawMessage | None) -> Any:
    if reply is None:
        return None
    if reply.content_type != CONTENT_TYPE:
        return {"content_type": reply.content_type, "payload": reply.payload}
    try:
        return msgpack.unpackb(reply.payload, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"the reply is not msgpack: {error}", field="reply.payload") from None


async def _on_mesh(
    call: Call, output: Output, act: Callable[[Joined, Call], Awaitable[RawMessage | None]]
) -> RawMessage | None:
    """Join the mesh, wait for the target, act; all within the call's timeout."""
    async with joined(call.joining, output, channel=call.channel) as node:
        if call.channel is not None:
            await node.ready_channel(call.channel)
        else:
            await node.ready_node(call.node)
        node.now(f"waiting for the answer of {call.target}")
        return await act(node, call)


async def _request(node: Joined, call: Call) -> RawMessage | None:
    reply: RawMessage | None
    seconds = node.seconds_left
    if call.channel is not None:
        reply = await node.rt.request_to_channel(call.channel, call.message, timeout=seconds, metadata=call.metadata)
    else:
        assert call.node is not None
        reply = await node.rt.request_to_node(
            node.mesh, call.node, call.message, timeout=seconds, metadata=call.metadata
        )
    return reply


async def _send(node: Joined, call: Call) -> None:
    with trio.move_on_after(node.seconds_left) as scope:
        if call.channel is not None:
            await node.rt.send_to_channel(call.channel, call.message, metadata=call.metadata)
        else:
            assert call.node is not None
            await node.rt.send_to_node(node.mesh, call.node, call.message, metadata=call.metadata)
    if scope.cancelled_caught:
        raise UnavailableError(f"{call.target} took no message within {call.joining.timeout:g} s")
