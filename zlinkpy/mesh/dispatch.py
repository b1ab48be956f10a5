"""From an application record to a handler's turn and back (SA-122, SA-124, SA-145, SA-199, SA-253).

A record becomes a `Job` in the same synchronous stretch in which it was taken from the transport; the job decodes the
payload when its turn comes, calls the handler and, for a request, sends the one reply. Errors of a handler belong to
that job alone. Local calls make the same jobs with another way back, so queue, permits, context and errors are the same
(SA-129).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Protocol

import trio
from attrs import define, field

from zlinkpy.errors import ConfigurationError, ErrorKind, ProtocolError, ZlinkError
from zlinkpy.execution import is_failure
from zlinkpy.messages import NO_METADATA, Codecs, Decoder, HandlerSpec, MessageContext, payload_decoder
from zlinkpy.telemetry import catalogue, get_logger
from zlinkpy.wire import (
    ChannelRequest,
    ChannelSend,
    FailureCode,
    NodeRequest,
    NodeSend,
    Record,
    Reply,
    TerminalResult,
    encode,
)

if TYPE_CHECKING:
    from zlinkpy.mesh.holder import LinkHolder

log = get_logger("zlinkpy.dispatch")

# What a handler's error becomes on the wire (wire.md §7). Kinds without a code of their own are internal failures.
_FAILURE: Mapping[ErrorKind, tuple[TerminalResult, FailureCode]] = {
    ErrorKind.NOT_FOUND: (TerminalResult.NOT_FOUND, FailureCode.REQUEST_TARGET_NOT_FOUND),
    ErrorKind.ALREADY_EXISTS: (TerminalResult.CONFLICT, FailureCode.ACTOR_ALREADY_EXISTS),
    ErrorKind.TYPE_MISMATCH: (TerminalResult.CONFLICT, FailureCode.SPOT_TYPE_MISMATCH),
    ErrorKind.REJECTED: (TerminalResult.REJECTED, FailureCode.REQUEST_REJECTED),
    ErrorKind.UNAVAILABLE: (TerminalResult.NOT_CONNECTED, FailureCode.NONE),
    ErrorKind.DEADLINE_EXCEEDED: (TerminalResult.TIMED_OUT, FailureCode.NONE),
    ErrorKind.SHUTTING_DOWN: (TerminalResult.TERMINATED, FailureCode.NONE),
    ErrorKind.PROTOCOL_ERROR: (TerminalResult.PROTOCOL_ERROR, FailureCode.REQUEST_PROTOCOL_ERROR),
    ErrorKind.INVALID_OPERATION: (TerminalResult.INVALID_STATE, FailureCode.NONE),
    ErrorKind.DATA_LOST: (TerminalResult.INTERNAL_ERROR, FailureCode.RELOCATION_DATA_LOST),
}
_DROP_REASON = {
    TerminalResult.NOT_FOUND: "no_handler",
    TerminalResult.PROTOCOL_ERROR: "decode_error",
    TerminalResult.TIMED_OUT: "backpressure",
    TerminalResult.TERMINATED: "shutdown",
}
_INTERNAL = (TerminalResult.INTERNAL_ERROR, FailureCode.REQUEST_FAILED)


def failure_of(error: BaseException) -> tuple[TerminalResult, FailureCode]:
    """The wire result and code a handler's exception is answered with."""
    return _FAILURE.get(error.kind, _INTERNAL) if isinstance(error, ZlinkError) else _INTERNAL


class ReplyRoute(Protocol):
    """The way back to a requester."""

    async def reply(self, frames: list[bytes], deadline: float | None) -> bool:
        """Send the one reply. False: nobody is there to take it. Raises InternalFailureError for one that is larger
        than the requester takes."""


@define(eq=False)
class Handler:
    """One registered handler, ready to be called."""

    spec: HandlerSpec
    decode: Decoder
    call: Callable[[Any, MessageContext | None], Any]
    is_async: bool
    wants_context: bool
    reply_type: type | None
    label: str


@define
class HandlerTable:
    """The handlers of one mesh. Keys: node direct = kind + packet; channel = channel + kind + packet (SA-15)."""

    where: str
    codecs: Codecs
    node_sends: dict[str, Handler] = field(factory=dict)
    node_requests: dict[str, Handler] = field(factory=dict)
    channel_sends: dict[tuple[str, str], Handler] = field(factory=dict)
    channel_requests: dict[tuple[str, str], Handler] = field(factory=dict)

    def add(self, spec: HandlerSpec, channel: str | None) -> Handler:
        """Register `spec`, for node direct messages or for `channel`.

        Raises ConfigurationError naming both functions when the key is taken.
        """
        if spec.reply_type is not None and spec.reply_type is not NoneType:
            self.codecs.default.prepare(spec.reply_type)
        handler = Handler(
            spec=spec,
            decode=payload_decoder(self.codecs, spec.message_type),
            call=spec.call,
            is_async=spec.is_async,
            wants_context=spec.wants_context,
            reply_type=spec.reply_type,
            label=spec.label,
        )
        table: dict[Any, Handler]
        key: Any
        if channel is None:
            table, key = (self.node_sends if spec.kind == "send" else self.node_requests), spec.packet_name
        else:
            table = self.channel_sends if spec.kind == "send" else self.channel_requests
            key = (channel, spec.packet_name)
        taken = table.get(key)
        if taken is not None:
            scope = f"channel {channel!r}" if channel else "node direct"
            raise ConfigurationError(
                f"{self.where}: {scope} {spec.kind} of packet {spec.packet_name!r} has two handlers: "
                f"{taken.label} and {spec.label}; remove one, or name the packet differently"
            )
        table[key] = handler
        return handler

    def __iter__(self) -> Iterator[Handler]:
        tables: tuple[Mapping[Any, Handler], ...] = (
            self.node_sends,
            self.node_requests,
            self.channel_sends,
            self.channel_requests,
        )
        for table in tables:
            yield from table.values()

    def find(self, command: Any) -> Handler | None:
        """The handler for an application command, or None."""
        packet = command.payload.packet_name
        kind = type(command)
        if kind is ChannelRequest:
            return self.channel_requests.get((command.channel_name, packet))
        if kind is ChannelSend:
            return self.channel_sends.get((command.channel_name, packet))
        if kind is NodeRequest:
            return self.node_requests.get(packet)
        if kind is NodeSend:
            return self.node_sends.get(packet)
        return None


class Job:
    """One accepted record waiting for, or having, its turn."""

    __slots__ = ("command", "deadline", "handler", "mesh", "record", "refusal", "route", "source")

    def __init__(
        self, mesh: LinkHolder, record: Record, source: str, route: ReplyRoute | None, deadline: float | None
    ) -> None:
        """`route` and `deadline` are None for one-way messages: nobody waits for an answer."""
        self.mesh = mesh
        self.record = record
        self.command: Any = record.command
        self.handler = mesh.handlers.find(record.command)
        self.source = source
        self.route = route
        self.deadline = deadline
        self.refusal: tuple[TerminalResult, FailureCode, str] | None = None

    @property
    def corr(self) -> int:
        """The correlation number of a request; 0 for a one-way message."""
        corr: int = self.command.corr if self.route is not None else 0
        return corr

    @property
    def label(self) -> str:
        """What a person would call the work: the handler's name, or the packet nobody handles."""
        return self.handler.label if self.handler is not None else f"packet {self.command.payload.packet_name!r}"

    @property
    def surface(self) -> str:
        """The metric label of the message's kind of target."""
        return "node" if type(self.command) in (NodeSend, NodeRequest) else "channel"

    def refuse(self, result: TerminalResult, code: FailureCode, why: str) -> None:
        """Answer with `result` when the turn comes, without running the handler."""
        self.refusal = (result, code, why)

    def run(self) -> Coroutine[Any, Any, None] | None:
        """Take the turn. Returns what is left of it where something has to be waited for: an async handler, a reply.

        A one-way message for a plain function is over when this returns; it is spared a coroutine.
        """
        message = self._message()
        if self.refusal is not None:
            return self._refuse(*self.refusal)
        handler = self.handler
        assert handler is not None
        if handler.is_async or self.route is not None:
            return self._handle(handler, message)
        try:
            handler.call(message, self.context() if handler.wants_context else None)
        except BaseException as error:  # noqa: BLE001 - sorted in _failed
            self._failed(handler, error)
        return None

    def _message(self) -> Any:
        """The decoded message, or None with `refusal` set."""
        handler = self.handler
        if self.refusal is not None:
            return None
        if handler is None:
            self.refuse(TerminalResult.NOT_FOUND, FailureCode.HANDLER_NOT_FOUND, "no handler is registered")
            return None
        if self.deadline is not None and trio.current_time() >= self.deadline:
            # Its caller has already got DeadlineExceeded; doing the work now would only delay work somebody waits for.
            self.refuse(TerminalResult.TIMED_OUT, FailureCode.NONE, "its deadline passed while it was queued")
            return None
        try:
            return handler.decode(self.command.payload.content_type, self.record.parts[0])
        except ProtocolError as error:
            self.refuse(TerminalResult.PROTOCOL_ERROR, FailureCode.PAYLOAD_DECODE_FAILED, str(error))
            return None

    async def _handle(self, handler: Handler, message: Any) -> None:
        route = self.route
        try:
            result = handler.call(message, self.context() if handler.wants_context else None)
            if handler.is_async:
                result = await result
            if route is None:
                return
            taken = await route.reply(self._reply_frames(handler, result), self.deadline)
        except BaseException as error:  # noqa: BLE001 - sorted in _failed
            self._failed(handler, error)
            if route is not None:
                await self._answer(*failure_of(error))
            return
        if not taken:
            log.info(
                "the reply of %s was dropped: its requester is gone",
                handler.label,
                extra=self._fields("requester_gone"),
            )

    def _failed(self, handler: Handler, error: BaseException) -> None:
        """Count and log what the handler raised; re-raise what is not its own (SA-199, SA-253)."""
        if not is_failure(error):
            raise error
        self.mesh.core.telemetry.counter(
            catalogue.HANDLER_FAILURES,
            mesh_name=self.mesh.name,
            surface=self.surface,
            message_kind="request" if self.route else "send",
        )
        log.error("handler %s failed", handler.label, exc_info=error, extra=self._fields("handler_failed"))

    def _reply_frames(self, handler: Handler, result: Any) -> list[bytes]:
        reply_type = handler.reply_type
        if reply_type is NoneType:
            if result is not None:
                raise TypeError(f"{handler.label} answers Request[None] but returned {result!r}")
            return encode(Reply(self.corr, 0, 0, None, None))
        if result.__class__ is not reply_type:
            raise TypeError(
                f"{handler.label} has to return a {reply_type.__name__ if reply_type else None}, not {result!r}"
            )
        shape = self.mesh.core.shapes.of(result)
        return shape.reply_frames(self.corr, shape.encode(result))

    def context(self) -> MessageContext:
        """What the handler may know about the message besides its value (SA-275)."""
        command = self.command
        return MessageContext(
            mesh_name=self.mesh.mesh_name,
            packet_name=command.payload.packet_name,
            channel_name=getattr(command, "channel_name", None),
            content_type=command.payload.content_type,
            metadata=MappingProxyType(dict(self.record.metadata)) if self.record.metadata else NO_METADATA,
            correlation_id=self.corr or None,
            source_rid=self.source if type(command) in (NodeSend, NodeRequest) else None,
        )

    def _fields(self, reason: str) -> dict[str, str]:
        """What a structured log record says about the message (SA-283)."""
        return {
            "surface": self.surface,
            "mesh": self.mesh.name,
            "packet": self.command.payload.packet_name,
            "reason": reason,
        }

    async def _refuse(self, result: TerminalResult, code: FailureCode, why: str) -> None:
        reason = _DROP_REASON.get(result, "no_handler")
        self.mesh.core.telemetry.counter(
            catalogue.MESSAGES_DROPPED,
            mesh_name=self.mesh.name,
            surface=self.surface,
            message_kind="request" if self.route else "send",
            reason=reason,
        )
        fields = self._fields(reason)
        if self.route is None:
            log.warning(
                "dropped a one-way message for %s of %s %s: %s",
                self.label,
                self.mesh.kind,
                self.mesh.name,
                why,
                extra=fields,
            )
        else:
            log.info(
                "refused a request for %s of %s %s: %s",
                self.label,
                self.mesh.kind,
                self.mesh.name,
                why,
                extra=fields,
            )
            await self._answer(result, code)

    async def _answer(self, result: TerminalResult, code: FailureCode) -> None:
        assert self.route is not None
        await self.route.reply(encode(Reply(self.corr, int(result), int(code), None, None)), self.deadline)
