"""The fixed times of connections, each defined here and nowhere else (LV-01).

Plain module constants on purpose: a settings field, however well hidden, would let two ends of one connection disagree
about what "gone" means (LV-03). All values are seconds of the monotonic clock.
"""

from __future__ import annotations

from typing import Final

CHECK_INTERVAL: Final = 5.0
"""Distance of two liveness signals of one connection: probes at T+5, T+10, …, beacons at B, B+5, … ([D1], [D8])."""

PEER_DEADLINE: Final = 15.0
"""How long a connection stays ready without evidence. At exactly this age it is over ([D2])."""

DIAL_DEADLINE: Final = 5.0
"""From a dial to the `admit` of that lane (wire.md §12). Beyond it the attempt ends with `transport_error` (LV-176)."""

BACKOFF_FIRST: Final = 0.1
"""Delay before the first retry of an endpoint (wire.md §12)."""

BACKOFF_MAX: Final = 5.0
"""Where the doubling stops. Jitter is applied afterwards, so a delay never exceeds this times 1 + BACKOFF_JITTER."""

BACKOFF_JITTER: Final = 0.2
"""Each delay is spread evenly over 1 ± this, so that peers of a restarted node do not come back in step."""

REPLIES_GRACE = 2.0
"""Seconds after the peer's `close` for which its completion lane is read on: its replies may still be under way."""

MESSAGES_GRACE = PEER_DEADLINE
"""Seconds without a record after which the application lane of a peer that left without a word is given up."""
