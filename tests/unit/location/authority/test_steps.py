"""When rows of one look may be said to contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from tests.authority_hosts import actor, spot
from tests.unit.location.authority.test_authority_rows import READY, ROOM
from zlinkpy.location.authority import AuthorityRecord
from zlinkpy.location.authority.steps import Look, confirmed
from zlinkpy.location.store import Found, Missing, StoreCorruption

HELD = AuthorityRecord(actor(), READY, "4")
HOME = AuthorityRecord(spot(), ROOM, "7")
PROBLEM = StoreCorruption("they do not fit")


def seen(record: AuthorityRecord) -> Found:
    return Found(record.row.encode(), record.version, None, 0)


def outcome(steps: Any, *answers: object) -> Any:
    try:
        asked = next(steps)
        assert asked == Look((actor().encode(), spot().encode()))
        steps.send(answers)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it goes on asking")


@pytest.mark.contract("LO-217")
def test_a_contradiction_counts_only_between_rows_known_before_and_unchanged_after() -> None:
    rows = (HELD, HOME)
    # The Spot's row was not known before the look: it may have changed while the look was under way.
    assert outcome(confirmed(rows, [HELD], PROBLEM)) == rows
    assert outcome(confirmed(rows, [HELD, evolve(HOME, version="6")], PROBLEM)) == rows
    # Known before, and changed or gone after it.
    assert outcome(confirmed(rows, rows, PROBLEM), seen(HELD), seen(evolve(HOME, version="8"))) == rows
    assert outcome(confirmed(rows, rows, PROBLEM), Missing(0), seen(HOME)) == rows
    with pytest.raises(StoreCorruption, match="do not fit"):
        outcome(confirmed(rows, rows, PROBLEM), seen(HELD), seen(HOME))
