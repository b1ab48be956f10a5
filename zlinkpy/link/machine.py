"""What every link machine is, whatever its topology: one attempt that is watched, is ready or not, and ends once.

A link is created for one attempt, ends once, and is never used again. A reconnect is a new one, so no probe id, no
deadline and no ready state can survive it (LV-145), and what is still read from an ended one changes nothing (LV-77,
LV-125).

    LinkMachine          lanes, the ready predicate, the deadline of a dial, the one way out
      HandshakeLink      admission, probes, receive flow, farewell (`handshake.py`)
        Pair             RouteMesh: two lanes, and what a peer had sent before it left (`pair.py`)
        ServicePair      ClientServer: one lane, either end (`service_pair.py`)
      PublisherLink      fanout: a subscriber's view of one publisher (`publisher_link.py`)
"""

from __future__ import annotations

from collections.abc import Callable

from zlinkpy.link.actions import Action, Dial, Ended, LinkCommand, NotReady, Send
from zlinkpy.link.constants import DIAL_DEADLINE
from zlinkpy.link.failure import Failure
from zlinkpy.link.lanes import Lanes, LaneState, PairPhase
from zlinkpy.wire import Lane


class LinkMachine:
    """The part that all links share; used through its subclasses.

    Every event method takes the monotonic `now` in seconds and returns the actions to perform, in order; after `Ended`
    it returns an empty list. Nothing here raises on what a peer does.
    """

    __slots__ = ("_dial_deadline", "_ended", "_lanes", "_told_ready", "_watch", "failure", "last_receive")

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._dial_deadline: float | None = None
        self._told_ready = False
        self._ended = False
        self._watch: Callable[[], None] | None = None
        self.last_receive: float | None = None
        """When the last record arrived: for diagnostics only (LV-69, LV-169)."""
        self.failure: Failure | None = None
        """Why the link ended; None before, and where it ended as not required (LV-36)."""

    # -- what others read ----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """THE predicate (LV-25): established and not ended. Everyone reads this one."""
        return not self._ended and self._is_established()

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def phase(self) -> PairPhase:
        """The phase, derived and never stored."""
        if self._ended:
            return PairPhase.ENDED
        return PairPhase.READY if self.ready else PairPhase.CONNECTING

    @property
    def identity(self) -> tuple[str, int] | None:
        """RID and lifecycle generation of the peer, once known."""
        raise NotImplementedError

    def next_deadline(self) -> float | None:
        """When `tick` is due next, or None. Always later than the `now` of the last `tick`."""
        raise NotImplementedError

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after each event that may have moved the deadline, the identity or the end."""
        self._watch = changed

    # -- events --------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Begin: the dialler dials its first lane; either side gives the attempt DIAL_DEADLINE seconds (LV-176)."""
        if self._ended:
            return []
        self._dial_deadline = now + DIAL_DEADLINE
        return self._done(self._dial_next())

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        raise NotImplementedError

    # -- what a topology says ------------------------------------------------------------------------------------------

    def _is_established(self) -> bool:
        raise NotImplementedError

    def _stop(self) -> None:
        """Judge no more."""

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _dial_next(self) -> list[Action]:
        lane = self._lanes.next
        if lane is None or not self._lanes.dialler:
            return []
        self._lanes[lane] = LaneState.DIALLING
        return [Dial(lane)]

    def _end(
        self,
        failure: Failure | None,
        *,
        parting: LinkCommand | None = None,
        parting_lane: Lane = Lane.APPLICATION,
        ended: Ended | None = None,
    ) -> list[Action]:
        """The only way out. What was sent last is given time to leave; without a last word the lanes are cut."""
        actions: list[Action] = []
        last_word = parting_lane if parting is not None and self._lanes.is_usable(parting_lane) else None
        if parting is not None and last_word is not None:
            actions.append(Send(last_word, parting))
        if self._told_ready and failure is not None:
            actions.append(NotReady(failure))
        actions += self._lanes.closing(last_word)
        actions.append(ended if ended is not None else Ended(failure))
        self._ended = True
        self.failure = failure
        self._dial_deadline = None
        self._stop()
        return actions

    def _done(self, actions: list[Action]) -> list[Action]:
        if self._watch is not None:
            self._watch()
        return actions
