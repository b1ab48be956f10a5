"""What can be subscribed to, in both transports: prefixes of a record's first frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Far beyond any topic; a subscriber that sends a longer one is dropped, so that none can fill a publisher's memory
# with a single topic.
TOPIC_BYTES = 64 << 10


def check_topics(topics: Sequence[bytes]) -> None:
    """Raise ValueError when there is none or one is too long, TypeError when one is not bytes."""
    if not topics:
        raise ValueError("a subscription has at least one topic; b'' stands for all")
    for topic in topics:
        if not isinstance(topic, bytes):
            raise TypeError(f"a topic is bytes, not {type(topic).__name__}")
        if len(topic) > TOPIC_BYTES:
            raise ValueError(f"a topic has at most {TOPIC_BYTES} bytes, not {len(topic)}")


def check_published(frames: Sequence[bytes]) -> None:
    """Raise ValueError for a record without frames, TypeError when a frame is not bytes: before any of it is sent."""
    if not frames:
        raise ValueError("a record has at least one frame")
    for frame in frames:
        if not isinstance(frame, bytes):
            raise TypeError(f"a frame is bytes, not {type(frame).__name__}")


def is_wanted(topics: Iterable[bytes], frames: Sequence[bytes]) -> bool:
    """Whether a subscriber to `topics` gets the record."""
    return any(frames[0].startswith(topic) for topic in topics)
