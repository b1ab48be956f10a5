"""The size limit of ClientServer records as users set it, as an admission says it and as a socket takes it (wire.md
§5)."""

from __future__ import annotations

from zlinkpy.errors import ConfigurationError
from zlinkpy.wire.limits import U32_MAX

DEFAULT_MAX_MESSAGE_BYTES = 16_777_216

LEAST_MAX_MESSAGE_BYTES = 1024
"""Below it the records that keep a connection up would not fit."""


def check_max_message_bytes(value: int, where: str) -> int:
    """Return `value`, or raise ConfigurationError naming `where`: 0 (no cap) or 1024..2^32-1."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not (value == 0 or LEAST_MAX_MESSAGE_BYTES <= value <= U32_MAX)
    ):
        raise ConfigurationError(
            f"{where}: max_message_bytes must be 0 (no cap) or an integer from {LEAST_MAX_MESSAGE_BYTES} to {U32_MAX}, "
            f"not {value!r}"
        )
    return value


def advertised_limit(max_message_bytes: int) -> int:
    """What an admission says: no cap is the largest number there is."""
    return max_message_bytes or U32_MAX


def transport_limit(max_message_bytes: int) -> int | None:
    """What a socket and the decoder are given."""
    return max_message_bytes if 0 < max_message_bytes < U32_MAX else None
