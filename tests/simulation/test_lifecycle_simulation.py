"""The host's states as a machine, walked at random: a step the table does not have leaves everything as it was."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zlinkpy.errors import InvalidOperationError
from zlinkpy.runtime.lifecycle_machine import Lifecycle
from zlinkpy.wire import RuntimeState as S

# The second opinion: written from seed 003 §14 and wire.md §4, not from the module.
NEXT: dict[S, set[S]] = {
    S.PREPARING: {S.SERVING, S.DRAINING, S.ERROR},
    S.SERVING: {S.RELOCATING, S.DRAINING, S.ERROR},
    S.RELOCATING: {S.SERVING, S.RELOCATED, S.DRAINING, S.ERROR},
    S.RELOCATED: {S.DRAINING, S.ERROR},
    S.DRAINING: {S.STOPPED},
    S.ERROR: {S.DRAINING},
    S.STOPPED: set(),
}
ACCEPTS = {S.SERVING, S.RELOCATING}
TAKES = {S.SERVING, S.RELOCATING, S.RELOCATED, S.DRAINING}


def walked(lifecycle: Lifecycle) -> tuple[S, bool, bool]:
    """Everything there is to see."""
    return lifecycle.state, lifecycle.accepting, lifecycle.taking


class Host(RuleBasedStateMachine):
    """Invariant: the state is the one the last legal step led to, and what is taken follows from it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.lifecycle = Lifecycle()
        self.expected = S.PREPARING
        self.stopped = False

    @rule(state=st.sampled_from(S))
    def move(self, state: S) -> None:
        before = walked(self.lifecycle)
        if state is self.expected:
            assert self.lifecycle.move(state) is False
            assert walked(self.lifecycle) == before
        elif state in NEXT[self.expected]:
            assert self.lifecycle.move(state) is True
            self.expected = state
        else:
            with pytest.raises(InvalidOperationError) as caught:
                self.lifecycle.move(state)
            assert self.expected.name.lower() in str(caught.value)
            assert state.name.lower() in str(caught.value)
            assert walked(self.lifecycle) == before

    @precondition(lambda self: self.expected is S.STOPPED)
    @rule(state=st.sampled_from([state for state in S if state is not S.STOPPED]))
    def nothing_follows_the_end(self, state: S) -> None:
        with pytest.raises(InvalidOperationError):
            self.lifecycle.move(state)

    @invariant()
    def what_is_taken_follows_from_the_state(self) -> None:
        assert self.lifecycle.state is self.expected
        assert self.lifecycle.accepting is (self.expected in ACCEPTS)
        assert self.lifecycle.taking is (self.expected in TAKES)
        # Whoever takes calls of its own application takes its peers' records, too.
        assert self.lifecycle.taking or not self.lifecycle.accepting


TestHost = Host.TestCase
TestHost.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def test_every_pair_of_states() -> None:
    """Preparing takes nothing; each of the 49 steps is allowed exactly where the table says."""
    reach: dict[S, list[S]] = {S.PREPARING: []}
    while len(reach) < len(S):
        for state in list(reach):
            for following in NEXT[state]:
                reach.setdefault(following, [*reach[state], following])
    for state, path in reach.items():
        for wanted in S:
            lifecycle = Lifecycle()
            for step in path:
                lifecycle.move(step)
            assert lifecycle.state is state
            if wanted is state:
                assert lifecycle.move(wanted) is False
            elif wanted in NEXT[state]:
                assert lifecycle.move(wanted) is True
                assert lifecycle.state is wanted
            else:
                with pytest.raises(InvalidOperationError):
                    lifecycle.move(wanted)
                assert lifecycle.state is state
    assert not Lifecycle().accepting
    assert not Lifecycle().taking
