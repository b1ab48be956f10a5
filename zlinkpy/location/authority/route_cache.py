"""Routes that were Ready a moment ago (facts §7, LO-256..262). Pure: times are seconds of one monotonic clock.

An entry lives until the earlier of its age limit and the local deadline of its owner's lease, both counted from before
the read that they come from, so that a late answer makes it shorter. Nothing but Ready is ever in here. What is known
to be wrong is dropped at once; a wrong route that nobody noticed costs one stale answer.
"""

from __future__ import annotations

from collections import OrderedDict

from attrs import frozen

from zlinkpy.location.authority.resolution import Route, RouteFence
from zlinkpy.location.authority.rows import ObjectKey
from zlinkpy.location.options import LocationOptions

CAPACITY = 65_536
"""Routes kept; beyond it the least recently used go (LO-262)."""


@frozen
class _Entry:
    route: Route
    valid_until: float


class RouteCache:
    """See the module. `max_age` (seconds, 0 = off) may change at run time; entries made before keep their end
    (LO-260).
    """

    def __init__(self, options: LocationOptions, *, capacity: int = CAPACITY) -> None:
        self.max_age = options.route_cache_max_age
        self._margin = options.owner_lease_fencing_margin
        self._capacity = capacity
        self._entries: OrderedDict[ObjectKey, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: ObjectKey, now: float) -> Route | None:
        """The route, while it may be used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now >= entry.valid_until:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry.route

    def put(self, route: Route, *, read_at: float, lease_read_at: float, lease_seconds: float) -> None:
        """Keep a route that was Ready; both times are from before the read was sent."""
        until = min(read_at + self.max_age, lease_read_at + lease_seconds - self._margin)
        self._entries.pop(route.key, None)
        if self.max_age <= 0 or until <= read_at:
            return
        self._entries[route.key] = _Entry(route, until)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def drop(self, key: ObjectKey) -> None:
        """Forget a route, whatever it is."""
        self._entries.pop(key, None)

    def observed(self, key: ObjectKey, version: str | None) -> None:
        """A read that began later saw the row under `version` (None: no row); another version drops the route (C16)."""
        entry = self._entries.get(key)
        if entry is not None and entry.route.version != version:
            del self._entries[key]

    def stale(self, route: Route) -> None:
        """The node at the end of `route` answered that it is not the owner: drop that route, but not a newer one."""
        self._drop_if(route.key, route.fence)

    def followed(self, key: ObjectKey, source: RouteFence) -> None:
        """A previous owner forwarded for the route with this fence; a newer entry stays (LO-279, LO-280)."""
        self._drop_if(key, source)

    def _drop_if(self, key: ObjectKey, fence: RouteFence) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.route.fence == fence:
            del self._entries[key]

    def lapsed(self, owner_id: str, lease_generation: int) -> None:
        """A run's lease was seen to have lapsed: nothing leads to it any more."""
        gone = [
            key
            for key, entry in self._entries.items()
            if (entry.route.owner.owner_id, entry.route.owner.lease_generation) == (owner_id, lease_generation)
        ]
        for key in gone:
            del self._entries[key]

    def clear(self) -> None:
        """The store came back: what was read before may be from another life of it (LO-259)."""
        self._entries.clear()
