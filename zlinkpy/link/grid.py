"""The grid on which liveness signals leave: start + 5 s, + 10 s, … ([D1], [D8])."""

from __future__ import annotations

from zlinkpy.link.constants import CHECK_INTERVAL


def grid_after(start: float, now: float) -> float:
    """The first grid point strictly after `now`. Computed from `start` each time, so rounding errors cannot add up."""
    step = int((now - start) / CHECK_INTERVAL)
    while start + step * CHECK_INTERVAL <= now:
        step += 1
    return start + step * CHECK_INTERVAL
