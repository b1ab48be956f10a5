"""Heartbeat and idle limit of one STREAM session, in numbers. Pure (SS-97..104).

Two limits, each with evidence of its own: an unanswered ping says that the client is gone, missing application frames
say that it has nothing to do here. A pong never counts for the second, an application frame never for the first.
Neither says anything about a peer, a lease or the host, and none of those says anything about a session (SS-104).

| State | Event | Next state | Action |
| --- | --- | --- | --- |
| NEW | `start` | OPEN | - |
| OPEN | `tick` on the grid, no ping outstanding | OPEN | SendPing |
| OPEN | `tick`, ping unanswered for the timeout | ENDED | CloseSession HEARTBEAT_TIMEOUT |
| OPEN | `tick`, no application frame for the idle limit | ENDED | CloseSession IDLE_TIMEOUT |
| OPEN | `ping` | OPEN | SendPong |
| OPEN | `pong`, `application_frame` | OPEN | - |
| OPEN | `pause` | PAUSED | - |
| PAUSED | `resume` | OPEN | - |
| PAUSED | `tick` | PAUSED | - |
| PAUSED | `ping`, `pong`, `application_frame` | PAUSED | as when OPEN: what was read before still counts |
| any | `stop` | ENDED | - |

Invariants:

- at most one ping is outstanding (SS-97);
- `now >= deadline` is expiry; of two limits that expired, the heartbeat is reported (SS-101);
- while receiving is paused no limit advances and no ping is sent: its pong would hide behind unread bytes (SS-102);
- all times are differences on one monotonic clock (SS-103).

The machine runs on *reading time*, the time during which the session was read from: a pause stops that clock, so no
rule needs to know about pauses. Rejected: moving both deadlines at `resume`; the ping grid would have to move, too,
and a deadline that moves in three places is one that is forgotten in the fourth.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TypeAlias

from attrs import frozen

from zlinkpy.errors import ConfigurationError

PING_NAME = "$zlink.heartbeat.ping"
"""Packet name of the Control frame of a ping; codec Raw, empty payload."""
PONG_NAME = "$zlink.heartbeat.pong"
"""Packet name of the Control frame of a pong; codec Raw, empty payload."""


@frozen(kw_only=True)
class HeartbeatOptions:
    """All times in seconds (D6).

    Args:
        interval: from one ping to the next; None: the server sends none, and answers the client's all the same.
        timeout: how long a ping may stay unanswered.
        idle: how long the client may send no application frame; None: for ever.
    """

    interval: float | None = 1.0
    timeout: float = 5.0
    idle: float | None = 30.0

    def validate(self) -> HeartbeatOptions:
        """Return self, or raise ConfigurationError naming the setting."""
        for name in ("interval", "timeout", "idle"):
            value = getattr(self, name)
            if value is None and name != "timeout":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigurationError(f"the heartbeat's {name} must be a finite number above 0 s, not {value!r}")
        return self


class SilenceReason(Enum):
    """Why a silent session is closed: number in the closing frame, and the metric's label."""

    IDLE_TIMEOUT = (2, "idle_timeout")
    HEARTBEAT_TIMEOUT = (3, "heartbeat_timeout")

    @property
    def number(self) -> int:
        """The reason in the closing frame."""
        return self.value[0]

    @property
    def label(self) -> str:
        """The `close_reason` of the metric."""
        return self.value[1]


@frozen
class SendPing:
    """Write a ping now."""


@frozen
class SendPong:
    """Write a pong at once, ahead of everything that waits for a handler (SS-99)."""


@frozen
class CloseSession:
    """Write the closing frame and close; the last action a machine ever returns."""

    reason: SilenceReason


Action: TypeAlias = SendPing | SendPong | CloseSession


class Heartbeat:
    """One session; see the module. A new connection needs a new one."""

    __slots__ = ("_application_at", "_began", "_grid", "_options", "_paused_at", "_paused_for", "_pinged_at", "ended")

    def __init__(self, options: HeartbeatOptions) -> None:
        self._options = options.validate()
        self.ended = False
        """True once the session is to be closed, or was stopped."""
        self._began: float | None = None
        self._paused_at: float | None = None
        self._paused_for = 0.0
        # Reading time, seconds since the start:
        self._pinged_at: float | None = None
        self._grid = 0
        self._application_at = 0.0

    @property
    def is_paused(self) -> bool:
        """True between `pause` and `resume`."""
        return self._paused_at is not None

    @property
    def is_waiting(self) -> bool:
        """True while a ping is outstanding."""
        return self._pinged_at is not None

    # Events.

    def start(self, now: float) -> None:
        """The session is open. Raises RuntimeError when it was before."""
        if self._began is not None:
            raise RuntimeError("this heartbeat has begun already")
        self._began = now

    def stop(self) -> None:
        """The session ends for another reason: judge no more."""
        self.ended = True

    def pong(self, now: float) -> list[Action]:
        """A pong was read. One that answers no ping is nothing."""
        if self._is_open(now) and self._pinged_at is not None and not self._expired(now):
            self._pinged_at = None
            self._pass_grid(self._instant(now))
        return []

    def ping(self, now: float) -> list[Action]:
        """The client's ping was read; answered also when the server sends none itself (SS-99)."""
        return [SendPong()] if self._is_open(now) else []

    def application_frame(self, now: float) -> list[Action]:
        """A frame for the application was read (SS-100)."""
        if self._is_open(now) and not self._expired(now):
            self._application_at = self._read_for(now)
        return []

    def pause(self, now: float) -> None:
        """Receiving stops until there is a permit (SS-102). Idempotent."""
        if self._is_open(now) and self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        """Receiving goes on. Idempotent."""
        if self._paused_at is not None:
            self._paused_for += now - self._paused_at
            self._paused_at = None

    def tick(self, now: float) -> list[Action]:
        """What is due at `now`; at most one action."""
        if not self._is_open(now) or self._paused_at is not None:
            return []
        expired = self._expired(now)
        if expired is not None:
            self.ended = True
            return [CloseSession(expired)]
        due = self._ping_due()
        if due is None or now < self._at(due):
            return []
        self._pass_grid(now)
        self._pinged_at = self._read_for(now)
        return [SendPing()]

    def next_deadline(self) -> float | None:
        """When `tick` has something to say; None before the start, while paused, and at the end."""
        if self.ended or self._began is None or self._paused_at is not None:
            return None
        due = [each for each in (self._ping_due(), self._heartbeat_limit(), self._idle_limit()) if each is not None]
        return self._at(min(due)) if due else None

    # Reading time.

    def _is_open(self, now: float) -> bool:
        return not self.ended and self._began is not None and now >= self._began

    def _read_for(self, now: float) -> float:
        assert self._began is not None
        return self._instant(now) - self._began - self._paused_for

    def _instant(self, now: float) -> float:
        """Now, or the instant at which the pause began."""
        return now if self._paused_at is None else self._paused_at

    def _at(self, read: float) -> float:
        """The instant at which the session will have been read from for `read` seconds. Deadlines are compared as
        instants everywhere, so that rounding cannot make `next_deadline` and `tick` disagree.
        """
        assert self._began is not None
        return self._began + self._paused_for + read

    def _pass_grid(self, now: float) -> None:
        """Leave the grid points up to now behind: a late tick or pong is followed by one ping, not by several."""
        while (interval := self._options.interval) is not None and self._at((self._grid + 1) * interval) <= now:
            self._grid += 1

    def _ping_due(self) -> float | None:
        interval = self._options.interval
        return None if interval is None or self._pinged_at is not None else (self._grid + 1) * interval

    def _heartbeat_limit(self) -> float | None:
        return None if self._pinged_at is None else self._pinged_at + self._options.timeout

    def _idle_limit(self) -> float | None:
        return None if self._options.idle is None else self._application_at + self._options.idle

    def _expired(self, now: float) -> SilenceReason | None:
        instant = self._instant(now)
        heartbeat, idle = self._heartbeat_limit(), self._idle_limit()
        if heartbeat is not None and instant >= self._at(heartbeat):
            return SilenceReason.HEARTBEAT_TIMEOUT
        if idle is not None and instant >= self._at(idle):
            return SilenceReason.IDLE_TIMEOUT
        return None
