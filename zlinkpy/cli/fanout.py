"""``zlink publish`` and ``zlink subscribe``: a fanout channel from the command line.

Both are ordinary hosts that live as long as the command. PUB/SUB has no memory: what is published while nobody is
connected is lost, so ``zlink publish`` waits for its subscribers first.
"""

from __future__ import annotations

from typing import Any

import click
import trio

from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.options import (
    STORE_VARIABLE,
    json_option,
    security_of,
    security_options,
    split_pairs,
    store_option,
)
from zlinkpy.cli.output import Output, dump_json
from zlinkpy.cli.payloads import decoded, encoded
from zlinkpy.cli.stopping import StopSignals, cancel_when, run_until_done
from zlinkpy.errors import UnavailableError
from zlinkpy.location.open import store_label
from zlinkpy.messages import MessageContext
from zlinkpy.runtime import Host, RawMessage, SubscribedChannel
from zlinkpy.wire import check_topic

DEFAULT_TIMEOUT = 10.0
_SHUTDOWN_SECONDS = 2.0
_LOOK_SECONDS = 0.02

# A subscriber is seen a moment before what it subscribes to has arrived, and an event between the two is lost to it.
_SETTLE_SECONDS = 0.2


def _checked_topics(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    for topic in value if isinstance(value, tuple) else (value,):
        try:
            check_topic(topic)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


@click.command("publish", cls=ReportingCommand, short_help="Publish one event on a fanout channel.")
@click.argument("channel")
@click.argument("topic", callback=_checked_topics)
@click.argument("packet")
@click.argument("payload", metavar="[JSON]", default="{}")
@store_option
@click.option(
    "--listen",
    default="tcp://127.0.0.1:0",
    show_default=True,
    metavar="tcp://HOST:PORT",
    help="Where this short-lived publisher listens; a fixed port for subscribers without a store.",
)
@click.option(
    "--advertise-host", metavar="HOST", help="What subscribers connect to; needed when they run on other machines."
)
@click.option(
    "--subscribers",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Wait for so many subscribers; 0 publishes at once, to whoever is there.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.001, 86_400),
    default=DEFAULT_TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the subscribers.",
)
@click.option("--metadata", "pairs", multiple=True, metavar="KEY=VALUE", help="Attach metadata; repeat it.")
@security_options
@json_option
def publish(
    channel: str, topic: str, packet: str, payload: str, pairs: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Publish one event: PACKET with the fields JSON ({} by default, - reads standard input) under TOPIC of CHANNEL.

    Exit code 0 says that the event left for the subscribers that were connected; fanout knows no more than that.

    \b
    zlink publish prices zinc Price '{"cents": 2710}' --store redis://localhost
    zlink publish prices zinc Price '{"cents": 2710}' --listen tcp://127.0.0.1:5601
    """
    output, message = Output(as_json=as_json), RawMessage(packet, encoded(payload))
    metadata = split_pairs(pairs, "--metadata")
    count = run_until_done(lambda: _publish(channel, topic, message, metadata, output, **options))
    output.data(
        {"published": True, "channel": channel, "topic": topic, "subscribers": count},
        lambda: [f"published to {count} subscriber{'' if count == 1 else 's'} of channel {channel}"],
    )


async def _publish(
    channel: str,
    topic: str,
    message: RawMessage,
    metadata: dict[str, str],
    output: Output,
    *,
    store: str | None,
    listen: str,
    advertise_host: str | None,
    subscribers: int,
    timeout: float,
    key_file: str | None,
    allow_list: str | None,
) -> int:
    security = security_of(key_file, allow_list)
    host = Host(location_store=store, security=security, shutdown_deadline=_SHUTDOWN_SECONDS)
    host.fanout_publisher(channel, listen=listen, advertise_host=advertise_host, rid_prefix="zlink-cli")

    async with output.waiting(lambda: f"waiting for {subscribers} subscriber(s) of channel {channel}"):
        async with host.run() as rt:

            def connected() -> int:
                status = rt.fanout_status(channel).publisher
                return status.subscribers if status is not None else 0

            with trio.move_on_after(timeout) as waiting:
                while connected() < subscribers:  # noqa: ASYNC110 - a PUB socket announces nothing
                    await trio.sleep(_LOOK_SECONDS)
            if waiting.cancelled_caught:
                where = f"the store {store_label(store)}" if store else rt.publisher_endpoint(channel)
                raise UnavailableError(
                    f"{connected()} of {subscribers} subscriber(s) of channel {channel} connected within {timeout:g} "
                    f"s; do they subscribe through {where}?",
                    cause="RouteNotConnected",
                )
            await trio.sleep(_SETTLE_SECONDS)
            count = connected()
            await rt.publish(channel, topic, message, metadata=metadata or None)
        return count


@click.command("subscribe", cls=ReportingCommand, short_help="Print the events of a fanout channel.")
@click.argument("channel")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, callback=_checked_topics)
@store_option
@click.option(
    "--publisher",
    "publishers",
    multiple=True,
    metavar="[NAME@]tcp://HOST:PORT",
    help="Hear this publisher, instead of those of the store; repeat it.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many events, not at Ctrl-C.")
@security_options
@json_option
def subscribe(
    channel: str,
    topics: tuple[str, ...],
    store: str | None,
    publishers: tuple[str, ...],
    count: int | None,
    key_file: str | None,
    allow_list: str | None,
    as_json: bool,
) -> None:
    """Print the events of CHANNEL, of the given TOPICs or of all, until Ctrl-C.

    \b
    zlink subscribe prices zinc --store redis://localhost
    zlink subscribe prices --publisher tcp://127.0.0.1:5601 --json | jq .event
    """
    if publishers:
        context = click.get_current_context()
        if context.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--store and --publisher exclude each other: they come from the store or by hand")
        store = None
    elif not store:
        raise click.UsageError(
            f"say where the publishers are: --store URL, {STORE_VARIABLE}, or --publisher tcp://HOST:PORT"
        )
    host = Host(location_store=store, security=security_of(key_file, allow_list), shutdown_deadline=_SHUTDOWN_SECONDS)
    feed = host.fanout_subscriber(channel, publishers=publishers)
    trio.run(_subscribe, host, feed, topics, count, Output(as_json=as_json))


async def _subscribe(
    host: Host, feed: SubscribedChannel, topics: tuple[str, ...], count: int | None, output: Output
) -> None:
    enough = trio.Event()
    printed = 0

    def show(message: RawMessage, context: MessageContext) -> None:
        nonlocal printed
        if count is None or printed < count:
            printed += 1
            _print(output, message, context)
        if printed == count:
            enough.set()

    for topic in topics or (None,):
        feed.on_raw_event(topic)(show)
    with StopSignals() as stop:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when, stop.asked, nursery.cancel_scope)
            nursery.start_soon(cancel_when, enough, nursery.cancel_scope)
            async with output.waiting(lambda: f"waiting for a publisher of channel {feed.name}"), host.run() as rt:
                await rt.wait_ready_publisher(feed.name)
                await trio.sleep_forever()


def _print(output: Output, message: RawMessage, context: MessageContext) -> None:
    fields = decoded(message)
    document = {
        "topic": context.topic,
        "packet": message.packet_name,
        "publisher": context.source_rid,
        "metadata": dict(context.metadata),
        "event": fields,
    }
    output.data(document, lambda: [f"{context.topic} {message.packet_name} {dump_json(fields)}"])
