"""The one owner of all judgements of a host: order, evidence, and what an idle tick costs."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from zlinkpy.link import Action, FailureReason, LivenessOwner, NotReady
from zlinkpy.wire import CloseReason, LivenessAck

from .harness import APP, ROLES, UPDATED_ROLES, Node, ready_node, said


@attrs.define
class Counted:
    """A link that counts how often it is asked."""

    deadline: float | None
    ready: bool = True
    ended: bool = False
    identity: tuple[str, int] | None = ("node-p", 7)
    ticks: list[float] = attrs.field(factory=list)
    asked: int = 0
    changed: Callable[[], None] = lambda: None

    def next_deadline(self) -> float | None:
        self.asked += 1
        return self.deadline

    def tick(self, now: float) -> list[str]:
        self.ticks.append(now)
        self.deadline = now + 5
        return [f"tick {now:g}"]

    def watch(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def move(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.changed()


def test_due_links_are_judged_in_the_order_of_their_deadlines() -> None:
    owner: LivenessOwner[str, str] = LivenessOwner()
    for key, deadline in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 9.0)):
        owner.register(key, Counted(deadline))
    assert owner.next_deadline() == 1.0
    assert owner.tick(0.999) == []
    assert owner.tick(3.0) == [("a", ["tick 3"]), ("b", ["tick 3"]), ("c", ["tick 3"])]
    assert owner.next_deadline() == 8.0
    assert {key for key, _ in owner.tick(8.0)} == {"a", "b", "c"}
    assert owner.tick(9.0) == [("d", ["tick 9"])]


def test_an_idle_tick_asks_no_link() -> None:
    owner: LivenessOwner[int, str] = LivenessOwner()
    links = [Counted(10.0 + index) for index in range(1000)]
    for index, link in enumerate(links):
        owner.register(index, link)
    asked = sum(link.asked for link in links)
    for step in range(100):
        assert owner.tick(step / 100) == []
        assert owner.next_deadline() == 10.0
    assert sum(link.asked for link in links) == asked
    owner.tick(12.0)
    assert [len(link.ticks) for link in links[:4]] == [1, 1, 1, 0]


def test_a_deadline_that_moved_later_costs_one_look_and_one_that_moved_earlier_is_kept() -> None:
    owner: LivenessOwner[str, str] = LivenessOwner()
    late, early, off = Counted(5.0), Counted(50.0), Counted(5.0)
    for key, link in (("late", late), ("early", early), ("off", off)):
        owner.register(key, link)
    late.move(20.0)
    early.move(6.0)
    off.move(None)
    assert owner.tick(5.0) == []
    assert owner.tick(6.0) == [("early", ["tick 6"])]
    assert late.ticks == off.ticks == []
    assert owner.next_deadline() == 11.0
    off.move(7.0)
    assert owner.tick(7.0) == [("off", ["tick 7"])]
    assert owner.tick(20.0)[-1] == ("late", ["tick 20"])


def test_a_key_is_used_once_at_a_time_and_again_after_the_end() -> None:
    owner: LivenessOwner[str, str] = LivenessOwner()
    first, second = Counted(5.0), Counted(6.0)
    owner.register("key", first)
    with pytest.raises(ValueError, match="registered already"):
        owner.register("key", second)
    first.ended = True
    first.changed()
    assert len(owner) == 0
    assert not owner.is_ready("key")
    owner.register("key", second)
    first.move(1.0)
    assert owner.next_deadline() == 6.0
    assert owner.tick(5.5) == []
    assert owner.tick(6.0) == [("key", ["tick 6"])]
    assert first.ticks == []


def test_a_forgotten_link_is_neither_judged_nor_evidence() -> None:
    owner: LivenessOwner[str, str] = LivenessOwner()
    link = Counted(5.0)
    owner.register("key", link)
    assert owner.evidence("node-p")
    owner.forget("key")
    owner.forget("key")
    assert owner.next_deadline() is None
    assert owner.tick(6.0) == []
    assert link.ticks == []
    assert not owner.evidence("node-p")


def test_evidence_names_a_node_and_if_asked_one_run_of_it() -> None:
    owner: LivenessOwner[str, str] = LivenessOwner()
    old, new, unknown = Counted(None), Counted(None), Counted(None)
    old.identity, new.identity, unknown.identity = ("node-p", 7), ("node-p", 3), None
    for key, link in (("old", old), ("new", new), ("unknown", unknown)):
        owner.register(key, link)
    old.ready = False
    assert owner.evidence("node-p")
    assert owner.evidence("node-p", 3)
    assert not owner.evidence("node-p", 7)
    assert not owner.evidence("node-q")
    unknown.identity = ("node-q", 1)
    unknown.changed()
    assert owner.evidence("node-q")
    unknown.identity = ("node-r", 1)
    unknown.changed()
    assert not owner.evidence("node-q")
    assert owner.evidence("node-r")
    assert "3 links, 2 ready" in repr(owner)


@pytest.mark.parametrize("role", ROLES)
def test_every_reader_agrees_in_the_tick_of_an_expiry_and_no_other_peer_is_touched(role: str) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    silent = ready_node(role, owner=owner, key="silent", peer=said(role, "node-p"))
    alive = ready_node(role, owner=owner, key="alive", peer=said(role, "node-q"))
    nodes = {"silent": silent, "alive": alive}
    for now in (5.0, 10.0):
        for key, actions in owner.tick(now):
            nodes[key].take(actions, now)
        alive.receive(APP, LivenessAck(alive.probes[-1][1]), now)
    results = dict(owner.tick(15.0))
    assert set(results) == {"silent", "alive"}
    (not_ready,) = [action for action in results["silent"] if isinstance(action, NotReady)]
    assert not_ready.failure.reason is FailureReason.PEER_DEADLINE
    seen = [silent.pair.ready, owner.is_ready("silent"), owner.evidence("node-p"), silent.pair.selectable]
    assert seen == [False] * 4
    # A client is no target and has no RID: its server asks by the key alone.
    known = [owner.evidence("node-q"), alive.pair.selectable]
    assert known == [role in UPDATED_ROLES] * 2
    assert [alive.pair.ready, owner.is_ready("alive")] == [True] * 2
    assert len(owner) == 1


def test_links_that_come_and_go_leave_nothing_behind() -> None:
    owner: LivenessOwner[int, Action] = LivenessOwner()
    for index in range(200):
        node = Node(ROLES[index % 4], owner=owner, key=index)  # type: ignore[arg-type]
        node.admit(index * 0.1)
        node.take(node.pair.close(CloseReason.ORDERLY, index * 0.1), index * 0.1)
    assert len(owner) == 0
    assert owner.next_deadline() is None
    assert owner._heap == []
    assert owner._by_rid == {}


def test_a_link_that_stays_due_is_asked_once_per_tick_and_holds_nobody_up() -> None:
    owner: LivenessOwner[str, str] = LivenessOwner()

    class Stuck(Counted):
        def tick(self, now: float) -> list[str]:
            self.ticks.append(now)
            return []

    stuck, other = Stuck(1.0), Counted(1.0)
    owner.register("stuck", stuck)
    owner.register("other", other)
    assert owner.tick(1.0) == [("other", ["tick 1"])]
    assert stuck.ticks == other.ticks == [1.0]
    assert owner.next_deadline() == 1.0
