"""What a link machine asks its shell to do.

A machine returns a list; the shell performs it in order and without an await in between, so that what the list says
together (leave the selection set, then close) is seen together (LV-76). Frozen values rather than callbacks: tests
compare them, and a machine cannot be re-entered while it decides.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from zlinkpy.link.failure import Failure
from zlinkpy.wire import (
    Admission,
    Admit,
    Close,
    FlowState,
    Hello,
    Lane,
    LivenessAck,
    LivenessProbe,
    ReceiveFlow,
    Reject,
    RejectReason,
    Update,
)

LinkCommand: TypeAlias = Hello | Admit | Reject | Update | LivenessProbe | LivenessAck | ReceiveFlow | Close
"""The infrastructure commands a link machine sends and receives: 1-6, 54 and 55 of wire.md §2."""


@frozen
class Dial:
    """Open a new physical connection for `lane`; report `opened` or `lost`."""

    lane: Lane


@frozen
class Send:
    """Submit `command` on `lane`, behind what was submitted there before."""

    lane: Lane
    command: LinkCommand


@frozen
class CloseLane:
    """Close the physical connection of `lane`.

    Args:
        linger: true when a record that was just submitted has to leave first; false cuts a backlog off, which is right
            towards a peer that no longer answers.
        after: close only when the close of this other lane has been observed. The last record travels there: two
            connections are not ordered, and a peer that sees this lane go first would record a transport error
            instead of the reason it was about to read (LV-119).
    """

    lane: Lane
    linger: bool
    after: Lane | None = None


@frozen
class Admitted:
    """Handshake and identity checks are done on the application lane; not yet a target (LV-23)."""

    remote: Admission


@frozen
class Ready:
    """The connection became ready in this instant (LV-24). The receive-flow state precedes it in the same list."""


@frozen
class NotReady:
    """A connection that was ready is not any more: take it out of every selection set now (LV-76)."""

    failure: Failure


@frozen
class Updated:
    """The peer published a newer descriptor revision: weights, runtime state, maintenance wave."""

    remote: Admission


@frozen
class RemoteFlow:
    """The peer told its absolute receive-flow state (wire.md §12)."""

    state: FlowState


@frozen
class Ended:
    """The connection is over; the last action a machine ever returns, exactly once.

    Args:
        failure: why, or None where nothing failed: the pair is not required (LV-36).
        not_required: the peers need no connection; do not retry this configuration (LV-34).
        reject: the reason when admission was refused, by either side.
    """

    failure: Failure | None = None
    not_required: bool = False
    reject: RejectReason | None = None


Action: TypeAlias = Dial | Send | CloseLane | Admitted | Ready | NotReady | Updated | RemoteFlow | Ended
