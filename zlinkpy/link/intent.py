"""When to dial one endpoint: the connection intent as a machine. Pure (wire.md §12, LV §3, §11, §14).

    state          event                      next           action
    WAITING        due                        DIALLING       dial
    DIALLING       ready                      CONNECTED      reset the backoff
    DIALLING       ended                      CLOSING
    CONNECTED      ended                      CLOSING
    CLOSING        last lane observed closed  WAITING        arm the next delay
    DIALLING …     ended, not required        NOT_REQUIRED   never again for this configuration
    WAITING        satisfied by another pair  HELD           the peer dialled us: nothing to do
    HELD           released                   WAITING        that pair is gone
    any            retarget (new endpoint,    WAITING        (after the observed close) dial without delay
                   expectation or generation)
    any            withdraw                   WITHDRAWN      terminal: a late READY does not revive it

A new connection to an endpoint is opened only after the close of the previous one was *observed* (LV-128): `lanes`
counts the physical connections that were opened and not yet seen closed, and nothing is due while it is above zero.
"""

from __future__ import annotations

from enum import Enum

from zlinkpy.link.admission import Expectation
from zlinkpy.link.backoff import Backoff


class IntentState(Enum):
    """Where a connection intent stands."""

    WAITING = "waiting"
    DIALLING = "dialling"
    CONNECTED = "connected"
    CLOSING = "closing"
    HELD = "held"
    NOT_REQUIRED = "not_required"
    WITHDRAWN = "withdrawn"


class DialIntent:
    """The wish to be connected to one endpoint."""

    def __init__(self, endpoint: str, expectation: Expectation, backoff: Backoff, now: float) -> None:
        self.endpoint = endpoint
        self.expectation = expectation
        self.state = IntentState.WAITING
        self.dials = 0
        self._backoff = backoff
        self._due: float = now
        self._lanes = 0
        self._retry_at_once = False

    @property
    def closing(self) -> bool:
        """True while a previous connection to the endpoint has not been seen closed."""
        return self._lanes > 0 and self.state is not IntentState.CONNECTED and self.state is not IntentState.DIALLING

    def next_deadline(self) -> float | None:
        """When `due` may become true by time alone."""
        return self._due if self.state is IntentState.WAITING and self._lanes == 0 else None

    def due(self, now: float) -> bool:
        """True when a dial should start now. The caller dials and says so with `dialled`."""
        return self.state is IntentState.WAITING and self._lanes == 0 and now >= self._due

    def dialled(self) -> None:
        """A dial was started."""
        self.state = IntentState.DIALLING
        self.dials += 1

    def lane_opened(self) -> None:
        """A physical connection to the endpoint now exists, as far as anyone can know."""
        self._lanes += 1

    def lane_closed(self, now: float) -> None:
        """The close of one physical connection was observed."""
        self._lanes -= 1
        if self._lanes == 0 and self.state is IntentState.CLOSING:
            self._wait(now)

    def ready(self) -> None:
        """The pair became ready: the next failure starts from the first delay again."""
        self.state = IntentState.CONNECTED
        self._backoff.reset()

    def ended(self, now: float, *, not_required: bool = False) -> None:
        """The pair ended, by whatever cause."""
        if self.state is IntentState.WITHDRAWN:
            return
        if not_required:
            self.state = IntentState.NOT_REQUIRED
        elif self._lanes:
            self.state = IntentState.CLOSING
        else:
            self._wait(now)

    def hold(self) -> None:
        """Another pair with that peer is up: stop dialling."""
        if self.state in (IntentState.WAITING, IntentState.CLOSING):
            self.state = IntentState.HELD

    def release(self, now: float) -> None:
        """The pair that satisfied the intent is gone."""
        if self.state is IntentState.HELD:
            self._wait(now)

    def retarget(self, endpoint: str, expectation: Expectation, now: float) -> bool:
        """Take the current descriptor. True: it differs, so a pair made for the old one has to go (LV-150)."""
        if self.state is IntentState.WITHDRAWN or (endpoint, expectation) == (self.endpoint, self.expectation):
            return False
        self.endpoint, self.expectation = endpoint, expectation
        self._backoff.reset()
        self._retry_at_once = True
        if self.state in (IntentState.WAITING, IntentState.HELD, IntentState.NOT_REQUIRED):
            self._wait(now)
        return True

    def reconfigure(self, now: float) -> None:
        """The configuration generation changed: a NotRequired verdict is checked once more (LV-35)."""
        if self.state is IntentState.NOT_REQUIRED:
            self._retry_at_once = True
            self._wait(now)

    def withdraw(self) -> None:
        """Remove the intent, for good."""
        self.state = IntentState.WITHDRAWN

    def _wait(self, now: float) -> None:
        self.state = IntentState.WAITING
        if self._retry_at_once:
            self._retry_at_once = False
            self._due = now
        else:
            self._due = now + self._backoff.next_delay()
