"""Which turns ran, when, under which fence: written on the server by the turns themselves, judged afterwards.

A turn's beginning is one script on the server that holds the leases. It sees the lease as it is at that instant: the
turn runs under a valid fence if its node holds it, and it overlaps another one if a turn that began under the very same
token has not ended. A turn whose lease passed to somebody else meanwhile is none that counts: it cannot commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgpack
import redis
from attrs import define, field, frozen

LOG: Final = "bench:turns"
GRACE: Final = 2_000
"""Milliseconds between the end of a turn's handler and the death of its node within which its result may be unsaved."""

_BEGIN: Final = """
local h, t = unpack(redis.call('HMGET', KEYS[1], 'h', 't'))
local valid = h == ARGV[1]
local running = redis.call('HMGET', KEYS[2], 't', 'turn')
local overlap = valid and running[1] == t and running[2] ~= ARGV[2]
if valid then redis.call('HSET', KEYS[2], 't', t, 'turn', ARGV[2]) end
local now = redis.call('TIME')
redis.call('RPUSH', KEYS[3], cmsgpack.pack({
  'B', now[1] * 1000 + math.floor(now[2] / 1000), ARGV[2], ARGV[3], ARGV[1], valid and 1 or 0, overlap and 1 or 0}))
"""
_END: Final = """
if redis.call('HGET', KEYS[1], 'turn') == ARGV[1] then redis.call('DEL', KEYS[1]) end
local now = redis.call('TIME')
redis.call('RPUSH', KEYS[2], cmsgpack.pack({'E', now[1] * 1000 + math.floor(now[2] / 1000), ARGV[1]}))
"""


class Ledger:
    """Where a node writes its turns. Blocking."""

    def __init__(self, server: redis.Redis, node: str) -> None:
        self._node = node
        self._begin = server.register_script(_BEGIN)
        self._end = server.register_script(_END)

    def begin(self, session_id: str, turn_id: str, key: str) -> None:
        """A turn's handler begins. Every run of a message has a number of its own in `turn_id`."""
        keys = [f"zl:{{{session_id}}}:lease", f"bench:at:{session_id}", LOG]
        self._begin(keys=keys, args=[self._node, turn_id, key])

    def end(self, session_id: str, turn_id: str) -> None:
        """It ends, however."""
        self._end(keys=[f"bench:at:{session_id}", LOG], args=[turn_id])


@define(eq=False)
class Run:
    """One run of one keyed input. Instants are the server's milliseconds."""

    key: str
    node: str
    began: int
    valid: bool
    overlaps: bool
    ended: int | None = None

    def died_with(self, deaths: Mapping[str, int]) -> bool:
        """Whether its node was killed before the result can be expected to have been kept."""
        death = deaths.get(self.node)
        return death is not None and (self.ended is None or death - self.ended < GRACE)


def read_runs(server: redis.Redis) -> list[Run]:
    """All runs, in the order in which they began."""
    runs: dict[str, Run] = {}
    entries: Any = server.lrange(LOG, 0, -1)
    for entry in entries:
        kind, at, turn, *rest = msgpack.unpackb(entry)
        if kind == "B":
            key, node, valid, overlaps = rest
            runs[turn] = Run(key, node, int(at), bool(valid), bool(overlaps))
        else:
            runs[turn].ended = int(at)
    return list(runs.values())


@frozen(kw_only=True)
class Verdict:
    """What the storm is judged by; all of `bad` must be 0."""

    runs: int
    unfenced: int
    """Runs that began when their lease had passed on already; they can commit nothing."""
    overlaps: int
    doubles_by_death: int
    doubles_by_failure: int
    doubles: list[str] = field(factory=list)
    """Keys that ran twice although no node died over it and no failure was told."""

    @property
    def bad(self) -> dict[str, int]:
        return {"overlapping turns": self.overlaps, "double executions without a death": len(self.doubles)}


def judge(runs: Sequence[Run], deaths: Mapping[str, int], failed: frozenset[str]) -> Verdict:
    """Count what went wrong.

    Args:
        runs: in order of their beginnings.
        deaths: when each killed node died.
        failed: keys of which a turn was reported as failed, but not as lost with its holder.
    """
    by_key: dict[str, list[Run]] = {}
    for run in runs:
        by_key.setdefault(run.key, []).append(run)
    by_death = by_failure = 0
    doubles: list[str] = []
    for key, several in by_key.items():
        for run in several[:-1]:
            if run.died_with(deaths):
                by_death += 1
            elif key in failed:
                by_failure += 1
            else:
                doubles.append(key)
    return Verdict(
        runs=len(runs),
        unfenced=sum(not run.valid for run in runs),
        overlaps=sum(run.overlaps for run in runs),
        doubles_by_death=by_death,
        doubles_by_failure=by_failure,
        doubles=doubles,
    )
