"""EVENT payloads: a turn's events as flat maps, and back.

What is lost on the way, on purpose: a failure's exception but for its text (SR-349), values of an input summary that
are no plain data (SR-350), fractions of milliseconds (SR-351).

A type this build does not know decodes to None at DEBUG level: in a rolling update newer nodes emit newer events
(SR-347). A known type that is malformed decodes to None with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attrs import frozen

from zlinkpy.errors import ConfigurationError
from zlinkpy.sessions.events import (
    InterruptedAt,
    OutputDelta,
    OutputSnapshot,
    RejectedAt,
    StepFinished,
    StepStarted,
    TraceDelta,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
    TurnStarted,
)
from zlinkpy.sessions.payloads.values import (
    Malformed,
    Values,
    from_millis,
    guarded,
    logger,
    plain,
    to_millis,
    without_nulls,
)
from zlinkpy.sessions.types import InterruptReason

E = TypeVar("E", bound=TurnEvent)


@frozen
class _Coding:
    name: str
    encode: Callable[[Any], Mapping[str, Any]]
    decode: Callable[[Values, dict[str, Any]], TurnEvent]


class EventCodec:
    """The event types of one router: the built-in ones, and those the application registers."""

    def __init__(self) -> None:
        self._by_class: dict[type, _Coding] = {}
        self._by_name: dict[str, _Coding] = {}
        for cls, encode, decode in _BUILT_IN:
            self._add(cls, _Coding(cls.__name__, encode, decode))

    def register(
        self,
        cls: type[E],
        encode: Callable[[E], Mapping[str, Any]],
        decode: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        *,
        name: str | None = None,
    ) -> None:
        """Let events of exactly `cls` cross nodes.

        Args:
            cls: The application's event type.
            encode: Its own fields as plain data.
            decode: Those fields as keyword arguments of `cls`; may raise anything for what it does not understand.
            name: The type's name on the wire, the same on all nodes; the class name unless given.

        Raises:
            ConfigurationError: The name or the class is taken.
        """

        def build(values: Values, common: dict[str, Any]) -> TurnEvent:
            try:
                return cls(**common, **decode(values.mapping("fields")))
            except Malformed:
                raise
            except Exception as problem:
                raise Malformed(f"the decoder of {cls.__name__} raised {type(problem).__name__}") from problem

        self._add(cls, _Coding(name or cls.__name__, lambda event: {"fields": plain(encode(event))}, build))

    def encode(self, event: TurnEvent) -> dict[str, Any] | None:
        """The payload of an EVENT signal; None for a type without a codec, which is not published (SR-348)."""
        coding = self._by_class.get(event.__class__)
        if coding is None:
            return None
        common = without_nulls(
            type=coding.name, ts=event.ts, ctx=event.ctx, iter=event.iteration, turn=event.turn_id, seq=event.seq
        )
        return {**common, **coding.encode(event)}

    def decode(self, payload: object) -> TurnEvent | None:
        """The event; None for an unknown type and for a malformed payload."""
        return guarded("EVENT", self._decode, payload)

    def _decode(self, values: Values) -> TurnEvent | None:
        name = values.text("type")
        coding = self._by_name.get(name)
        if coding is None:
            logger.debug("an event of the unknown type %r was ignored", name[:100])
            return None
        common = {
            "ts": values.whole("ts"),
            "ctx": values.text("ctx", ""),
            "iteration": values.whole("iter", 0),
            "turn_id": values.text("turn", None),
            "seq": values.whole("seq", None),
        }
        return coding.decode(values, common)

    def _add(self, cls: type, coding: _Coding) -> None:
        if cls in self._by_class or coding.name in self._by_name:
            raise ConfigurationError(f"the event type {coding.name!r} ({cls.__name__}) has a codec already")
        self._by_class[cls] = self._by_name[coding.name] = coding


def _text(cls: type[TraceDelta] | type[OutputDelta] | type[OutputSnapshot]) -> tuple[type[TurnEvent], Any, Any]:
    return cls, lambda event: {"text": event.text}, lambda values, common: cls(values.text("text"), **common)


def _cause(text: str | None) -> Exception | None:
    return None if text is None else Exception(text)


_BUILT_IN: tuple[tuple[type[TurnEvent], Any, Any], ...] = (
    (TurnStarted, lambda event: {}, lambda values, common: TurnStarted(**common)),
    (
        StepStarted,
        lambda event: {"name": event.name, "step": event.step_id, "input": plain(event.input_summary)},
        lambda values, common: StepStarted(
            values.text("name"), values.text("step", ""), values.mapping("input", {}), **common
        ),
    ),
    (
        StepFinished,
        lambda event: without_nulls(
            name=event.name,
            step=event.step_id,
            success=event.success,
            durationMillis=to_millis(event.duration),
            summary=event.summary,
        ),
        lambda values, common: StepFinished(
            values.text("name"),
            values.text("step", ""),
            values.flag("success", True),
            from_millis(values.whole("durationMillis", 0)),
            values.text("summary", None),
            **common,
        ),
    ),
    _text(TraceDelta),
    _text(OutputDelta),
    _text(OutputSnapshot),
    (
        TurnCompleted,
        lambda event: without_nulls(success=event.success, answer=event.answer, completion=event.completion),
        lambda values, common: TurnCompleted(
            values.flag("success"), values.text("answer", None), values.text("completion"), **common
        ),
    ),
    (
        TurnFailed,
        lambda event: without_nulls(
            message=event.message, cause=None if event.cause is None else plain(str(event.cause))
        ),
        lambda values, common: TurnFailed(values.text("message"), _cause(values.text("cause", None)), **common),
    ),
    (
        InterruptedAt,
        lambda event: {"reason": event.reason.value},
        lambda values, common: InterruptedAt(InterruptReason.parse(values.text("reason")), **common),
    ),
    (
        RejectedAt,
        lambda event: without_nulls(
            requested=event.requested, existing=event.existing, inboxId=event.inbox_id, reason=event.reason
        ),
        lambda values, common: RejectedAt(
            values.text("requested"),
            values.text("existing"),
            values.text("inboxId", None),
            values.text("reason", "CONFLICTING_HANDLER"),
            **common,
        ),
    ),
)
