"""``zlink session``: the sessions of a cluster of session routers, from the command line.

The command's process is a session router of its own that holds nothing (`zlinkpy.sessions.bystander`): what it submits
runs wherever the session is held, so what works here works for an application.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import click
import trio
from attrs import evolve, fields

from zlinkpy.cli.exit_codes import EPILOG, ExitCode
from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.options import json_option, required_store, split_pairs, store_option
from zlinkpy.cli.output import Output
from zlinkpy.cli.stopping import StopSignals, cancel_when, run_until_done
from zlinkpy.errors import NotFoundError
from zlinkpy.location.open import store_label
from zlinkpy.sessions.bystander import Bystander, SessionFacts, open_bystander
from zlinkpy.sessions.events import Gap, TurnEvent
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.payloads import EventCodec
from zlinkpy.sessions.types import (
    ClusterSessionStatus,
    InterruptReason,
    Priority,
    RouterConfig,
    StatusSource,
    SubmitRequest,
    TurnResult,
)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS = RouterConfig()
_LOOK_SECONDS = 0.1
_UNKNOWN = "unknown"
"""Stands for the handler until the session's record has been read."""
_SHORTEST_WAIT = 2.0
"""Seconds; the last one of a wait is for taking the message back."""


class _Progress:
    """What is waited for, in words that may change meanwhile."""

    def __init__(self, text: str) -> None:
        self.text = text


def _common(function: F) -> F:
    return click.argument("session_id", metavar="SESSION")(store_option(json_option(function)))


@click.group("session", epilog=EPILOG, short_help="Submit to sessions, watch and end them.")
def session() -> None:
    """Sessions of the routers that share the store of --store: their turns run one at a time, on whatever node holds
    the session."""


def _run(
    store: str | None,
    output: Output,
    first: str,
    act: Callable[[Bystander, _Progress], Awaitable[T]],
    config: RouterConfig | None = None,
) -> T:
    """Open a router of its own for one command; progress is shown while it takes longer than a second."""
    url, progress = required_store(store), _Progress(first)

    async def main() -> T:
        async with output.waiting(lambda: progress.text), open_bystander(url, name="zlink-cli", config=config) as by:
            return await act(by, progress)

    return run_until_done(main)


# --- submit


@session.command("submit", cls=ReportingCommand, short_help="Submit one input and print the turn's result.")
@_common
@click.argument("text", metavar="TEXT")
@click.option("--handler", metavar="REF", help="The handler; not needed for a session that is bound to one.")
@click.option("--variant", metavar="NAME", help="The handler's variant, for a session that is not open yet.")
@click.option("--key", metavar="KEY", help="Idempotency key: the same key and TEXT run once.")
@click.option(
    "--priority",
    type=click.Choice([each.name.lower() for each in Priority]),
    default=Priority.NEXT.name.lower(),
    show_default=True,
    help="Place among what waits; now may go into the turn that runs.",
)
@click.option("--option", "pairs", multiple=True, metavar="KEY=VALUE", help="Submit option, JSON or text; repeat it.")
@click.option("--no-wait", is_flag=True, help="End as soon as the input is queued.")
@click.option(
    "--timeout",
    type=click.FloatRange(_SHORTEST_WAIT, 86_400),
    default=_DEFAULTS.idempotency_forward_ttl,
    show_default=True,
    metavar="SECONDS",
    help="For the result. What has not begun by then is taken back.",
)
def submit(
    session_id: str,
    text: str,
    handler: str | None,
    variant: str | None,
    key: str | None,
    priority: str,
    pairs: tuple[str, ...],
    no_wait: bool,
    timeout: float,
    store: str | None,
    as_json: bool,
) -> None:
    """Have TEXT run as a turn of SESSION by the node that holds it, and print the answer.

    A session that no node holds is taken by one whose scan for waiting messages finds it, which takes about a minute.
    A turn that ends without success is exit code 1; a holder that was lost, and no answer in time, are 4. Ctrl-C ends
    the waiting only: the input stays queued.

    \b
    zlink session submit s1 "hello" --handler chat --key 4f1c --store redis://localhost
    """
    output = Output(as_json=as_json)
    options = {name: _value(value) for name, value in split_pairs(pairs, "--option").items()}

    try:
        request = SubmitRequest(
            session_id=session_id,
            handler_ref=handler if handler is not None else _UNKNOWN,
            input=text,
            handler_variant=variant,
            submit_options=options,
            idempotency_key=key,
            priority=Priority[priority.upper()],
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def act(by: Bystander, progress: _Progress) -> tuple[SubmitDisposition, TurnResult | None]:
        facts = await by.look(session_id)
        ref = handler if handler is not None else _bound(facts, session_id)
        disposition = await by.router.submit(evolve(request, handler_ref=ref))
        if no_wait:
            return disposition, None
        held = "the node that holds it" if facts.holder is not None else "a node to take it"
        progress.text = f"waiting for turn {disposition.turn_id} of session {session_id}, on {held}"
        try:
            return disposition, await disposition.future.result()
        except trio.Cancelled:
            output.note(f"turn {disposition.turn_id} stays queued; zlink session interrupt or release ends it")
            raise

    # The router's own deadline: what was not collected by then is withdrawn, and its key is free again.
    config = RouterConfig(idempotency_forward_ttl=timeout)
    disposition, result = _run(store, output, f"submitting to session {session_id}", act, config)
    document: dict[str, Any] = {"session": session_id, "turn": disposition.turn_id}
    if result is None:
        output.data({**document, "queued": True}, lambda: [f"queued: turn {disposition.turn_id}"])
        return
    output.data(
        {
            **document,
            "success": result.success,
            "answer": result.answer,
            "error": result.error_message,
            "completion": result.completion,
        },
        lambda: (
            [result.answer or ""] if result.success else [f"no success: {result.error_message or result.completion}"]
        ),
    )
    if not result.success:
        click.get_current_context().exit(ExitCode.FAILED)


def _bound(facts: SessionFacts, session_id: str) -> str:
    if facts.record is None or facts.record.handler_ref is None:
        raise NotFoundError(f"session {session_id} is bound to no handler yet: give --handler REF")
    return facts.record.handler_ref


def _value(text: str) -> Any:
    """JSON where it is some, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


# --- watch


@session.command("watch", cls=ReportingCommand, short_help="Print the events of a session.")
@_common
@click.option(
    "--from",
    "from_seq",
    type=click.IntRange(1),
    metavar="N",
    help="Begin with event N of the turn that runs, not with the next one.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many events.")
def watch(session_id: str, from_seq: int | None, count: int | None, store: str | None, as_json: bool) -> None:
    """Print the events of SESSION, one line each, until the session is released or deleted, or until Ctrl-C."""
    url = required_store(store)
    trio.run(_watch, url, session_id, from_seq, count, Output(as_json=as_json))


async def _watch(url: str, session_id: str, from_seq: int | None, count: int | None, output: Output) -> None:
    codec, printed = EventCodec(), 0
    with StopSignals() as stop:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when, stop.asked, nursery.cancel_scope)
            async with open_bystander(url, name="zlink-cli") as by:
                # Said at once when the store is not there, not only when it should have brought something.
                async with output.waiting(lambda: f"looking for session {session_id} in {store_label(url)}"):
                    await by.look(session_id)
                async with aclosing(by.router.events(session_id, from_seq=from_seq)) as events:
                    async for event in events:
                        document = event_document(codec, event)
                        output.data(document, lambda document=document: [_event_line(document)])  # type: ignore[misc]
                        printed += 1
                        if printed == count:
                            break
            nursery.cancel_scope.cancel()


def event_document(codec: EventCodec, event: TurnEvent | Gap) -> dict[str, Any]:
    """An event as a map: its type, time (epoch milliseconds), turn, number in the turn, and its own fields."""
    if isinstance(event, Gap):
        return {"type": "Gap", "turn": event.turn_id, "first": event.first_seq, "last": event.last_seq}
    return codec.encode(event) or {"type": type(event).__name__, "turn": event.turn_id, "seq": event.seq}


_HEAD = ("type", "ts", "ctx", "iter", "turn", "seq")


def _event_line(document: Mapping[str, Any]) -> str:
    own = " ".join(f"{name}={value!r}" for name, value in document.items() if name not in _HEAD)
    return f"{document.get('turn') or '-'} {document.get('seq') or '-':>4} {document['type']} {own}".rstrip()


# --- status


@session.command("status", cls=ReportingCommand, short_help="Show what is known of a session.")
@_common
@click.option(
    "--wait",
    type=click.FloatRange(0, 3600),
    default=0.0,
    metavar="SECONDS",
    help="Listen so long for what its holder says of itself (where routers broadcast their status).",
)
def status(session_id: str, wait: float, store: str | None, as_json: bool) -> None:
    """Show who holds SESSION, what its record is, whether inputs wait, and what its holder last said of itself."""
    output = Output(as_json=as_json)

    async def act(by: Bystander, progress: _Progress) -> tuple[SessionFacts, ClusterSessionStatus]:
        facts = await by.look(session_id)
        if not facts.is_known:
            raise NotFoundError(f"the store knows no session {session_id}")
        progress.text = f"listening for the status of session {session_id}"
        return facts, await _heard(by, session_id, wait)

    facts, heard = _run(store, output, f"looking for session {session_id}", act)
    output.data(_status_document(session_id, facts, heard), lambda: _status_lines(facts, heard))


async def _heard(by: Bystander, session_id: str, wait: float) -> ClusterSessionStatus:
    """What a holder broadcasts within `wait` seconds; events are listened to meanwhile, as status comes with them."""

    async def listen() -> None:
        async for _ in by.router.events(session_id):
            pass

    if wait:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            with trio.move_on_after(wait):
                while by.router.status(session_id).source is StatusSource.UNKNOWN:  # noqa: ASYNC110
                    await trio.sleep(_LOOK_SECONDS)
            nursery.cancel_scope.cancel()
    return by.router.status(session_id)


def _status_document(session_id: str, facts: SessionFacts, heard: ClusterSessionStatus) -> dict[str, Any]:
    holder, record, said = facts.holder, facts.record, heard.status
    return {
        "session": session_id,
        "holder": None if holder is None else {"node": holder.holder_id, "expires_in": round(holder.expires_in, 3)},
        "record": None
        if record is None
        else {
            "handler": record.handler_ref,
            "version": record.version,
            "state_bytes": len(record.state or b""),
            "attrs": record.attrs,
        },
        "waiting": facts.has_waiting,
        "status": None
        if said is None
        else {
            "node": heard.origin_node,
            "observed_at": heard.observed_at,
            "phase": said.phase,
            "interruptible": said.interruptible,
            "queue_depth": said.queue_depth,
            "totals": {each.name: getattr(said.totals, each.name) for each in fields(type(said.totals))},
            "turn": None if said.turn is None else said.turn.turn_id,
        },
    }


def _status_lines(facts: SessionFacts, heard: ClusterSessionStatus) -> list[str]:
    holder, record, said = facts.holder, facts.record, heard.status
    lines = [
        f"held by {holder.holder_id} for {holder.expires_in:.1f} s more" if holder else "held by no node",
        f"handler {record.handler_ref}, version {record.version}, {len(record.state or b'')} bytes of state"
        if record is not None
        else "no record",
        "inputs wait" if facts.has_waiting else "no input waits",
    ]
    if said is not None:
        turn = f", turn {said.turn.turn_id}" if said.turn is not None else ""
        lines.append(f"{heard.origin_node} says: {said.phase}, queue {said.queue_depth}{turn}")
    return lines


# --- interrupt, release, delete


@session.command("interrupt", cls=ReportingCommand, short_help="Interrupt the turn that runs.")
@_common
@click.option("--turn", metavar="ID", help="Only this turn.")
def interrupt(session_id: str, turn: str | None, store: str | None, as_json: bool) -> None:
    """Ask the turn of SESSION to stop, wherever it runs. Exit code 0 says that the node that holds the session was
    told; how the turn ends is seen by whoever waits for it."""
    output = Output(as_json=as_json)

    async def act(by: Bystander, progress: _Progress) -> None:
        facts = await by.look(session_id)
        if facts.holder is None:
            raise NotFoundError(f"no node holds session {session_id}, so no turn of it runs")
        await by.router.interrupt(session_id, InterruptReason.USER, turn_id=turn)

    _run(store, output, f"interrupting session {session_id}", act)
    output.data(
        {"session": session_id, "turn": turn, "told": True}, lambda: [f"told the node that holds session {session_id}"]
    )


@session.command("release", cls=ReportingCommand, short_help="End a session; its history stays.")
@_common
def release(session_id: str, store: str | None, as_json: bool) -> None:
    """End SESSION on every node: its turn is interrupted, what waits is dropped, whoever waits for a result is told.
    Its record stays, and the next submit opens it again."""
    output = Output(as_json=as_json)

    async def act(by: Bystander, progress: _Progress) -> None:
        await _known(by, session_id)
        await by.router.release(session_id)

    _run(store, output, f"releasing session {session_id}", act)
    output.data({"session": session_id, "released": True}, lambda: [f"released session {session_id}"])


@session.command("delete", cls=ReportingCommand, short_help="End a session and remove its history.")
@_common
def delete(session_id: str, store: str | None, as_json: bool) -> None:
    """End SESSION as release does, and remove its record. A session whose turn does not stop within 5 s is exit code
    4 and stays as it is."""
    output = Output(as_json=as_json)

    async def act(by: Bystander, progress: _Progress) -> None:
        await _known(by, session_id)
        await by.delete(session_id)

    _run(store, output, f"deleting session {session_id}", act)
    output.data({"session": session_id, "deleted": True}, lambda: [f"deleted session {session_id}"])


async def _known(by: Bystander, session_id: str) -> None:
    if not (await by.look(session_id)).is_known:
        raise NotFoundError(f"the store knows no session {session_id}")
