"""Checks of call arguments that every kind of call shares; all of them before anything is sent (SA-250)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from zlinkpy import wire

MAX_MILLISECONDS = 2**31 - 1
"""Longest timeout; the wire carries the rest of a budget as a signed 32-bit number of milliseconds (SA-202)."""


def to_milliseconds(timeout: float) -> int:
    """A timeout in seconds as whole milliseconds, fractions rounded up, at least 1 (SA-202).

    Raises:
        ValueError: Not above zero, NaN, infinite, or longer than 2**31 - 1 ms (24.8 days).
        TypeError: Not a number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
    scaled = timeout * 1000
    if not 0 < scaled <= MAX_MILLISECONDS:
        raise ValueError(f"timeout must be above 0 and at most {MAX_MILLISECONDS / 1000} s, not {timeout!r}")
    nearest = round(scaled)
    # 2.007 s is 2007 ms although 2.007 * 1000 is 2007.0000000000002: binary noise is not a fraction to round up.
    if abs(scaled - nearest) <= scaled * 1e-12:
        return nearest
    return math.ceil(scaled)


def validate_metadata(metadata: Mapping[str, str] | None) -> bytes | None:
    """The metadata frame for a call, or ``None`` where there is nothing to send (SA-276).

    Raises:
        TypeError: Not a mapping, or a key or value that is not `str`.
        ValueError: A key or value the wire cannot carry (NUL, surrogates, an empty key), or more than 1,024 encoded
            bytes in all.
    """
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping of str to str, not {metadata!r}")
    if not metadata:
        return None
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must map str to str, not {key!r} to {value!r}")
    try:
        return wire.encode_metadata(metadata)
    except UnicodeEncodeError as error:
        raise ValueError(f"metadata: {error.object!r} has no UTF-8 form ({error.reason})") from None
