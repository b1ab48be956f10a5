"""Joining a mesh from the command line: a node that lives as long as one command.

It joins like any other node, through the store or by dialling peers, so what works here works for an application, and
what does not work fails with the same error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import click
import trio
from attrs import define, field, frozen

from zlinkpy.cli.options import STORE_VARIABLE, json_option, opened_store, security_of, security_options, store_option
from zlinkpy.cli.output import Output
from zlinkpy.errors import NotFoundError, UnavailableError
from zlinkpy.link import FailureReason
from zlinkpy.location.directory import list_nodes
from zlinkpy.location.open import store_label
from zlinkpy.mesh import PeerPhase, PeerSnapshot
from zlinkpy.runtime import Host, Runtime, SecurityOptions

DEFAULT_TIMEOUT = 10.0
_PREFIX = "zlink-cli"
_SHUTDOWN_SECONDS = 2.0


@frozen(kw_only=True)
class Joining:
    """Which mesh, how to get there, and how long everything may take."""

    mesh: str | None
    store: str | None
    peers: tuple[str, ...]
    listen: str
    advertise_host: str | None
    timeout: float
    security: SecurityOptions


def joining_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that joins a mesh; they arrive as the parameters of `joining_of`."""
    options = [
        click.option("--mesh", metavar="NAME", help="The mesh; not needed when the store knows exactly one."),
        store_option,
        click.option(
            "--peer", "peers", multiple=True, metavar="[NAME@]tcp://HOST:PORT", help="Dial this node; repeat it."
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(0.001, 86_400),
            default=DEFAULT_TIMEOUT,
            show_default=True,
            metavar="SECONDS",
            help="For everything: getting connected, and the answer.",
        ),
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
        security_options,
        json_option,
    ]
    for option in reversed(options):
        function = option(function)
    return function


def joining_of(
    *,
    mesh: str | None,
    store: str | None,
    peers: tuple[str, ...],
    timeout: float,
    listen: str,
    advertise_host: str | None,
    key_file: str | None = None,
    allow_list: str | None = None,
    needs_mesh: bool = True,
) -> Joining:
    """The options as one value. Raises click.UsageError when they do not say where the mesh is."""
    if peers:
        # Naming peers is more particular than a store from the environment, and a node uses one way or the other.
        context = click.get_current_context()
        if context.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--store and --peer exclude each other: peers come from the store or by hand")
        store = None
        if mesh is None and needs_mesh:
            raise click.UsageError("--peer needs --mesh NAME")
    elif not store:
        raise click.UsageError(f"say where the mesh is: --store URL, {STORE_VARIABLE}, or --peer tcp://HOST:PORT")
    return Joining(
        mesh=mesh,
        store=store,
        peers=peers,
        listen=listen,
        advertise_host=advertise_host,
        timeout=timeout,
        security=security_of(key_file, allow_list),
    )


def _failed_for_keys(peer: PeerSnapshot) -> bool:
    return peer.last_failure is not None and peer.last_failure.reason is FailureReason.SECURITY_MISMATCH


@define(eq=False)
class Joined:
    """A command's own node while it runs."""

    rt: Runtime
    mesh: str
    deadline: float
    """On trio's clock: the end of the command's time."""
    _joining: Joining
    _wait: _Progress = field(repr=False)

    @property
    def seconds_left(self) -> float:
        """What is left of the command's time, never 0: a call needs some."""
        return max(0.001, self.deadline - trio.current_time())

    def now(self, what: str) -> None:
        """Say what is waited for from here on."""
        self._wait.text = what

    def ready_peers(self) -> list[PeerSnapshot]:
        """The nodes this one is connected with."""
        return [peer for peer in self.rt.mesh_snapshot(self.mesh).peers if peer.phase is PeerPhase.READY]

    async def ready_channel(self, channel: str) -> None:
        """Wait until `channel`, given to `joined`, has a target. Raises UnavailableError saying what is known."""
        await self._until(f"channel {channel}", channel, lambda: self.rt.wait_ready_target(channel))

    async def ready_node(self, rid: str | None) -> str:
        """Wait until the node `rid`, or with None any node, is connected; returns its RID. Raises as
        `ready_channel`."""

        async def connected() -> None:
            async for _ in self.rt.observe():
                if any(rid is None or peer.node_rid == rid for peer in self.ready_peers()):
                    return

        await self._until(f"node {rid}" if rid is not None else "a node", None, connected)
        found = rid if rid is not None else self.ready_peers()[0].node_rid
        assert found is not None
        return found

    async def _until(self, target: str, channel: str | None, ready: Callable[[], Any]) -> None:
        self.now(f"waiting for {target} of mesh {self.mesh}")
        with trio.move_on_at(self.deadline) as waiting:
            await ready()
        if waiting.cancelled_caught:
            raise UnavailableError(self._why_not_ready(target, channel), cause="RouteNotConnected")

    def _why_not_ready(self, target: str, channel: str | None) -> str:
        """One line: what is known instead of a ready target."""
        joining = self._joining
        head = f"no ready target for {target} of mesh {self.mesh} within {joining.timeout:g} s"
        if joining.store is not None and self.rt.status.store.lease != "held":
            return f"{head}: the location store {store_label(joining.store)} does not answer"
        peers = self.rt.mesh_snapshot(self.mesh).peers
        if not peers:
            return f"{head}: the store shows no other node of this mesh (see zlink nodes)"
        ready = self.ready_peers()
        if not ready:
            shown = "; ".join(map(_shown, peers[:3]))
            # A node with a store refuses whoever its store does not list, by saying nothing yet.
            hint = "; nodes with a Location Store admit only nodes of that store: use --store"
            if not joining.peers or any(_failed_for_keys(peer) for peer in peers):
                hint = ""
            return f"{head}: no connection ({shown}){hint}"
        if channel is not None:
            served = sorted({served for peer in ready for served in peer.channels})
            return f"{head}: {len(ready)} connected, serving {', '.join(served) or 'no channels'}"
        rids = ", ".join(peer.node_rid or "?" for peer in ready[:3])
        return f"{head}: connected are {rids}"


@define
class _Progress:
    text: str = "joining the mesh"


@asynccontextmanager
async def joined(joining: Joining, output: Output, *, channel: str | None = None) -> AsyncIterator[Joined]:
    """Be a node of the mesh for the time of the block, able to call `channel`; progress is shown meanwhile."""
    deadline = trio.current_time() + joining.timeout
    progress = _Progress()
    async with output.waiting(lambda: progress.text):
        mesh = joining.mesh or await _only_mesh(joining)
        host = Host(location_store=joining.store, security=joining.security, shutdown_deadline=_SHUTDOWN_SECONDS)
        member = host.mesh(
            mesh,
            listen=joining.listen,
            advertise_host=joining.advertise_host,
            rid_prefix=_PREFIX,
            peers=joining.peers,
        )
        if channel is not None:
            member.use_channel(channel)
        async with host.run() as rt:
            yield Joined(rt, mesh, deadline, joining, progress)
            progress.text = "leaving the mesh"


@asynccontextmanager
async def using(joining: Joining, output: Output, channel: str) -> AsyncIterator[tuple[Runtime, float]]:
    """Be a client of the ClientServer channel for the time of the block, with a server to call: the runtime, and the
    end of the command's time on trio's clock. Raises UnavailableError saying what is known."""
    deadline = trio.current_time() + joining.timeout
    async with output.waiting(lambda: f"waiting for a server of channel {channel}"):
        host = Host(location_store=joining.store, security=joining.security, shutdown_deadline=_SHUTDOWN_SECONDS)
        host.use_client_server(channel, servers=joining.peers)
        async with host.run() as rt:
            with trio.move_on_at(deadline) as waiting:
                await rt.wait_ready_target(channel)
            if waiting.cancelled_caught:
                servers = rt.channel_status(channel).peers
                shown = "; ".join(map(_shown, servers[:3])) or "the store shows no server of this channel"
                raise UnavailableError(
                    f"no ready server of ClientServer channel {channel} within {joining.timeout:g} s: {shown}",
                    cause="RouteNotConnected",
                )
            yield rt, deadline


def _shown(peer: PeerSnapshot) -> str:
    """One peer that is not connected, and why."""
    why = peer.last_failure.detail if peer.last_failure else peer.phase.value
    return f"{peer.endpoint or peer.node_rid}: {why}"


async def _only_mesh(joining: Joining) -> str:
    assert joining.store is not None
    label = store_label(joining.store)
    async with opened_store(joining.store) as store:
        found = await list_nodes(store)
    meshes = sorted({entry.mesh_name for entry in found.nodes})
    if len(meshes) == 1:
        return meshes[0]
    if not meshes:
        raise NotFoundError(f"the store {label} knows no node; is it the right store, and does a node run?")
    raise NotFoundError(f"the store {label} has several meshes; choose with --mesh: {', '.join(meshes)}")
