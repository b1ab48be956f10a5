"""The resolver at run time: reads, asks for evidence, judges, and keeps what is Ready (facts §7, LO-245..262, LV-161).

Concurrent calls for one object share one read, with one exception: a call takes anything but Ready only from a read
that was sent after the call began. Otherwise "create, then call" could be told Missing by a read that is older than
the creation (LO-261).

A cached route is a fact about rows. Whether its owner can be reached now is asked anew for every call (LO-248), and a
call that finds it cannot reads again: the object may have moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import trio
from attrs import define, field

from zlinkpy.errors import UnavailableError
from zlinkpy.location.authority.repository import AuthorityRepository
from zlinkpy.location.authority.resolution import (
    Finding,
    Lacking,
    Link,
    Orphan,
    Ready,
    Resolution,
    StoreFailure,
    Unavailable,
    find,
    route_of,
)
from zlinkpy.location.authority.route_cache import RouteCache
from zlinkpy.location.authority.rows import ObjectKey, Owner
from zlinkpy.location.authority.steps import Look, Seen
from zlinkpy.location.calls import perform
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.requests import Answer, Lookup
from zlinkpy.location.store import Found, LocationStore, Missing
from zlinkpy.location.store import StoreFailure as StoreProblem


class PeerEvidence(Protocol):
    """What liveness tells: `LivenessOwner` is one. Reading it has no effect on anything."""

    def evidence(self, rid: str, generation: int = 0) -> bool:
        """True when some link to that run of that node is ready."""
        ...


@define
class _Flight:
    """One read under way. `number` orders it against the calls that join it."""

    number: int
    landed: trio.Event = field(factory=trio.Event)
    result: Resolution | None = None
    """None when it ended without one: its caller was cancelled, or a row could not be understood."""


class Resolver:
    """Where an object is: the only component that combines authority with evidence (LV-161).

    Args:
        nodes: mesh name -> routing id and lifecycle generation of this process's node in it; may change while running.
        cache: shared with whoever learns that a route is wrong.
    """

    def __init__(
        self,
        store: LocationStore,
        repository: AuthorityRepository,
        evidence: PeerEvidence,
        nodes: Mapping[str, tuple[str, int]],
        options: LocationOptions,
        cache: RouteCache,
    ) -> None:
        self._store = store
        self._repository = repository
        self._evidence = evidence
        self._nodes = nodes
        self._timeout = options.validate().owner_lease_renew_timeout
        self._cache = cache
        self._flights: dict[ObjectKey, _Flight] = {}
        self._numbers = 0

    async def resolve(self, key: ObjectKey) -> Resolution:
        """One closed result. Bounded by the renew timeout for each of at most three reads, as long as the rows hold
        still; cancelling is safe at any point.

        Raises StoreCorruption for rows that cannot be understood, InvalidOperationError for an id that cannot be one.
        """
        key.encode()
        await trio.lowlevel.checkpoint()
        self._numbers += 1
        number = self._numbers
        route = self._cache.get(key, trio.current_time())
        if route is not None:
            if self._link(route.owner) in (Link.LOCAL, Link.READY):
                return Ready(route)
            self._cache.drop(key)
        while (flight := self._flights.get(key)) is not None:
            await flight.landed.wait()
            if isinstance(flight.result, Ready) or (flight.result is not None and flight.number > number):
                return flight.result
        return await self._lead(key)

    async def _lead(self, key: ObjectKey) -> Resolution:
        self._numbers += 1
        flight = self._flights[key] = _Flight(self._numbers)
        try:
            flight.result = await self._find(key)
            return flight.result
        finally:
            del self._flights[key]
            flight.landed.set()

    async def _find(self, key: ObjectKey) -> Resolution:
        while True:
            began = trio.current_time()
            finding, last = await self._drive(key)
            resolution = finding.resolution
            if not isinstance(resolution, Orphan):
                break
            refused = await self._release(resolution)
            if refused is not None:
                return refused
        self._cache.drop(key)
        if isinstance(resolution, Ready):
            self._cache.put(resolution.route, read_at=began, lease_read_at=last, lease_seconds=finding.lease_seconds)
        elif isinstance(resolution, Unavailable) and resolution.why is Lacking.LEASE:
            owner = resolution.route.owner
            self._cache.lapsed(owner.owner_id, owner.lease_generation)
        return resolution

    async def _release(self, orphan: Orphan) -> Resolution | None:
        """Release it, then read again; a host that may not write says so instead of guessing."""
        try:
            await self._repository.release_orphan(orphan.record, trio.current_time() + self._timeout)
        except StoreProblem as problem:
            return StoreFailure(problem)
        except UnavailableError:
            return Unavailable(Lacking.LEASE, route_of(orphan.record))
        return None

    async def _drive(self, key: ObjectKey) -> tuple[Finding, float]:
        """The finding, and the time before its last look was sent."""
        steps = find(key, self._link)
        asked = trio.current_time()
        try:
            look = next(steps)
            while True:
                assert isinstance(look, Look)  # finding writes nothing
                asked = trio.current_time()
                seen = await self._look(look)
                if isinstance(seen, StoreProblem):
                    return Finding(StoreFailure(seen)), asked
                look = steps.send(seen)
        except StopIteration as ended:
            finding: Finding = ended.value
        finally:
            steps.close()
        return finding, asked

    async def _look(self, look: Look) -> tuple[Seen, ...] | StoreProblem:
        answers: dict[bytes, Answer] = {}

        async def read(key: bytes) -> None:
            answers[key] = await perform(self._store, Lookup(key, self._timeout))

        async with trio.open_nursery() as nursery:
            for key in look.keys:
                nursery.start_soon(read, key)
        seen: list[Seen] = []
        for answer in (answers[key] for key in look.keys):
            if isinstance(answer, Missing | Found):
                seen.append(answer)
            elif isinstance(answer, StoreProblem):
                return answer
            else:
                assert isinstance(answer, Exception)
                raise answer
        return tuple(seen)

    def _link(self, owner: Owner) -> Link:
        here = self._nodes.get(owner.mesh_name)
        if here is None:
            return Link.NO_MESH
        if here == (owner.rid, owner.lifecycle_generation):
            return Link.LOCAL
        ready = self._evidence.evidence(owner.rid, owner.lifecycle_generation)
        return Link.READY if ready else Link.NOT_READY
