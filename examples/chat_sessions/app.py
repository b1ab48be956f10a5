"""The web application: inputs by POST, events by Server-Sent Events, over a session router.

    POST   /sessions/ID/turns      {"text": …}, header Idempotency-Key   the answer; with Prefer: respond-async 202
    GET    /sessions/ID/events     ?from_seq=N, header Last-Event-ID     200, text/event-stream
    POST   /sessions/ID/interrupt                                        204
    DELETE /sessions/ID                                                  204

Any node takes any request. Which node runs a turn is the router's business and is seen nowhere here.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import zlinkpy as zl
from zlinkpy.errors import ErrorKind
from zlinkpy.sessions.event_streams import EventStream
from zlinkpy.sessions.payloads import EventCodec

KEEP_ALIVE: Final = 15.0
"""Seconds of silence after which a stream says that it is still there; proxies cut what is silent for long."""

_STATUS: Final = {
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.SHUTTING_DOWN: 503,
    ErrorKind.DATA_LOST: 503,
    ErrorKind.DEADLINE_EXCEEDED: 504,
    ErrorKind.INVALID_OPERATION: 409,
}


def chat_app(router: zl.SessionRouter) -> Starlette:
    """The application over a running router."""
    codec = EventCodec()

    async def post_turn(request: Request) -> Response:
        key = request.headers.get("idempotency-key")
        if not key:
            return _problem(400, "IDEMPOTENCY_KEY_MISSING", "a turn that may be sent twice needs an Idempotency-Key")
        try:
            text = (await request.json())["text"]
        except (ValueError, TypeError, KeyError):
            return _problem(400, "BAD_BODY", 'the body is JSON: {"text": "…"}')
        if not isinstance(text, str) or not text:
            return _problem(400, "BAD_BODY", "text is a string with something in it")
        # From here on the turn runs whether or not the client is there to hear of it.
        submitted = await router.submit(request.path_params["session"], text, handler="chat", key=key)
        if request.headers.get("prefer") == "respond-async" and not submitted.future.done():
            return JSONResponse({"turn": submitted.turn_id}, status_code=202)
        result = await submitted.future.result()
        return JSONResponse({"success": result.success, "answer": result.answer, "completion": result.completion})

    async def events(request: Request) -> Response:
        try:
            from_seq = int(request.query_params["from_seq"]) if "from_seq" in request.query_params else None
        except ValueError:
            from_seq = 0
        if from_seq is not None and from_seq < 1:
            return _problem(400, "BAD_QUERY", "from_seq is a number from 1 on")
        last_turn, _, number = request.headers.get("last-event-id", "").rpartition(":")
        last_seq = int(number) if last_turn and number.isdecimal() else 0
        if last_seq:
            # The browser has connected again: what it has seen of this turn is left out, another turn comes whole.
            from_seq = 1
        # Before the answer begins, so that the client that has it misses nothing.
        stream = router.events(request.path_params["session"], from_seq=from_seq)
        frames = _frames(stream, codec, last_turn, last_seq)
        return StreamingResponse(frames, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def interrupt(request: Request) -> Response:
        await router.interrupt(request.path_params["session"])
        return Response(status_code=204)

    async def delete(request: Request) -> Response:
        await router.delete(request.path_params["session"])
        return Response(status_code=204)

    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, zl.SessionError)
        return _problem(error.status_hint or _STATUS.get(error.kind, 500), _code(error), error.message)

    return Starlette(
        routes=[
            Route("/sessions/{session}/turns", post_turn, methods=["POST"]),
            Route("/sessions/{session}/events", events, methods=["GET"]),
            Route("/sessions/{session}/interrupt", interrupt, methods=["POST"]),
            Route("/sessions/{session}", delete, methods=["DELETE"]),
        ],
        exception_handlers={zl.SessionError: failed},
    )


async def _frames(events: EventStream, codec: EventCodec, last_turn: str, last_seq: int) -> AsyncIterator[str]:
    async with aclosing(events) as stream:
        yield ": listening\n\n"
        while True:
            event: zl.TurnEvent | zl.Gap | None = None
            with trio.move_on_after(KEEP_ALIVE):
                event = await anext(stream, None)
                if event is None:
                    return
            if event is None:
                yield ": still here\n\n"
            elif event.turn_id != last_turn or isinstance(event, zl.Gap) or (event.seq or 0) > last_seq:
                yield _frame(codec, event)


def _frame(codec: EventCodec, event: zl.TurnEvent | zl.Gap) -> str:
    if isinstance(event, zl.Gap):
        missing = {"turn": event.turn_id, "first": event.first_seq, "last": event.last_seq}
        return f"id: {event.turn_id}:{event.last_seq}\nevent: Gap\ndata: {json.dumps(missing)}\n\n"
    document = codec.encode(event) or {}
    # A frame of no turn, such as the news that a holder was lost, has no place to come back to.
    place = f"id: {event.turn_id}:{event.seq}\n" if event.turn_id and event.seq else ""
    return f"{place}event: {type(event).__name__}\ndata: {json.dumps(document)}\n\n"


def _problem(status: int, code: str, detail: str) -> Response:
    return JSONResponse({"error": code, "detail": detail}, status_code=status)


def _code(error: zl.SessionError) -> str:
    """HolderLostError -> HOLDER_LOST."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).upper()
