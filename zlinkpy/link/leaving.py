"""The time between *not ready any more* and *ended*: reading what the peer had sent before it left (wire.md §12).

The two lanes of a pair are two TCP connections, and nothing orders them. A `close` on the application lane can overtake
replies on the completion lane; the end of the completion lane can overtake messages, and the `close` behind them, on
the application lane. Both were sent and accepted before their sender left, so they count. The pair is out of every
selection set at once (LV-119, LV-120) and ends when the lane that still has something to say has said it:

    left by                     reading             until
    close received (1, 2, 3)    completion lane     its end, at most REPLIES_GRACE seconds
    completion lane lost        application lane    close or its end, at most MESSAGES_GRACE after the last record

In the second case this side says `close` itself, so that a peer that is alive answers at once.
"""

from __future__ import annotations

from attrs import define

from zlinkpy.link.constants import MESSAGES_GRACE, REPLIES_GRACE
from zlinkpy.link.failure import Failure
from zlinkpy.wire import Lane


@define
class Leaving:
    """Why a pair is not ready any more, which lane it still reads, and until when."""

    failure: Failure
    reading: Lane
    deadline: float

    @classmethod
    def begin(cls, failure: Failure, reading: Lane, now: float) -> Leaving:
        """Leave at `now` for `failure`."""
        grace = REPLIES_GRACE if reading is Lane.COMPLETION else MESSAGES_GRACE
        return cls(failure, reading, now + grace)

    def over(self, now: float, last_receive: float | None) -> bool:
        """Whether the grace has passed; messages that still come extend it."""
        if self.reading is Lane.APPLICATION and last_receive is not None:
            self.deadline = max(self.deadline, last_receive + MESSAGES_GRACE)
        return now >= self.deadline
