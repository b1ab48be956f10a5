"""Connections as machines: admission, the two-lane pair, liveness. Pure: numbers in, actions out (docs/link.md)."""

from __future__ import annotations

from zlinkpy.link.actions import (
    Action,
    Admitted,
    CloseLane,
    Dial,
    Ended,
    LinkCommand,
    NotReady,
    Ready,
    RemoteFlow,
    Send,
    Updated,
)
from zlinkpy.link.admission import (
    Expectation,
    ServiceAdmission,
    check_admission,
    check_service_admission,
    is_advertisable,
    is_not_required,
    roles_not_required,
)
from zlinkpy.link.backoff import Backoff
from zlinkpy.link.beacon import BeaconSchedule
from zlinkpy.link.constants import (
    BACKOFF_FIRST,
    BACKOFF_JITTER,
    BACKOFF_MAX,
    CHECK_INTERVAL,
    DIAL_DEADLINE,
    PEER_DEADLINE,
)
from zlinkpy.link.failure import Failure, FailureReason, reason_of_close, reason_of_reject
from zlinkpy.link.intent import DialIntent, IntentState
from zlinkpy.link.lanes import PairPhase
from zlinkpy.link.liveness import Expired, Judgement, ProbeLiveness, SendProbe
from zlinkpy.link.owner import Judged, LivenessOwner
from zlinkpy.link.pair import Pair
from zlinkpy.link.publisher_link import PublisherLink
from zlinkpy.link.revisions import IdentityChange, RevisionGuard, identity_change
from zlinkpy.link.service_pair import NO_LIMIT, ServicePair

__all__ = [
    "BACKOFF_FIRST",
    "BACKOFF_JITTER",
    "BACKOFF_MAX",
    "CHECK_INTERVAL",
    "DIAL_DEADLINE",
    "NO_LIMIT",
    "PEER_DEADLINE",
    "Action",
    "Admitted",
    "Backoff",
    "BeaconSchedule",
    "CloseLane",
    "Dial",
    "DialIntent",
    "Ended",
    "Expectation",
    "Expired",
    "Failure",
    "FailureReason",
    "IdentityChange",
    "IntentState",
    "Judged",
    "Judgement",
    "LinkCommand",
    "LivenessOwner",
    "NotReady",
    "Pair",
    "PairPhase",
    "ProbeLiveness",
    "PublisherLink",
    "Ready",
    "RemoteFlow",
    "RevisionGuard",
    "Send",
    "SendProbe",
    "ServiceAdmission",
    "ServicePair",
    "Updated",
    "check_admission",
    "check_service_admission",
    "identity_change",
    "is_advertisable",
    "is_not_required",
    "reason_of_close",
    "reason_of_reject",
    "roles_not_required",
]
