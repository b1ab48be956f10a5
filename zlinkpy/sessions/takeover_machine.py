"""What a pass may do with the reservation behind a message it is about to run. Pure (facts §6; SR §11, §12).

    verdict    from                                          bind   write          free on failure          counted
    SELF       the submit that opened the pass               (is)   strict         reset                    -
    KEYLESS    no key                                        no     no             -                        -
    WON        acquire_holder True                           yes    strict         reset                    -
    REFUSED    acquire_holder False: done, held, gone        no     no             -                        refused
    UNKNOWN    acquire_holder raised: perhaps applied        yes    holderless too reset, else discard      -

Every verdict runs the turn. UNKNOWN writes over a holderless entry: with strict matching a turn that succeeded would
stay IN_FLIGHT until its reservation expires. Where an answer is lost, nobody guesses which of the two it was.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen


class Verdict(Enum):
    """How the reservation was taken over."""

    SELF = "self"
    KEYLESS = "keyless"
    WON = "won"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@frozen(kw_only=True)
class Takeover:
    """What follows from a verdict."""

    verdict: Verdict
    bind: bool = False
    """Touch the reservation while the turn runs."""
    write: bool = False
    """Write the result to the store."""
    allow_unheld: bool = False
    """Write it also where the entry has no holder."""
    reset: bool = False
    """On failure delete the entry while this attempt holds it."""
    discard: bool = False
    """On failure delete the entry also where it has no holder."""


_PLANS = {
    Verdict.SELF: Takeover(verdict=Verdict.SELF, write=True, reset=True),
    Verdict.KEYLESS: Takeover(verdict=Verdict.KEYLESS),
    Verdict.WON: Takeover(verdict=Verdict.WON, bind=True, write=True, reset=True),
    Verdict.REFUSED: Takeover(verdict=Verdict.REFUSED),
    Verdict.UNKNOWN: Takeover(
        verdict=Verdict.UNKNOWN, bind=True, write=True, allow_unheld=True, reset=True, discard=True
    ),
}


def plan(verdict: Verdict) -> Takeover:
    """The row of the table above."""
    return _PLANS[verdict]
