"""The hash that tells whether two inputs under one idempotency key are the same (SR-219). Pure.

Text is compared in NFC with LF line ends: what an editor or a keyboard does to it is no other input. Parts are compared
in order by type, media type and bytes.
"""

from __future__ import annotations

import hashlib
import unicodedata

from zlinkpy.sessions.types import TurnInput


def input_hash(value: TurnInput) -> str:
    """SHA-256 over the normalised input, as 64 hex digits."""
    text = unicodedata.normalize("NFC", value.text.replace("\r\n", "\n"))
    whole = hashlib.sha256()
    for piece in (text, *(f"{part.type}\0{part.media_type}\0{_digest(part.data)}" for part in value.parts)):
        data = piece.encode("utf-8", "surrogatepass")
        # Lengths in between, or two parts could read like one.
        whole.update(len(data).to_bytes(8, "big"))
        whole.update(data)
    return whole.hexdigest()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
