"""When a publisher sends its beacon: at B, B+5, B+10, … where B is the instant its listener is bound ([D8], LV-83).

The schedule knows nothing of events: a publisher that is busy sends its beacons all the same (LV-84). A tick that is
late fires once and the grid stays, as for probes ([D1]).
"""

from __future__ import annotations

from zlinkpy.link.grid import grid_after


class BeaconSchedule:
    """The beacons of one publisher.

    schedule = BeaconSchedule(now)      # the listener is bound
    while True:
        await trio.sleep_until(schedule.next_deadline())
        if schedule.tick(trio.current_time()):
            publisher.publish(BEACON_FRAMES)
    """

    __slots__ = ("_next", "_start")

    def __init__(self, start: float) -> None:
        self._start = start
        self._next = start

    def next_deadline(self) -> float:
        """When the next beacon is due: B itself at first; after a `tick` always later than its `now`."""
        return self._next

    def tick(self, now: float) -> bool:
        """True when one beacon has to leave now."""
        if now < self._next:
            return False
        self._next = grid_after(self._start, now)
        return True
