"""Message payloads on the command line: JSON to msgpack and back."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import msgpack

from zlinkpy.cli.output import dump_json
from zlinkpy.errors import ProtocolError
from zlinkpy.messages import CONTENT_TYPE, RawMessage


def encoded(text: str) -> bytes:
    """msgpack of a JSON object; ``-`` reads it from standard input. Raises click.BadParameter."""
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


def decoded(reply: RawMessage | None) -> Any:
    """What a message holds, None for none. Raises ProtocolError for what is not msgpack."""
    if reply is None:
        return None
    if reply.content_type != CONTENT_TYPE:
        return {"content_type": reply.content_type, "payload": reply.payload}
    try:
        return msgpack.unpackb(reply.payload, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"the payload is not msgpack: {error}", field="payload") from None
