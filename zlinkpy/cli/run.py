"""``zlink run``: a host as a process that supervisors can start, watch and stop.

The host starts before anything is printed: one line (or one JSON document) on standard output says that it serves,
under which routing ids and endpoints, so whoever started it can wait for that line instead of polling a port.

A store that does not answer at the start is an error here, although a host as such starts without it (LO-104):
somebody who types a command wants to hear of a wrong URL. A supervisor that restarts nodes during an outage of the
store gives ``--start-without-store``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click
import trio

from zlinkpy.cli.failures import ForcedStop, ReportingCommand
from zlinkpy.cli.logs import logging_to_stderr
from zlinkpy.cli.options import json_option, split_by_mesh, split_pairs
from zlinkpy.cli.output import Output, Wait
from zlinkpy.cli.stopping import StopSignals, cancel_when
from zlinkpy.cli.target import load_host
from zlinkpy.errors import InternalFailureError
from zlinkpy.fanout import PublisherStatus
from zlinkpy.location.open import store_label
from zlinkpy.runtime import ChannelStatus, Host, Runtime, Settings, TerminationOutcome
from zlinkpy.wire import RuntimeState

_SHOWN_LABELS = 3


@click.command("run", cls=ReportingCommand, short_help="Run a host as a node.")
@click.argument("target", metavar="MODULE:HOST")
@click.option(
    "--listen", "listens", multiple=True, metavar="[MESH=]tcp://HOST:PORT", help="Where to listen; port 0: any."
)
@click.option("--advertise-host", "advertised", multiple=True, metavar="[MESH=]HOST", help="What others connect to.")
@click.option(
    "--peer", "peers", multiple=True, metavar="[MESH=][NAME@]tcp://HOST:PORT", help="A node to connect to; repeat it."
)
@click.option("--store", metavar="URL", help="Location Store, instead of what code, file and environment say.")
@click.option("--config", metavar="FILE", help="Settings file (TOML).")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any key of docs/settings.md.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning (the default), error or critical.")
@click.option("--start-without-store", is_flag=True, help="Start, blocked, when the store does not answer.")
@click.option("--stop-at-eof", is_flag=True, help="Stop in order when standard input ends: when the starter is gone.")
@json_option
def run(
    target: str,
    listens: tuple[str, ...],
    advertised: tuple[str, ...],
    peers: tuple[str, ...],
    store: str | None,
    config: str | None,
    assignments: tuple[str, ...],
    log_level: str | None,
    start_without_store: bool,
    stop_at_eof: bool,
    as_json: bool,
) -> None:
    """Run the Host that MODULE:HOST names until Ctrl-C or SIGTERM.

    MODULE is imported with the working directory on the path: zlink run chat.server:host. Both signals stop the host
    in order: no new calls, accepted work finishes, peers are told, the store is cleaned. A second Ctrl-C ends the
    process at once.
    """
    output = Output(as_json=as_json)
    overrides: dict[str, Any] = dict(split_pairs(assignments, "--set"))
    host = load_host(target)
    for mesh, values in split_by_mesh(listens, host.meshes, "--listen").items():
        overrides[f"mesh.{mesh}.listen"] = values[-1]
    for mesh, values in split_by_mesh(advertised, host.meshes, "--advertise-host").items():
        overrides[f"mesh.{mesh}.advertise_host"] = values[-1]
    for mesh, values in split_by_mesh(peers, host.meshes, "--peer").items():
        overrides[f"mesh.{mesh}.peers"] = values
    if store is not None:
        overrides["location_store"] = store
    if log_level is not None:
        overrides["log.level"] = log_level
    settings = Settings.load(
        config, overrides=overrides, meshes=host.meshes, client_servers=host.client_servers, fanouts=host.fanouts
    )
    level = settings.log.level.value if settings.log.level is not None else 30
    with logging_to_stderr(level, as_json=as_json):
        trio.run(_serve, host, settings, output, start_without_store, stop_at_eof)


async def _serve(host: Host, settings: Settings, output: Output, start_without_store: bool, stop_at_eof: bool) -> None:
    label = _store_label(settings.location_store or host.location_store)
    with StopSignals() as stop:
        async with trio.open_nursery() as nursery:
            starting = trio.CancelScope()
            served = False

            async def give_up_starting() -> None:
                await stop.asked.wait()
                if not served:
                    starting.cancel()

            nursery.start_soon(give_up_starting)
            if stop_at_eof:
                nursery.start_soon(_stop_at_eof, stop.asked)
            wait = Wait(nursery, lambda: "starting" + (f", store {label}" if label else ""))
            with starting:
                async with host.run(settings=settings, require_store=not start_without_store) as rt:
                    served = True
                    await wait.end()
                    output.data(_serving(rt, host, label), lambda: _serving_lines(rt, host, label))
                    await _until_stopped(rt, stop.asked)
                    await _stop(rt, output)
            await wait.end()
            if not served:
                output.data({"event": "stopped", "outcome": "stopped", "left": []}, lambda: ["stopped before serving"])
            nursery.cancel_scope.cancel()


def _store_label(store: object) -> str | None:
    """The store's address without credentials; opening does no I/O."""
    if isinstance(store, str):
        return store_label(store)
    return None if store is None else type(store).__name__


def _serving(rt: Runtime, host: Host, label: str | None) -> dict[str, object]:
    nodes = [{"mesh": mesh, "rid": rt.node_rid(mesh), "endpoint": rt.endpoint(mesh)} for mesh in host.meshes]
    channels = [
        {"channel": status.channel_name, "rid": status.server_rid, "endpoint": status.endpoint}
        for status in _served(rt, host)
    ]
    return {
        "event": "serving",
        "pid": os.getpid(),
        "store": label,
        "nodes": nodes,
        "client_servers": channels,
        "publishers": [
            {"channel": each.channel_name, "rid": each.rid, "endpoint": each.endpoint} for each in _published(rt, host)
        ],
    }


def _serving_lines(rt: Runtime, host: Host, label: str | None) -> list[str]:
    tail = f", store {label}" if label else ""
    lines = [f"serving: mesh {mesh}, node {rt.node_rid(mesh)}, {rt.endpoint(mesh)}{tail}" for mesh in host.meshes]
    return (
        lines
        + [
            f"serving: ClientServer channel {status.channel_name}, server {status.server_rid}, {status.endpoint}{tail}"
            for status in _served(rt, host)
        ]
        + [
            f"serving: fanout channel {status.channel_name}, publisher {status.rid}, {status.endpoint}{tail}"
            for status in _published(rt, host)
        ]
    )


def _published(rt: Runtime, host: Host) -> list[PublisherStatus]:
    """The fanout channels this host publishes."""
    statuses = [rt.fanout_status(channel).publisher for channel in host.fanouts]
    return [status for status in statuses if status is not None]


def _served(rt: Runtime, host: Host) -> list[ChannelStatus]:
    """The ClientServer channels this host serves."""
    statuses = [rt.channel_status(channel) for channel in host.client_servers]
    return [status for status in statuses if status.server_rid is not None]


async def _until_stopped(rt: Runtime, asked: trio.Event) -> None:
    """Return when a stop is asked for; raise when the host cannot go on."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_when, asked, nursery.cancel_scope)
        async for observed in rt.observe():
            if observed.status.state is RuntimeState.ERROR:
                raise InternalFailureError("the host cannot go on: its state is error; the log says why")


async def _stop(rt: Runtime, output: Output) -> None:
    """Shut down in order and say how it ended."""
    async with output.waiting(lambda: _waits_for(rt.unfinished())):
        result = await rt.shutdown()
    document = {"event": "stopped", "outcome": result.outcome, "reason": result.reason, "left": list(result.left)}
    if result.outcome is TerminationOutcome.STOPPED:
        output.data(document, lambda: ["stopped"])
        return
    if output.as_json:
        output.data(document, list)
    raise ForcedStop(f"{result.reason.value.replace('_', ' ')}; {_left(result.left)}")


def _waits_for(labels: tuple[str, ...]) -> str:
    return f"shutting down, waiting for {_named(labels)}" if labels else "shutting down"


def _left(labels: tuple[str, ...]) -> str:
    return f"cut off: {_named(labels)}" if labels else "nothing was cut off"


def _named(labels: tuple[str, ...]) -> str:
    """The first few different labels, with their numbers."""
    counts = {label: labels.count(label) for label in dict.fromkeys(labels)}
    shown = [f"{label} x{count}" if count > 1 else label for label, count in counts.items()]
    more = f" and {len(shown) - _SHOWN_LABELS} more" if len(shown) > _SHOWN_LABELS else ""
    return ", ".join(shown[:_SHOWN_LABELS]) + more


async def _stop_at_eof(asked: trio.Event) -> None:
    descriptor = os.dup(sys.stdin.fileno())
    async with trio.lowlevel.FdStream(descriptor) as stream:
        while await stream.receive_some(4096):
            pass
    asked.set()
