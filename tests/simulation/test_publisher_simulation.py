"""One publisher link under random events.

The invariants, each in one sentence:

- evidence: a link is ready exactly from its first valid record until 15 s pass without one or something ends it;
- end: it ends exactly once, with `Ended` as the last action it ever returns;
- edges: `NotReady` comes exactly once for a link that was ready and never for one that was not;
- waking: after a tick nothing is due any more, and a connected link that was never heard has no deadline at all.

The run prints what it reached and fails when something it is there to reach was never reached.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from zlinkpy.errors import ProtocolError
from zlinkpy.link import (
    DIAL_DEADLINE,
    PEER_DEADLINE,
    Action,
    Ended,
    FailureReason,
    LivenessOwner,
    NotReady,
    PublisherLink,
    Ready,
)

REACHED = (
    *(f"ended: {reason}" for reason in ("publisher_silent", "transport_error", "protocol_error", "identity_mismatch")),
    "ended: orderly_close",
    "ended while ready",
    "ended while connecting",
    "heard again",
    "record after the end",
    "record at the deadline",
    "an hour of nothing",
)

events = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.5, 5.0, 5.0, 14.999, 15.0])),
    st.tuples(st.just("late"), st.sampled_from([15.0, 40.0])),
    st.tuples(st.sampled_from(["event", "beacon", "event", "beacon"]), st.none()),
    st.tuples(st.sampled_from(["foreign", "violated", "lost", "withdraw", "fail"]), st.none()),
)


def simulate(known: bool, opens: bool, script: list[tuple[str, Any]], reached: Counter[str]) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    link = PublisherLink(identity=("news-u", 7) if known else None)
    owner.register("u", link)
    now = 0.0
    log: list[Action] = []
    # The books of an observer: when the link was dialled, when it was heard last, whether it is over.
    evidence: float | None = None
    connected = over = False

    def take(actions: list[Action]) -> None:
        nonlocal over
        for action in actions:
            assert not over, f"{action} after the end"
            log.append(action)
            if isinstance(action, Ended):
                over = True
                assert action.failure is not None
                assert action.failure == link.failure
                reached[f"ended: {action.failure.reason}"] += 1
                reached[f"ended while {'connecting' if evidence is None else 'ready'}"] += 1

    def ticks(until: float) -> None:
        nonlocal now
        while (due := owner.next_deadline()) is not None and due <= until:
            now = max(now, due)
            for _, actions in owner.tick(now):
                take(actions)
            later = owner.next_deadline()
            assert later is None or later > now
        now = max(now, until)

    def overdue() -> bool:
        if evidence is not None:
            return now >= evidence + PEER_DEADLINE
        return not connected and now >= DIAL_DEADLINE

    take(link.start(now))
    if opens:
        take(link.opened(now))
        connected = True
    for what, argument in script:
        if what in ("event", "beacon", "foreign") and over:
            reached["record after the end"] += 1
        match what:
            case "wait":
                ticks(now + argument)
            case "late":  # the process stands still: the next record is read before the tick
                now += argument
                valid = not over and not overdue()
                reached["record at the deadline"] += overdue() and not over
                take(link.beacon(now))
                if valid:
                    evidence, connected = now, True
            case "event" | "beacon":
                valid = not over and not overdue()
                take(link.record("news-u", now) if what == "event" else link.beacon(now))
                if valid:
                    reached["heard again"] += evidence is not None
                    evidence, connected = now, True
            case "foreign":
                valid = not known and not over and not overdue()
                take(link.record("news-x", now))
                if valid:
                    evidence, connected = now, True
            case "violated":
                take(link.violated(ProtocolError("no", field="body"), now))
            case "lost":
                take(link.lost("reset", now))
            case "withdraw":
                take(link.withdraw(now))
            case "fail":
                take(link.fail(FailureReason.REPLACED, "told so", now))
        ticks(now)
        assert link.ended is over
        assert link.ready is (not over and evidence is not None and now < evidence + PEER_DEADLINE)
        assert owner.is_ready("u") is link.ready
        if evidence is None and connected and not over:
            assert link.next_deadline() is None
    if evidence is None and connected and not over:
        ticks(now + 3600.0)
        reached["an hour of nothing"] += 1
        assert not over
    kinds = [type(action) for action in log]
    assert kinds.count(Ended) == over
    assert kinds.count(Ready) == (evidence is not None)
    assert kinds.count(NotReady) == (over and evidence is not None)
    assert len(owner) == (not over)


def test_a_publisher_link_keeps_its_promises() -> None:
    reached: Counter[str] = Counter()

    @settings(max_examples=600, derandomize=True, deadline=None, database=None)
    @given(known=st.booleans(), opens=st.sampled_from([True, True, False]), script=st.lists(events, max_size=10))
    def run(known: bool, opens: bool, script: list[tuple[str, Any]]) -> None:
        simulate(known, opens, script, reached)

    run()
    for name, count in sorted(reached.items()):
        print(f"{count:8} {name}")
    assert [name for name in REACHED if not reached[name]] == []
