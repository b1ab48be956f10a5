"""A subscriber's view of its publishers, fed with the bytes of the real codec (LV §7, §8, §14)."""

from __future__ import annotations

import pytest

from zlinkpy.errors import ProtocolError
from zlinkpy.link import (
    Action,
    CloseLane,
    Dial,
    Ended,
    Failure,
    FailureReason,
    LivenessOwner,
    NotReady,
    PairPhase,
    PublisherLink,
    Ready,
    Send,
)
from zlinkpy.wire import BEACON_FRAMES, Beacon, FanoutEvent, Lane, PayloadHead, decode_fanout, encode_fanout

IDENTITY = ("news-u", 7)
SOCKET = Lane.APPLICATION


def event(topic: str = "order", source: str = "news-u") -> list[bytes]:
    return encode_fanout(FanoutEvent(topic, "news", source, PayloadHead("tick"), b"x"))


class Feed:
    """One publisher link with the shell a subscriber would put around it."""

    def __init__(
        self,
        *,
        identity: tuple[str, int] | None = IDENTITY,
        topics: frozenset[str] = frozenset({"order"}),
        owner: LivenessOwner[str, Action] | None = None,
        key: str = "u",
    ) -> None:
        self.link = PublisherLink(identity=identity)
        self.topics = topics
        self.key = key
        self.owner: LivenessOwner[str, Action] = owner if owner is not None else LivenessOwner()
        self.owner.register(key, self.link)
        self.log: list[tuple[float, Action]] = []
        self.handled: list[str] = []

    def take(self, actions: list[Action], now: float) -> list[Action]:
        self.log += [(now, action) for action in actions]
        return actions

    def open(self, now: float = 0.0) -> Feed:
        self.take(self.link.start(now), now)
        self.take(self.link.opened(now), now)
        return self

    def deliver(self, frames: list[bytes] | tuple[bytes, ...], now: float) -> list[Action]:
        try:
            record = decode_fanout(frames)
        except ProtocolError as error:
            return self.take(self.link.violated(error, now), now)
        if isinstance(record, Beacon):
            return self.take(self.link.beacon(now), now)
        actions = self.take(self.link.record(record.source_rid, now), now)
        if self.link.ready and record.topic in self.topics:
            self.handled.append(record.topic)
        return actions

    def run_until(self, now: float) -> None:
        while (due := self.owner.next_deadline()) is not None and due <= now:
            for key, actions in self.owner.tick(due):
                if key == self.key:
                    self.take(actions, due)
            later = self.owner.next_deadline()
            assert later is None or later > due

    def actions(self, kind: type[Action]) -> list[Action]:
        return [action for _, action in self.log if isinstance(action, kind)]

    @property
    def end(self) -> Failure:
        (ended,) = self.actions(Ended)
        assert isinstance(ended, Ended)
        assert ended.failure is not None
        assert ended.failure == self.link.failure
        return ended.failure


def heard(now: float = 0.0, **options: object) -> Feed:
    """A feed that is ready since `now`."""
    feed = Feed(**options).open(now)  # type: ignore[arg-type]
    feed.deliver(BEACON_FRAMES, now)
    assert feed.link.ready
    return feed


def ends(feed: Feed, reason: FailureReason, at: float, *, was_ready: bool = True) -> None:
    assert (feed.end.reason, feed.end.at) == (reason, at)
    assert not feed.link.ready
    assert not feed.owner.is_ready(feed.key)
    assert feed.link.phase is PairPhase.ENDED
    assert feed.link.next_deadline() is None
    assert feed.actions(NotReady) == ([NotReady(feed.end)] if was_ready else [])
    assert isinstance(feed.log[-1][1], Ended)


# -- ready -------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("LV-91")
def test_a_connected_publisher_without_a_record_is_not_ready() -> None:
    feed = Feed()
    assert feed.take(feed.link.start(0.0), 0.0) == [Dial(SOCKET)]
    assert feed.take(feed.link.opened(1.0), 1.0) == []
    assert feed.link.phase is PairPhase.CONNECTING
    assert not feed.link.ready
    assert not feed.owner.is_ready("u")
    assert not feed.owner.evidence("news-u")
    assert feed.link.identity == IDENTITY


@pytest.mark.contract("LV-92")
def test_the_first_event_makes_ready_and_reaches_its_handler() -> None:
    feed = Feed().open()
    assert feed.deliver(event(), 3.0) == [Ready()]
    assert feed.link.ready
    assert feed.owner.is_ready("u")
    assert feed.owner.evidence("news-u", 7)
    assert feed.handled == ["order"]
    assert feed.link.deadline == 18.0


@pytest.mark.contract("LV-93", "LV-102")
def test_the_exact_beacon_makes_ready_and_reaches_nobody() -> None:
    feed = Feed().open()
    assert feed.deliver(BEACON_FRAMES, 3.0) == [Ready()]
    assert feed.link.ready
    assert feed.handled == []
    assert feed.link.last_receive == 3.0


@pytest.mark.contract("LV-101", "LV-78")
def test_nothing_is_ever_sent_to_a_publisher() -> None:
    feed = heard()
    for now in range(1, 100):
        feed.deliver(BEACON_FRAMES if now % 5 == 0 else event(), float(now))
        feed.run_until(float(now))
    feed.deliver([b"broken"], 100.0)
    assert feed.actions(Send) == []
    assert [type(action) for _, action in feed.log] == [Dial, Ready, NotReady, CloseLane, Ended]


@pytest.mark.contract("LV-94")
@pytest.mark.parametrize("identity", [IDENTITY, None], ids=["descriptor withdrawn", "manual endpoint removed"])
@pytest.mark.parametrize("late", [BEACON_FRAMES, event()], ids=["beacon", "event"])
def test_a_record_after_the_withdrawal_revives_nothing(identity: tuple[str, int] | None, late: list[bytes]) -> None:
    feed = Feed(identity=identity).open()
    assert feed.take(feed.link.withdraw(2.0), 2.0)[0] == CloseLane(SOCKET, linger=False)
    assert feed.deliver(late, 2.1) == []
    ends(feed, FailureReason.ORDERLY_CLOSE, 2.0, was_ready=False)
    assert feed.handled == []
    assert len(feed.owner) == 0


def test_withdrawing_a_ready_publisher_ends_ready_at_once() -> None:
    feed = heard()
    feed.take(feed.link.withdraw(2.0), 2.0)
    ends(feed, FailureReason.ORDERLY_CLOSE, 2.0)


@pytest.mark.contract("LV-95")
def test_a_publisher_that_never_sends_stays_connecting_for_ever() -> None:
    feed = Feed().open()
    feed.run_until(3600.0)
    assert feed.link.tick(3600.0) == []
    assert feed.link.phase is PairPhase.CONNECTING
    assert feed.link.next_deadline() is None
    assert feed.actions(CloseLane) == feed.actions(Ended) == []


@pytest.mark.contract("LV-96")
@pytest.mark.parametrize("kind", [BEACON_FRAMES, event()], ids=["beacons alone", "events alone"])
def test_either_kind_alone_keeps_ready(kind: list[bytes]) -> None:
    feed = Feed().open()
    for now in range(0, 600, 12):
        feed.run_until(float(now))
        feed.deliver(kind, float(now))
        assert (feed.link.last_receive, feed.link.deadline) == (float(now), now + 15.0)
    assert feed.link.ready
    assert feed.actions(Ready) == [Ready()]


@pytest.mark.contract("LV-97", "LV-100")
def test_silence_ends_ready_exactly_at_the_deadline() -> None:
    feed = heard()
    feed.deliver(event(), 7.0)
    feed.run_until(21.999)
    assert feed.link.ready
    assert feed.link.tick(21.999) == []
    feed.run_until(22.0)
    ends(feed, FailureReason.PUBLISHER_SILENT, 22.0)
    assert [type(action) for _, action in feed.log][-3:] == [NotReady, CloseLane, Ended]
    assert feed.actions(CloseLane) == [CloseLane(SOCKET, linger=False)]


@pytest.mark.contract("LV-97")
@pytest.mark.parametrize("frames", [BEACON_FRAMES, event(), event(source="other")], ids=["beacon", "event", "foreign"])
def test_a_record_read_at_the_deadline_comes_too_late(frames: list[bytes]) -> None:
    feed = heard()
    feed.deliver(frames, 15.0)
    ends(feed, FailureReason.PUBLISHER_SILENT, 15.0)
    assert feed.handled == []


@pytest.mark.contract("LV-98", "LV-148")
@pytest.mark.parametrize("first", [BEACON_FRAMES, event()], ids=["beacon", "event"])
def test_a_new_socket_is_ready_by_its_own_first_record_only(first: list[bytes]) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    old = heard(owner=owner)
    old.run_until(15.0)
    again = Feed(owner=owner).open(16.0)
    assert not again.link.ready
    assert again.link.deadline is None
    assert again.link.last_receive is None
    assert old.deliver(BEACON_FRAMES, 17.0) == []
    assert not owner.is_ready("u")
    again.deliver(first, 18.0)
    assert owner.is_ready("u")
    assert again.link.deadline == 33.0


@pytest.mark.contract("LV-89")
def test_an_event_nobody_subscribed_to_counts_as_a_receipt_and_reaches_nobody() -> None:
    feed = heard()
    feed.deliver(event("\x01ZLF1\x00"), 9.0)
    assert feed.handled == []
    assert feed.link.deadline == 24.0


@pytest.mark.contract("LV-88")
@pytest.mark.parametrize("topic", ["\x01ZLF", "\x01ZLF1\x00", "\x01ZLF2"])
def test_topics_that_only_resemble_the_reserved_one_are_events(topic: str) -> None:
    feed = Feed(topics=frozenset({topic})).open()
    assert feed.deliver(event(topic), 1.0) == [Ready()]
    assert feed.handled == [topic]


# -- loss --------------------------------------------------------------------------------------------------------------

BROKEN = {
    "beacon of another version": [b"\x01ZLF1", b"ZF\x01\x02"],
    "beacon without payload": [b"\x01ZLF1", b""],
    "beacon of one frame": [b"\x01ZLF1"],
    "beacon of three frames": [b"\x01ZLF1", b"ZF\x01\x01", b""],
    "event without payload": event()[:2],
    "event of five frames": [*event(), b"", b""],
    "event with a broken head": [b"order", b"ZM\x01\x00\x00\xc0", b"x"],
    "event of another command": [b"order", b"ZM\x01\x12\x00" + event()[1][5:], b"x"],
    "topic that is no text": [b"\xff", *event()[1:]],
}


@pytest.mark.contract("LV-105", "LV-106", "LV-108", "LV-82")
@pytest.mark.parametrize("case", BROKEN)
def test_a_malformed_record_ends_its_publisher_at_once_and_no_other(case: str) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    u, v = heard(owner=owner), heard(owner=owner, key="v", identity=("news-v", 7))
    v.deliver(BEACON_FRAMES, 1.0)
    before = list(v.log)
    u.deliver(BROKEN[case], 4.0)
    ends(u, FailureReason.PROTOCOL_ERROR, 4.0)
    assert u.handled == []
    assert u.link.last_receive == 0.0
    assert v.log == before
    assert (v.link.ready, v.link.last_receive, v.link.deadline) == (True, 1.0, 16.0)
    assert owner.is_ready("v")


@pytest.mark.contract("LV-107", "LV-108")
@pytest.mark.parametrize("case", BROKEN)
def test_a_malformed_first_record_never_makes_ready(case: str) -> None:
    feed = Feed().open()
    feed.deliver(BROKEN[case], 4.0)
    ends(feed, FailureReason.PROTOCOL_ERROR, 4.0, was_ready=False)
    assert feed.actions(Ready) == []
    assert feed.link.last_receive is None
    assert feed.deliver(BEACON_FRAMES, 5.0) == []


@pytest.mark.contract("LV-82")
def test_one_silent_publisher_leaves_the_other_alone() -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    u, v = heard(owner=owner), heard(owner=owner, key="v", identity=("news-v", 7))
    v.deliver(BEACON_FRAMES, 5.0)
    v.deliver(BEACON_FRAMES, 10.0)
    log = list(v.log)
    u.run_until(15.0)
    ends(u, FailureReason.PUBLISHER_SILENT, 15.0)
    assert v.log == log
    assert (v.link.ready, v.link.last_receive) == (True, 10.0)
    assert owner.evidence("news-v")
    assert not owner.evidence("news-u")


def test_a_lost_connection_ends_ready_and_has_nothing_left_to_close() -> None:
    feed = heard()
    feed.take(feed.link.lost("disconnected", 3.0), 3.0)
    ends(feed, FailureReason.TRANSPORT_ERROR, 3.0)
    assert feed.end.detail == "disconnected"
    assert feed.actions(CloseLane) == []


@pytest.mark.contract("LV-176")
def test_a_dial_that_gets_no_transport_ends_after_five_seconds() -> None:
    feed = Feed()
    feed.take(feed.link.start(10.0), 10.0)
    feed.run_until(14.999)
    assert feed.actions(Ended) == []
    feed.run_until(15.0)
    ends(feed, FailureReason.TRANSPORT_ERROR, 15.0, was_ready=False)
    assert feed.end.detail == "no connection within 5 s"
    assert feed.actions(CloseLane) == [CloseLane(SOCKET, linger=False)]


def test_a_record_shows_that_the_transport_is_connected() -> None:
    feed = Feed()
    feed.take(feed.link.start(0.0), 0.0)
    assert feed.deliver(BEACON_FRAMES, 1.0) == [Ready()]
    feed.run_until(14.0)
    assert feed.link.ready
    assert feed.link.opened(14.0) == []


def test_an_event_of_another_publisher_means_that_the_endpoint_has_a_new_owner() -> None:
    feed = heard()
    feed.deliver(event(source="news-x"), 3.0)
    ends(feed, FailureReason.IDENTITY_MISMATCH, 3.0)
    assert "news-x" in feed.end.detail
    assert feed.handled == []


def test_what_a_record_claims_gives_a_manual_publisher_no_identity() -> None:
    feed = Feed(identity=None).open()
    feed.deliver(event(source="news-x"), 1.0)
    feed.deliver(event(source="news-y"), 2.0)
    assert feed.handled == ["order", "order"]
    assert feed.link.identity is None
    assert not feed.owner.evidence("news-x")
    assert repr(feed.link) == "<PublisherLink ? ready>"
    assert repr(heard().link) == "<PublisherLink news-u ready>"


@pytest.mark.contract("LV-121")
def test_a_descriptor_of_another_run_ends_ready_at_once() -> None:
    feed = heard()
    feed.take(feed.link.fail(FailureReason.GENERATION_MISMATCH, "the descriptor says generation 8", 3.0), 3.0)
    ends(feed, FailureReason.GENERATION_MISMATCH, 3.0)


def test_nothing_happens_before_the_start_and_after_the_end() -> None:
    idle = PublisherLink()
    assert idle.opened(0.0) == idle.beacon(0.0) == idle.lost("early", 0.0) == []
    assert not idle.ready
    feed = heard()
    feed.take(feed.link.lost("disconnected", 3.0), 3.0)
    log = list(feed.log)
    link = feed.link
    later: list[list[Action]] = [
        link.start(4.0),
        link.opened(4.0),
        link.record("news-u", 4.0),
        link.beacon(4.0),
        link.violated(ProtocolError("late", field="body"), 4.0),
        link.lost("late", 4.0),
        link.withdraw(4.0),
        link.fail(FailureReason.REPLACED, "late", 4.0),
        link.tick(400.0),
    ]
    assert later == [[]] * len(later)
    assert feed.log == log
