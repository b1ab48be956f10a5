"""One publisher as a subscriber hears it: the shell around `PublisherLink`, and the wish to be connected (LV §8, §14).

Every attempt has a SUB socket of its own, connected to this one publisher and used once (LV-79..81); the next attempt
begins after the previous socket was seen closed, with backoff. What is read from a socket of an attempt that has ended
changes nothing (LV-94, LV-125).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from zlinkpy.errors import ConfigurationError, ProtocolError
from zlinkpy.fanout.status import PublisherPhase, PublisherSnapshot
from zlinkpy.link import (
    Action,
    Backoff,
    CloseLane,
    Dial,
    DialIntent,
    Ended,
    Expectation,
    Failure,
    FailureReason,
    NotReady,
    PublisherLink,
    Ready,
)
from zlinkpy.security import KeyRefusedError
from zlinkpy.telemetry import get_logger
from zlinkpy.transport import Subscription, SubscriptionSink
from zlinkpy.wire import Beacon, FanoutEvent, decode_fanout

log = get_logger("zlinkpy.fanout")


class Channel(Protocol):
    """What one publisher's shell needs of its subscriber."""

    @property
    def channel(self) -> str: ...
    def now(self) -> float: ...
    def backoff(self) -> Backoff: ...
    def open(self, endpoint: str, expected: Expectation, sink: SubscriptionSink) -> Subscription: ...
    def started(self, heard: HeardPublisher, link: PublisherLink) -> None: ...
    def deadline_moved(self, deadline: float | None) -> None: ...
    def became_ready(self, heard: HeardPublisher) -> None: ...
    def lost(self, heard: HeardPublisher, failure: Failure) -> None: ...
    def settled(self, heard: HeardPublisher) -> None: ...
    def event(self, event: FanoutEvent, size: int, subscription: Subscription) -> None: ...


class _Attempt:
    """One SUB socket's owner. It keeps its link, so that nothing late reaches the next attempt's."""

    __slots__ = ("heard", "link")

    def __init__(self, heard: HeardPublisher, link: PublisherLink) -> None:
        self.heard = heard
        self.link = link

    def opened(self, subscription: Subscription, /) -> None:
        self.heard.perform_on(self.link, self.link.opened(self.heard.owner.now()))

    def received(self, subscription: Subscription, frames: list[bytes], /) -> None:
        self.heard.received(self.link, subscription, frames)

    def closed(self, subscription: Subscription, cause: str, /) -> None:
        self.heard.closed(self.link, cause, security=subscription.security_failed)


class HeardPublisher:
    """One publisher of a channel that this process wants to hear.

    Args:
        expectation: RID and generation from the descriptor; empty for an endpoint given by hand.
    """

    def __init__(self, owner: Channel, endpoint: str, expectation: Expectation) -> None:
        self.owner = owner
        self.intent = DialIntent(endpoint, expectation, owner.backoff(), owner.now())
        self.link: PublisherLink | None = None
        self.last_failure: Failure | None = None
        self._subscription: Subscription | None = None
        self.was_ready = False
        self._open_sockets = 0

    def __repr__(self) -> str:
        return f"<HeardPublisher {self.rid or self.intent.endpoint} {self.phase.value}>"

    @property
    def rid(self) -> str | None:
        """The RID of its descriptor."""
        return self.intent.expectation.rid

    @property
    def ready(self) -> bool:
        """Answered by the link's one predicate (LV-25)."""
        return self.link is not None and self.link.ready

    @property
    def is_gone(self) -> bool:
        """True when no socket of it is left."""
        return not self._open_sockets

    @property
    def phase(self) -> PublisherPhase:
        """For the diagnostic snapshot."""
        if self.ready:
            return PublisherPhase.READY
        if self.was_ready:
            return PublisherPhase.RECONNECTING
        return PublisherPhase.CONNECTING if self.intent.dials else PublisherPhase.CONFIGURED

    def snapshot(self) -> PublisherSnapshot:
        """A copy of where it stands."""
        return PublisherSnapshot(
            rid=self.rid,
            endpoint=self.intent.endpoint,
            phase=self.phase,
            last_failure=self.last_failure,
            last_receive=self.link.last_receive if self.link is not None else None,
            dials=self.intent.dials,
        )

    # -- events --------------------------------------------------------------------------------------------------------

    def dial_if_due(self, now: float) -> None:
        """Begin an attempt when it is time for one."""
        if not self.intent.due(now):
            return
        expected = self.intent.expectation
        link = PublisherLink(identity=None if expected.rid is None else (expected.rid, expected.generation))
        self.link = link
        self.intent.dialled()
        self.owner.started(self, link)
        self.perform_on(link, link.start(now))

    def retarget(self, endpoint: str, expectation: Expectation, now: float) -> None:
        """The descriptor changed: another endpoint or run is another connection (LV-98, LV-150)."""
        link = self.link
        if self.intent.retarget(endpoint, expectation, now) and link is not None:
            self.perform_on(link, link.fail(FailureReason.REPLACED, "its descriptor names another run", now))

    def withdraw(self, now: float) -> None:
        """The descriptor or the endpoint is gone: close, for good (LV-94)."""
        self.intent.withdraw()
        if self.link is not None:
            self.perform_on(self.link, self.link.withdraw(now))
        self.owner.settled(self)

    def received(self, link: PublisherLink, subscription: Subscription, frames: list[bytes]) -> None:
        """One record of an attempt."""
        if link.ended:
            return
        now = self.owner.now()
        try:
            event = decode_fanout(frames)
            if not isinstance(event, Beacon) and event.channel_name != self.owner.channel:
                raise ProtocolError(f"is an event of channel {event.channel_name!r}", field="event.channelName")
        except ProtocolError as error:
            log.warning(
                "channel %s: closing the connection with publisher %s: it sent a malformed record (%s)",
                self.owner.channel,
                self.rid or self.intent.endpoint,
                error,
            )
            self.perform_on(link, link.violated(error, now))
            return
        if isinstance(event, Beacon):
            self._heard(link, link.beacon(now))
            return
        self._heard(link, link.record(event.source_rid, now))
        if link.ready:
            self.owner.event(event, sum(map(len, frames)), subscription)

    def _heard(self, link: PublisherLink, actions: Sequence[Action]) -> None:
        # Nearly always nothing: the deadline has moved later, which nobody has to be told.
        if actions:
            self.perform_on(link, actions)

    def closed(self, link: PublisherLink, cause: str, *, security: bool) -> None:
        """A socket was seen closed; `security`: for a matter of keys."""
        now = self.owner.now()
        self._open_sockets -= 1
        if link is self.link:
            self._subscription = None
        reason = FailureReason.SECURITY_MISMATCH if security else FailureReason.TRANSPORT_ERROR
        self.perform_on(link, link.lost(cause, now, reason))
        self.intent.lane_closed(now)
        self.owner.deadline_moved(self.intent.next_deadline())
        self.owner.settled(self)

    # -- actions -------------------------------------------------------------------------------------------------------

    def perform(self, actions: Sequence[Action]) -> None:
        """Carry out what the liveness owner found due."""
        assert self.link is not None
        self.perform_on(self.link, actions)

    def perform_on(self, link: PublisherLink, actions: Sequence[Action]) -> None:
        """Carry out what the machine of one attempt decided, in its order."""
        for action in actions:
            match action:
                case Dial():
                    self._open(link)
                case Ready():
                    self.was_ready = True
                    self.intent.ready()
                    self.owner.became_ready(self)
                case NotReady(failure=failure):
                    self.last_failure = failure
                    self.owner.lost(self, failure)
                case CloseLane():
                    if self._subscription is not None:
                        self._subscription.close()
                case Ended(failure=failure):
                    self._ended(failure)
                case _:
                    raise AssertionError(f"no action of a publisher link: {action!r}")
        self.owner.deadline_moved(link.next_deadline())

    def _open(self, link: PublisherLink) -> None:
        try:
            self._subscription = self.owner.open(self.intent.endpoint, self.intent.expectation, _Attempt(self, link))
        except ConfigurationError as error:
            # What a descriptor says is not ours to trust: a failed attempt like any other.
            reason = FailureReason.TRANSPORT_ERROR
            if isinstance(error, KeyRefusedError):
                reason = FailureReason.SECURITY_MISMATCH
            self.perform_on(link, link.lost(error.message, self.owner.now(), reason))
        else:
            self._open_sockets += 1
            self.intent.lane_opened()

    def _ended(self, failure: Failure | None) -> None:
        self.link = None
        if failure is not None:
            if not self.was_ready and self.last_failure is None:
                log.info(
                    "channel %s: no connection with publisher %s: %s",
                    self.owner.channel,
                    self.rid or self.intent.endpoint,
                    failure.detail,
                )
            self.last_failure = failure
        self.intent.ended(self.owner.now())
        self.owner.deadline_moved(self.intent.next_deadline())
