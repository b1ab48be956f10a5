"""What a router does with the signals of others (facts §8; SR §5, §18..§20).

    kind               payload              effect
    MESSAGE_ENQUEUED   any                  ring
    TURN_RESULT        an outcome           settle who waits for it here
    INTERRUPT          reason, turn         interrupt what runs here; SESSION_RELEASED without a turn is a YIELD (shim)
    YIELD              token                hand the session over, unless an earlier lease is meant
    EVICT              reason, token        the session is over, unless an earlier lease is meant
    EVENT              an event             to the subscribers here
    STATUS             a snapshot           to the projection

Delivered twice each has the effect of once (SR-087). A signal of this very router, node and instance, is ignored: two
workers of one host may share a node id (SR-463). Handling never waits and never raises.
"""

from __future__ import annotations

from zlinkpy.sessions.core import RouterCore
from zlinkpy.sessions.endings import Endings
from zlinkpy.sessions.forwarding import Forwards
from zlinkpy.sessions.payloads import Evict, Interrupt, Yield, decode_outcome
from zlinkpy.sessions.status_watch import StatusView
from zlinkpy.sessions.types import InterruptReason, SessionSignal, SignalKind


class Dispatch:
    """The handler of a router's subscriptions."""

    def __init__(self, core: RouterCore) -> None:
        self._core = core
        self.forwards: Forwards
        self.endings: Endings
        self.status: StatusView

    def received(self, signal: SessionSignal) -> None:
        """One signal of the bus."""
        core = self._core
        is_own = signal.origin_node == core.node_id and signal.origin_instance == core.instance
        if is_own or core.is_closed:
            return
        session_id, payload = signal.session_id, signal.payload
        match signal.kind:
            case SignalKind.MESSAGE_ENQUEUED:
                core.ring(session_id)
            case SignalKind.TURN_RESULT:
                outcome = decode_outcome(payload)
                if outcome is not None:
                    self.forwards.resolve(outcome)
            case SignalKind.INTERRUPT:
                self._interrupted(session_id, Interrupt.read(payload))
            case SignalKind.YIELD:
                asked = Yield.read(payload)
                if asked is not None:
                    self.endings.yielded(session_id, asked.token)
            case SignalKind.EVICT:
                evict = Evict.read(payload)
                if evict is not None:
                    self.endings.evicted(session_id, evict, signal.origin_node)
            case SignalKind.EVENT:
                core.events.received(signal)
            case SignalKind.STATUS:
                self.status.received(signal)

    def _interrupted(self, session_id: str, interrupt: Interrupt | None) -> None:
        core = self._core
        if interrupt is None or self.endings.is_late(session_id, interrupt.token):
            return
        released = interrupt.reason is InterruptReason.SESSION_RELEASED
        if released and interrupt.turn_id is None and core.config.legacy_yield_shim:
            self.endings.yielded(session_id, interrupt.token)
            return
        interrupt_here(core, session_id, interrupt.reason, interrupt.turn_id)


def interrupt_here(core: RouterCore, session_id: str, reason: InterruptReason, turn_id: str | None) -> bool:
    """Interrupt the turn that runs on this node, if it is the one that is meant; else nothing (SR-313..318)."""
    turn = core.turns.get(session_id)
    return turn is not None and turn.interrupt(reason, turn_id)
