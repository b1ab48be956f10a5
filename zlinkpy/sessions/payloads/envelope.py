"""The inbox envelope: an `InboundMessage` as bytes, and back.

An inbox outlives upgrades, so entries written by older and newer builds lie side by side. The text of an input is
therefore always under ``input``, as every build can read it; attachments add ``input_encoded``, and a reader that
does not understand that, or a part in it, runs the text alone (SR-072..074).

Never in an envelope: options and open attributes (SR-071).
"""

from __future__ import annotations

from typing import Any

from zlinkpy.sessions.payloads.values import Malformed, Values, logger, pack, unpack, without_nulls
from zlinkpy.sessions.types import (
    PART_TYPES,
    InboundMessage,
    Part,
    Principal,
    Priority,
    TurnInput,
    UnreadableEntry,
    plain_data,
)


def encode_envelope(message: InboundMessage) -> bytes:
    """The bytes of a message; its `id` is not part of them.

    Raises:
        ValueError: Submit options that are no plain data; the text names the place.
    """
    plain_data(message.submit_options, "submit_options")
    whole_input, initiator = message.input, message.initiator
    return pack(
        without_nulls(
            session_id=message.session_id,
            handler_ref=message.handler_ref,
            input=whole_input.rendering,
            input_encoded=_input_fields(whole_input) if whole_input.parts else None,
            priority=int(message.priority),
            initiator=None if initiator is None else _principal_fields(initiator),
            delivered_at=message.delivered_at,
            idempotency_key=message.idempotency_key,
            turn_id=message.turn_id,
            handler_variant=message.handler_variant,
            submit_options=_unfrozen(message.submit_options) or None,
            epoch=message.epoch,
        )
    )


def decode_envelope(
    data: bytes, *, session_id: str, inbox_id: str, priority: Priority, arrived_at: int
) -> InboundMessage | UnreadableEntry:
    """The message, with what the inbox itself knows: its id, its tier, and when it came unless the envelope says.

    Raises nothing: an entry that cannot be read becomes an `UnreadableEntry` (SR-066..068).
    """
    payload: Any = None
    try:
        payload = unpack(data)
        return _message(Values(payload), session_id, inbox_id, priority, arrived_at)
    except Malformed as problem:
        reason = str(problem)
    except Exception as problem:  # noqa: BLE001 - whatever bytes of a stranger provoke
        reason = f"not readable ({type(problem).__name__})"
    return UnreadableEntry(inbox_id, address(payload, "turn_id"), address(payload, "idempotency_key"), reason)


def address(payload: object, name: str) -> str | None:
    """A field of a payload, if it is one and holds text."""
    value = payload.get(name) if isinstance(payload, dict) else None
    return value if isinstance(value, str) and value.strip() else None


def _message(values: Values, session_id: str, inbox_id: str, priority: Priority, arrived_at: int) -> InboundMessage:
    if values.text("session_id") != session_id:
        raise Malformed("session_id is another session's")
    initiator = values.mapping("initiator", None)
    return InboundMessage(
        session_id=session_id,
        handler_ref=_filled(values, "handler_ref"),
        input=_input(values, session_id),
        priority=priority,
        initiator=None if initiator is None else _principal(Values(initiator)),
        delivered_at=values.whole("delivered_at", arrived_at),
        idempotency_key=_optional(values, "idempotency_key"),
        turn_id=_optional(values, "turn_id"),
        handler_variant=values.text("handler_variant", None),
        submit_options=values.mapping("submit_options", {}),
        epoch=_optional(values, "epoch"),
        id=inbox_id,
    )


def _filled(values: Values, name: str) -> str:
    text = values.text(name)
    if not text.strip():
        raise Malformed(f"{name} is blank")
    return text


def _optional(values: Values, name: str) -> str | None:
    return None if values.text(name, None) is None else _filled(values, name)


def _input(values: Values, session_id: str) -> TurnInput:
    rendering = values.text("input")
    try:
        encoded = values.mapping("input_encoded", None)
        if encoded is None:
            return TurnInput(rendering)
        parts = encoded.get("parts")
        if not isinstance(parts, list):
            raise Malformed("parts is not a list")
        return TurnInput(Values(encoded).text("text"), tuple(_part(Values(part)) for part in parts))
    except Malformed as problem:
        logger.warning("an input for session %r is read as text alone: %s", session_id, problem)
        return TurnInput(rendering)


def _part(values: Values) -> Part:
    kind, data = values.text("type"), values.raw("data")
    if kind not in PART_TYPES:
        raise Malformed(f"unknown part type {kind[:40]!r}")
    if not isinstance(data, bytes):
        raise Malformed("data is not bytes")
    return Part(kind, values.text("media_type"), data)


def _input_fields(value: TurnInput) -> dict[str, Any]:
    parts = [{"type": part.type, "media_type": part.media_type, "data": part.data} for part in value.parts]
    return {"text": value.text, "parts": parts}


def _principal_fields(principal: Principal) -> dict[str, Any]:
    return without_nulls(type=principal.type, id=principal.id, display_name=principal.display_name)


def _principal(values: Values) -> Principal:
    return Principal(values.text("type"), values.text("id"), values.text("display_name", None))


def _unfrozen(value: Any) -> Any:
    """Maps of any kind as dicts: msgpack packs no other."""
    if isinstance(value, (list, tuple)):
        return [_unfrozen(part) for part in value]
    return {key: _unfrozen(part) for key, part in value.items()} if hasattr(value, "items") else value
