"""Payloads between JSON and msgpack."""

from __future__ import annotations

import pytest

from zlinkpy import ProtocolError
from zlinkpy.cli.payloads import decoded
from zlinkpy.messages import RawMessage


@pytest.mark.parametrize(
    "payload", [b"\x81\x91\x01\x01", b"\xc1", b"\x92\x01"], ids=["a list as key", "no type", "short"]
)
def test_what_is_no_payload_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="not msgpack"):
        decoded(RawMessage("Any", payload))
