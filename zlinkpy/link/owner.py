"""The one place of a host that judges peers by time (LV-05).

Every connection of every topology is registered here; the host's management loop sleeps until `next_deadline` and calls
`tick`. Selection, routing, the resolver and the snapshot all ask this object or the link it holds, and both read the
link's one `ready` predicate, so no two readers can disagree at any instant (LV-06).

It has no access to a store and knows no owner, lease or authority: its only output besides a link's own actions is
availability evidence (LV-160).

Cost: a heap of deadlines with lazy invalidation. A deadline that moves later (every answered probe) costs nothing
until its old entry comes up; one that moves earlier pushes an entry. A tick is O(due · log n), an idle one O(1). An
entry left behind by a link that is gone is dropped when its time comes, at most PEER_DEADLINE seconds later.

Rejected: a timer per connection. Ten thousand sleeping tasks cost memory, and two of them that fall due together would
run with other tasks in between: readers could see one judgement without the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from attrs import define

KeyT = TypeVar("KeyT", bound=Hashable)
ActionT = TypeVar("ActionT")
ActionT_co = TypeVar("ActionT_co", covariant=True)


class Judged(Protocol[ActionT_co]):
    """A link machine as its owner sees it; `Pair` is one."""

    @property
    def ready(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    @property
    def identity(self) -> tuple[str, int] | None:
        """RID and lifecycle generation, once known."""

    def next_deadline(self) -> float | None: ...

    def tick(self, now: float) -> Sequence[ActionT_co]: ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the deadline, the identity or the end may have changed."""


@define(slots=True, eq=False)
class _Member(Generic[ActionT]):
    link: Judged[ActionT]
    token: int
    """Tells the entries of this registration from those of an earlier one under the same key."""
    scheduled: float | None = None
    """Time of this member's live heap entry; any other entry of it is stale."""
    identity: tuple[str, int] | None = None
    """The identity under which it is indexed."""


class LivenessOwner(Generic[KeyT, ActionT]):
    """Every peer judgement of one host.

    Keys are the caller's, one per link. A link that ends leaves by itself; `forget` is for one dropped earlier.
    """

    def __init__(self) -> None:
        self._members: dict[KeyT, _Member[ActionT]] = {}
        self._by_rid: dict[str, dict[KeyT, None]] = {}
        self._heap: list[tuple[float, int, KeyT]] = []
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        ready = sum(member.link.ready for member in self._members.values())
        return f"<LivenessOwner {len(self._members)} links, {ready} ready, next at {self.next_deadline()}>"

    def register(self, key: KeyT, link: Judged[ActionT]) -> None:
        """Take over the judgement of `link`.

        Raises:
            ValueError: `key` is registered already.
        """
        if key in self._members:
            raise ValueError(f"link {key!r} is registered already")
        self._tokens += 1
        self._members[key] = _Member(link, self._tokens)
        link.watch(lambda: self._changed(key, link))
        self._changed(key, link)

    def forget(self, key: KeyT) -> None:
        """Judge `key` no longer; unknown keys are ignored."""
        member = self._members.pop(key, None)
        if member is not None and member.identity is not None:
            self._unindex(key, member.identity[0])

    def next_deadline(self) -> float | None:
        """The earliest instant at which `tick` may have something to do, or None."""
        while self._heap and not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def tick(self, now: float) -> list[tuple[KeyT, list[ActionT]]]:
        """Judge every link that is due at `now` and return what each asks for, in the order of their deadlines.

        When this returns, all judgements are in effect: a link that expired is not ready for any reader, whether or not
        its actions have been performed yet (LV-76).
        """
        due: list[tuple[KeyT, _Member[ActionT]]] = []
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._is_live(entry):
                member = self._members[entry[2]]
                member.scheduled = None
                due.append((entry[2], member))
        # Each link once per call: one that stays due cannot keep the others waiting.
        results: list[tuple[KeyT, list[ActionT]]] = []
        for key, member in due:
            deadline = member.link.next_deadline()
            if deadline is not None and deadline <= now:
                actions = list(member.link.tick(now))
                if actions:
                    results.append((key, actions))
            if member.scheduled is None:
                self._changed(key, member.link)
        return results

    def is_ready(self, key: KeyT) -> bool:
        """The link's own predicate; False for a link that is not registered (any more)."""
        member = self._members.get(key)
        return member is not None and member.link.ready

    def evidence(self, rid: str, generation: int = 0) -> bool:
        """True when some link to that node is ready.

        Args:
            rid: the node.
            generation: only that run of it; 0 asks for any (another generation is another process, LV-132).
        """
        for key in self._by_rid.get(rid, ()):
            member = self._members[key]
            matches = member.identity is not None and generation in (0, member.identity[1])
            if matches and member.link.ready:
                return True
        return False

    def _changed(self, key: KeyT, link: Judged[ActionT]) -> None:
        member = self._members.get(key)
        if member is None or member.link is not link:
            return  # a link that was forgotten still reports
        if link.ended:
            self.forget(key)
            return
        if member.identity != link.identity:
            if member.identity is not None:
                self._unindex(key, member.identity[0])
            member.identity = link.identity
            if member.identity is not None:
                self._by_rid.setdefault(member.identity[0], {})[key] = None
        deadline = link.next_deadline()
        if deadline is not None and (member.scheduled is None or deadline < member.scheduled):
            member.scheduled = deadline
            heapq.heappush(self._heap, (deadline, member.token, key))

    def _unindex(self, key: KeyT, rid: str) -> None:
        keys = self._by_rid[rid]
        del keys[key]
        if not keys:
            del self._by_rid[rid]

    def _is_live(self, entry: tuple[float, int, KeyT]) -> bool:
        at, token, key = entry
        member = self._members.get(key)
        return member is not None and member.token == token and member.scheduled == at
