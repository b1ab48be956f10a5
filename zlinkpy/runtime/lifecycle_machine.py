"""The host's states and which may follow which (wire.md §4 ext 1, seed 003 §14). Pure.

    preparing -> serving      everything is bound, published (or waiting for the Store) and prepared
    preparing -> error        the start failed
    serving   -> draining     shutdown began: no new calls, accepted work finishes
    serving   -> error        what this host was built on is gone for good (its lease was lost)
    draining  -> stopped      everything is closed
    error     -> draining     shutdown of a failed host
    preparing -> draining     shutdown before the start was through
    serving <-> relocating -> relocated -> draining    belongs to relocation

`stopped` is the end. A state asked for twice is not a change.
"""

from __future__ import annotations

from zlinkpy.errors import InvalidOperationError
from zlinkpy.wire import RuntimeState

_NEXT: dict[RuntimeState, frozenset[RuntimeState]] = {
    RuntimeState.PREPARING: frozenset({RuntimeState.SERVING, RuntimeState.DRAINING, RuntimeState.ERROR}),
    RuntimeState.SERVING: frozenset({RuntimeState.DRAINING, RuntimeState.ERROR, RuntimeState.RELOCATING}),
    RuntimeState.RELOCATING: frozenset(
        {RuntimeState.SERVING, RuntimeState.RELOCATED, RuntimeState.DRAINING, RuntimeState.ERROR}
    ),
    RuntimeState.RELOCATED: frozenset({RuntimeState.DRAINING, RuntimeState.ERROR}),
    RuntimeState.DRAINING: frozenset({RuntimeState.STOPPED}),
    RuntimeState.STOPPED: frozenset(),
    RuntimeState.ERROR: frozenset({RuntimeState.DRAINING}),
}


class Lifecycle:
    """Where the host is. `accepting`: own calls are taken; `taking`: records of peers are taken."""

    def __init__(self) -> None:
        self._state = RuntimeState.PREPARING

    @property
    def state(self) -> RuntimeState:
        """The current state."""
        return self._state

    @property
    def accepting(self) -> bool:
        """True in the states in which the application may start new work."""
        return self._state in (RuntimeState.SERVING, RuntimeState.RELOCATING)

    @property
    def taking(self) -> bool:
        """True while peers' records are still taken: what they sent before they learnt of a drain is on its way."""
        return self._state in (
            RuntimeState.SERVING,
            RuntimeState.RELOCATING,
            RuntimeState.RELOCATED,
            RuntimeState.DRAINING,
        )

    def move(self, state: RuntimeState) -> bool:
        """Go to `state`. False: it is the current one. Raises InvalidOperationError for a step the table does not
        have."""
        if state is self._state:
            return False
        if state not in _NEXT[self._state]:
            raise InvalidOperationError(f"a host cannot go from {self._state.name.lower()} to {state.name.lower()}")
        self._state = state
        return True
