"""Classic fanout: publishers and subscribers on PUB/SUB, each pair with its own notion of *ready* (docs/fanout.md)."""

from __future__ import annotations

from zlinkpy.fanout.core import FanoutCore
from zlinkpy.fanout.events import EventHandlers
from zlinkpy.fanout.publisher import FanoutPublisher, PublisherOptions
from zlinkpy.fanout.status import PublisherPhase, PublisherSnapshot, PublisherStatus, SubscriberStatus
from zlinkpy.fanout.subscriber import SNAPSHOT_PUBLISHER_LIMIT, FanoutSubscriber, ListedPublisher

__all__ = [
    "SNAPSHOT_PUBLISHER_LIMIT",
    "EventHandlers",
    "FanoutCore",
    "FanoutPublisher",
    "FanoutSubscriber",
    "ListedPublisher",
    "PublisherOptions",
    "PublisherPhase",
    "PublisherSnapshot",
    "PublisherStatus",
    "SubscriberStatus",
]
