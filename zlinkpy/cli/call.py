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
from zlinkpy.cli.options import STORE_VARIABLE, json_option, opened_store, split_pairs, store_option
from zlinkpy.cli.output import Output, dump_json
from zlinkpy.cli.stopping import run_until_done
from zlinkpy.errors import NotFoundError, ProtocolError, UnavailableError
from zlinkpy.location.directory import list_nodes
from zlinkpy.location.open import store_label
from zlinkpy.mesh import PeerPhase
from zlinkpy.messages import CONTENT_TYPE
from zlinkpy.runtime import Host, RawMessage, Runtime

DEFAULT_TIMEOUT = 10.0
_PREFIX = "zlink-cli"
_SHUTDOWN_SECONDS = 2.0


@frozen(kw_only=True)
class Call:
    """What to call and how to get there."""

    channel: str | None
    node: str | None
    message: RawMessage
    mesh: str | None
    store: str | None
    peers: tuple[str, ...]
    listen: str
    advertise_host: str | None
    timeout: float
    metadata: Mapping[str, str]

    @property
    def target(self) -> str:
        """What is called, for people."""
        return f"channel {self.channel}" if self.channel is not None else f"node {self.node}"


def _call_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.argument("words", metavar="CHANNEL PACKET [JSON]", nargs=-1, required=True),
        click.option("--mesh", metavar="NAME", help="The mesh; not needed when the store knows exactly one."),
        store_option,
        click.option("--peer", "peers", multiple=True, metavar="tcp://HOST:PORT", help="Dial this node; repeat it."),
        click.option("--node", metavar="RID", help="Call exactly this node; leave CHANNEL out."),
        click.option(
            "--timeout",
            type=click.FloatRange(0.001, 86_400),
            default=DEFAULT_TIMEOUT,
            show_default=True,
            metavar="SECONDS",
            help="For everything: getting connected, and the answer.",
        ),
        click.option("--metadata", "pairs", multiple=True, metavar="KEY=VALUE", help="Attach metadata; repeat it."),
        click.option(
            "--listen",
            default="tcp://127.0.0.1:0",
            show_default=True,
            metavar="tcp://HOST:PORT",
            help="Where this short-lived node listens.",
        ),
        click.option(
            "--advertise-host", metavar="HOST", help="What others connect to; needed when nodes run on other machines."
        ),
        json_option,
    ]
    for option in reversed(options):
        function = option(function)
    return function


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
    *,
    words: tuple[str, ...],
    mesh: str | None,
    store: str | None,
    peers: tuple[str, ...],
    node: str | None,
    timeout: float,
    pairs: tuple[str, ...],
    listen: str,
    advertise_host: str | None,
    as_json: bool,
) -> tuple[Call, Output]:
    if peers:
        # Naming peers is more particular than a store from the environment, and a node uses one way or the other.
        context = click.get_current_context()
        if context.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--store and --peer exclude each other: peers come from the store or by hand")
        store = None
        if mesh is None:
            raise click.UsageError("--peer needs --mesh NAME")
    elif not store:
        raise click.UsageError(f"say where the mesh is: --store URL, {STORE_VARIABLE}, or --peer tcp://HOST:PORT")
    wanted = "PACKET [JSON]" if node is not None else "CHANNEL PACKET [JSON]"
    fewest = 1 if node is not None else 2
    if not fewest <= len(words) <= fewest + 1:
        with_node = "with --node " if node is not None else ""
        raise click.UsageError(f"{with_node}expected {wanted}, not {len(words)} arguments")
    channel = None if node is not None else words[0]
    packet = words[fewest - 1]
    call = Call(
        channel=channel,
        node=node,
        message=RawMessage(packet, _encoded(words[fewest] if len(words) > fewest else "{}")),
        mesh=mesh,
        store=store,
        peers=peers,
        listen=listen,
        advertise_host=advertise_host,
        timeout=timeout,
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
    call: Call, output: Output, act: Callable[[Runtime, str, Call, float], Awaitable[RawMessage | None]]
) -> RawMessage | None:
    """Join the mesh, wait for the target, act; all within the call's timeout."""
    deadline = trio.current_time() + call.timeout
    waits_for = "joining the mesh"
    async with output.waiting(lambda: waits_for):
        mesh = call.mesh or await _only_mesh(call)
        host = Host(location_store=call.store, shutdown_deadline=_SHUTDOWN_SECONDS)
        member = host.mesh(
            mesh, listen=call.listen, advertise_host=call.advertise_host, rid_prefix=_PREFIX, peers=call.peers
        )
        if call.channel is not None:
            member.use_channel(call.channel)
        async with host.run() as rt:
            waits_for = f"waiting for {call.target} of mesh {mesh}"
            with trio.move_on_at(deadline) as waiting:
                await _wait_target(rt, mesh, call)
            if waiting.cancelled_caught:
                raise UnavailableError(_why_not_ready(rt, mesh, call), cause="RouteNotConnected")
            waits_for = f"waiting for the answer of {call.target}"
            answer = await act(rt, mesh, call, max(0.001, deadline - trio.current_time()))
            waits_for = "leaving the mesh"
        return answer


async def _only_mesh(call: Call) -> str:
    assert call.store is not None
    label = store_label(call.store)
    async with opened_store(call.store) as store:
        found = await list_nodes(store)
    meshes = sorted({entry.mesh_name for entry in found.nodes})
    if len(meshes) == 1:
        return meshes[0]
    if not meshes:
        raise NotFoundError(f"the store {label} knows no node; is it the right store, and does a node run?")
    raise NotFoundError(f"the store {label} has several meshes; choose with --mesh: {', '.join(meshes)}")


async def _wait_target(rt: Runtime, mesh: str, call: Call) -> None:
    if call.channel is not None:
        await rt.wait_ready_target(call.channel)
        return
    async for _ in rt.observe():
        if any(peer.node_rid == call.node and peer.phase is PeerPhase.READY for peer in rt.mesh_snapshot(mesh).peers):
            return


def _why_not_ready(rt: Runtime, mesh: str, call: Call) -> str:
    """One line: what is known instead of a ready target."""
    head = f"no ready target for {call.target} of mesh {mesh} within {call.timeout:g} s"
    status = rt.status.store
    if call.store is not None and status.lease != "held":
        return f"{head}: the location store {store_label(call.store)} does not answer"
    peers = rt.mesh_snapshot(mesh).peers
    if not peers:
        return f"{head}: the store shows no other node of this mesh (see zlink nodes)"
    ready = [peer for peer in peers if peer.phase is PeerPhase.READY]
    if not ready:
        shown = "; ".join(
            f"{peer.endpoint or peer.node_rid}: {peer.last_failure.detail if peer.last_failure else peer.phase.value}"
            for peer in peers[:3]
        )
        # A node with a store refuses whoever its store does not list, by saying nothing yet.
        hint = "; nodes with a Location Store admit only nodes of that store: use --store" if call.peers else ""
        return f"{head}: no connection ({shown}){hint}"
    if call.channel is not None:
        served = sorted({channel for peer in ready for channel in peer.channels})
        return f"{head}: {len(ready)} connected, serving {', '.join(served) or 'no channels'}"
    rids = ", ".join(peer.node_rid or "?" for peer in ready[:3])
    return f"{head}: connected are {rids}"


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
        raise UnavailableError(f"{call.target} took no message within {call.timeout:g} s")
