"""What a publisher or subscriber of one channel shows (OB-21, LV-164..169). Copies; bounded."""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen

from zlinkpy.link import Failure


class PublisherPhase(StrEnum):
    """Where the connection with one publisher stands (LV-164); nothing is admitted on a one-way connection."""

    CONFIGURED = "configured"
    CONNECTING = "connecting"
    READY = "ready"
    RECONNECTING = "reconnecting"


@frozen(kw_only=True)
class PublisherSnapshot:
    """One publisher as its subscriber sees it. Times are seconds of the host's monotonic clock."""

    rid: str | None
    """None for a configured endpoint: what an event claims is no identity."""
    endpoint: str
    phase: PublisherPhase
    last_failure: Failure | None
    last_receive: float | None
    dials: int


@frozen(kw_only=True)
class SubscriberStatus:
    """One channel's subscriber at one instant."""

    channel_name: str
    ready_publishers: int
    publishers: tuple[PublisherSnapshot, ...]
    omitted: int


@frozen(kw_only=True)
class PublisherStatus:
    """One channel's publisher at one instant."""

    channel_name: str
    rid: str
    endpoint: str | None
    published: int
    """Events, beacons left out."""
    subscribers: int
