"""From a received event to a handler's turn (SA-199, SA-253 for fanout, LV-88, LV-89).

A handler is chosen by topic and packet name. Topics are compared whole: a SUB socket matches prefixes, so it also gets
events that nobody here subscribed to, and those the beacon's own subscription brings.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from types import MappingProxyType
from typing import Any

from attrs import define, field, frozen

from zlinkpy.errors import ConfigurationError, ProtocolError
from zlinkpy.execution import is_failure
from zlinkpy.messages import NO_METADATA, Codecs, Decoder, HandlerSpec, MessageContext, RawMessage, payload_decoder
from zlinkpy.telemetry import Telemetry, catalogue, get_logger
from zlinkpy.wire import FanoutEvent, check_topic

log = get_logger("zlinkpy.fanout")


@frozen(eq=False)
class EventHandler:
    """One registered handler, ready to be called."""

    spec: HandlerSpec
    decode: Decoder | None
    """None: it takes the RawMessage as it came."""

    @property
    def label(self) -> str:
        return self.spec.label


@define
class EventHandlers:
    """The handlers of one channel's subscriber, by topic and packet name."""

    channel: str
    codecs: Codecs
    telemetry: Telemetry
    _handlers: dict[tuple[str, str], EventHandler] = field(factory=dict)
    _raw: dict[str | None, EventHandler] = field(factory=dict)
    _topics: dict[str, bytes] = field(factory=dict)

    def add(self, spec: HandlerSpec, topic: str | None) -> None:
        """Register `spec` for `topic`; None: the packet's name.

        Raises ConfigurationError for the reserved topic (LV-87), one that is not 1..255 bytes of UTF-8, and a pair of
        topic and packet that has a handler already.
        """
        topic = spec.packet_name if topic is None else topic
        self._subscribe(topic, spec)
        handler = EventHandler(spec, payload_decoder(self.codecs, spec.message_type))
        taken = self._handlers.setdefault((topic, spec.packet_name), handler)
        if taken is not handler:
            raise ConfigurationError(
                f"fanout channel {self.channel!r}: packet {spec.packet_name!r} of topic {topic!r} has two handlers: "
                f"{taken.label} and {spec.label}; remove one, or name the packet differently"
            )

    def add_raw(self, spec: HandlerSpec, topic: str | None) -> None:
        """Register `spec` for what no other handler of `topic` takes; None: of whatever topic. Raises as `add`."""
        if topic is not None:
            self._subscribe(topic, spec)
        handler = EventHandler(spec, None)
        taken = self._raw.setdefault(topic, handler)
        if taken is not handler:
            what = "every topic" if topic is None else f"topic {topic!r}"
            raise ConfigurationError(
                f"fanout channel {self.channel!r}: {what} has two raw handlers: {taken.label} and "
                f"{spec.label}; remove one"
            )

    def _subscribe(self, topic: str, spec: HandlerSpec) -> None:
        try:
            self._topics[topic] = check_topic(topic)
        except ValueError as error:
            raise ConfigurationError(f"fanout channel {self.channel!r}, handler {spec.label}: {error}") from None

    def __iter__(self) -> Iterator[EventHandler]:
        yield from self._handlers.values()
        yield from self._raw.values()

    @property
    def topics(self) -> tuple[bytes, ...]:
        """What to subscribe to."""
        return (b"",) if None in self._raw else tuple(self._topics.values())

    def job(self, event: FanoutEvent) -> EventJob | None:
        """The turn of a received event; None when nothing here wants it, which is no error (LV-89)."""
        if event.topic not in self._topics and None not in self._raw:
            return None
        handler = (
            self._handlers.get((event.topic, event.payload.packet_name))
            or self._raw.get(event.topic)
            or self._raw.get(None)
        )
        if handler is None:
            log.info(
                "fanout channel %s: no handler for packet %s of topic %s",
                self.channel,
                event.payload.packet_name,
                event.topic,
                extra={"channel": self.channel, "packet": event.payload.packet_name, "reason": "no_handler"},
            )
            return None
        self.telemetry.counter(catalogue.FANOUT_RECEIVED, channel_name=self.channel)
        return EventJob(self, handler, event)


class EventJob:
    """One accepted event waiting for, or having, its turn. Nobody waits for an answer: errors end here."""

    __slots__ = ("event", "handler", "handlers")

    def __init__(self, handlers: EventHandlers, handler: EventHandler, event: FanoutEvent) -> None:
        self.handlers = handlers
        self.handler = handler
        self.event = event

    @property
    def label(self) -> str:
        """The handler's name."""
        return self.handler.label

    def run(self) -> Coroutine[Any, Any, None] | None:
        """Take the turn; a coroutine is what is left of it for an async handler."""
        spec = self.handler.spec
        try:
            message = self._message()
            result = spec.call(message, self.context() if spec.wants_context else None)
        except BaseException as error:  # noqa: BLE001 - sorted in _failed
            self._failed(error)
            return None
        return self._finish(result) if spec.is_async else None

    def _message(self) -> Any:
        head, decode = self.event.payload, self.handler.decode
        if decode is None:
            return RawMessage(head.packet_name, self.event.content, head.content_type)
        return decode(head.content_type, self.event.content)

    async def _finish(self, result: Any) -> None:
        try:
            await result
        except BaseException as error:  # noqa: BLE001 - sorted in _failed
            self._failed(error)

    def context(self) -> MessageContext:
        """What the handler may know about the event besides its value."""
        event = self.event
        return MessageContext(
            mesh_name=None,
            packet_name=event.payload.packet_name,
            channel_name=event.channel_name,
            content_type=event.payload.content_type,
            metadata=MappingProxyType(dict(event.metadata)) if event.metadata else NO_METADATA,
            source_rid=event.source_rid,
            topic=event.topic,
        )

    def _failed(self, error: BaseException) -> None:
        if not is_failure(error):
            raise error
        handlers, event = self.handlers, self.event
        handlers.telemetry.counter(catalogue.FANOUT_FAILURES, channel_name=handlers.channel)
        fields = {"channel": handlers.channel, "packet": event.payload.packet_name}
        if isinstance(error, ProtocolError):
            log.warning(
                "dropped an event for %s: its payload does not decode: %s",
                self.label,
                error,
                extra={**fields, "reason": "decode_error"},
            )
        else:
            log.error("handler %s failed", self.label, exc_info=error, extra={**fields, "reason": "handler_failed"})
