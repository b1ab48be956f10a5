"""The one connection of a ClientServer client and server (wire.md §2, §4, §8, §12; LV §2, §4-§6, §10, §11, §13, §14).

One machine for both ends: the client dials and learns a `ServerAdmission`, the server accepts and learns a
`ClientAdmission`. What it shares with a RouteMesh pair is in `handshake.py`; its own are which admissions are
exchanged, the checks of `check_service_admission`, and the message size both ends agreed on. There is one lane, and it
is called the application lane in actions and events. Replies queue on it behind what was submitted before them, so a
`close` can overtake nothing: there is no phase LEAVING. There are no pairId, no duplicates and no NotRequired.

    phase        event                               next       actions
    CONNECTING   start (client)                      -          Dial, 5 s until the admit
    CONNECTING   opened (client)                     -          Send hello
    CONNECTING   hello, checks pass (server)         ADMITTED   Send admit, Admitted
    CONNECTING   hello, a check fails (server)       ENDED      Send reject, CloseLane, Ended
    CONNECTING   admit, checks pass (client)         ADMITTED   Admitted
    CONNECTING   admit, a check fails (client)       ENDED      Send close, CloseLane, Ended
    CONNECTING   reject (client)                     ENDED      CloseLane, Ended
    CONNECTING   tick at the 5 s deadline            ENDED      CloseLane, Ended
    ADMITTED     handlers prepared, or prepare       READY      Send receiveFlow, Ready; probes and deadline start here
    READY        tick on the grid                    -          Send livenessProbe
    READY        tick at the deadline                ENDED      NotReady, CloseLane, Ended
    ADMITTED+    livenessProbe                       -          Send livenessAck
    ADMITTED+    livenessAck, receiveFlow            -          RemoteFlow where it is one
    ADMITTED+    update (client)                     -          Updated where something is new
    ADMITTED+    update of another server or run     ENDED      Send close 4, NotReady, CloseLane, Ended
    ADMITTED+    hello or admit repeated, unchanged  -          nothing
    ADMITTED+    announce (server)                   -          Send update
    any          malformed or unexpected record      ENDED      Send close 4, NotReady, CloseLane, Ended
    any          close received, lane lost           ENDED      NotReady, CloseLane where it exists, Ended
    any          close, fail                         ENDED      Send close, NotReady, CloseLane, Ended
    ENDED        anything                            -          nothing

A draining server says so in an `update`: its clients stay ready, for what it has accepted, and select it no more.
"""

from __future__ import annotations

from collections.abc import Callable

from zlinkpy.link.actions import Action
from zlinkpy.link.admission import Expectation, ServiceAdmission, check_service_admission
from zlinkpy.link.checks import admission_of, require
from zlinkpy.link.handshake import HandshakeLink
from zlinkpy.wire import (
    Admit,
    ClientAdmission,
    FlowState,
    Hello,
    Lane,
    RejectReason,
    RuntimeState,
    ServerAdmission,
)

NO_LIMIT = 2**32 - 1
"""`maxMessageBytes` of an end that caps nothing (wire.md §5)."""


class ServicePair(HandshakeLink[ServiceAdmission]):
    """One attempt to be connected: the client's end, or the server's.

    Args:
        dialler: True for the client.
        local: gives this end's current admission: a `ClientAdmission`, or the server's newest `ServerAdmission`.
        expected: gives what is known about the other end at the moment of the check, or None. Of a client that is its
            security identity at most.
        judge: the last check of an admission (limits, a host that does not serve): a reason, or None to admit.
        probe_ids: gives probe ids, see `ProbeLiveness`.
        flow: gives this end's current receive-flow state.
        prepared: False when handlers are not prepared yet; `prepare` follows (LV-23).
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        dialler: bool,
        local: Callable[[], ServiceAdmission],
        expected: Callable[[], Expectation | None],
        judge: Callable[[ServiceAdmission], RejectReason | None],
        probe_ids: Callable[[], int],
        flow: Callable[[], FlowState],
        prepared: bool = True,
    ) -> None:
        super().__init__(
            dialler=dialler,
            lanes=(Lane.APPLICATION,),
            local=local,
            expected=expected,
            judge=judge,
            probe_ids=probe_ids,
            flow=flow,
            prepared=prepared,
        )

    def __repr__(self) -> str:
        end = "client" if self._lanes.dialler else "server"
        rid = f" {self.server.server_rid}" if self.server else ""
        return f"<ServicePair {end}{rid} {self.phase.value}>"

    # -- what others read ----------------------------------------------------------------------------------------------

    @property
    def server(self) -> ServerAdmission | None:
        """The newest admission of the server this client is connected with; None before that, and at a server's end."""
        remote = self.remote
        return remote if isinstance(remote, ServerAdmission) else None

    @property
    def selectable(self) -> bool:
        """True when a client may send new work here: ready, and the server is *serving* (LV-123, LV-174)."""
        return self.ready and self.server is not None and self.server.runtime_state == RuntimeState.SERVING

    @property
    def identity(self) -> tuple[str, int] | None:
        """RID and lifecycle generation of the admitted server; a client has neither."""
        server = self.server
        return (server.server_rid, server.lifecycle_generation) if server is not None else None

    @property
    def receive_limit(self) -> int | None:
        """Bytes one record may have that comes in, all frames together; None for no cap."""
        return _limit(self._local().max_message_bytes)

    @property
    def send_limit(self) -> int | None:
        """Bytes one record may have that goes out: the smaller of both ends' limits; None for no cap."""
        remote = self.remote
        own = self._local().max_message_bytes
        return _limit(own if remote is None else min(own, remote.max_message_bytes))

    # -- what the topology says ----------------------------------------------------------------------------------------

    def _hello(self, admission: ServiceAdmission, lane: Lane) -> Hello:
        return Hello(admission)

    def _admit(self, admission: ServiceAdmission, lane: Lane) -> Admit:
        return Admit(admission)

    def _described(self, admission: object) -> ServiceAdmission:
        if self._lanes.dialler:
            return admission_of(ServerAdmission, admission, "a server's admission")
        return admission_of(ClientAdmission, admission, "a client's admission")

    def _check(self, remote: ServiceAdmission) -> RejectReason | None:
        return check_service_admission(self._local(), remote, self._expected())

    def _on_update(self, admission: object, now: float) -> list[Action]:
        require(self._lanes.dialler, "a client has nothing to update", "prefix.command")
        return super()._on_update(admission, now)


def _limit(max_message_bytes: int) -> int | None:
    return None if max_message_bytes == NO_LIMIT else max_message_bytes
