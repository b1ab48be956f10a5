"""One line for people about each peer that cannot be admitted: who, where, why, and what to change.

A peer that is refused dials again for ever, so the same refusal of the same peer is said once, until it was admitted.
What passes by itself (a duplicate, a node that is starting or has just been restarted) is told at INFO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zlinkpy.errors import ProtocolError
from zlinkpy.link import Ended, FailureReason
from zlinkpy.telemetry import get_logger
from zlinkpy.wire import RejectReason

if TYPE_CHECKING:
    from zlinkpy.mesh.peer_link import PeerLink

log = get_logger("zlinkpy.mesh")

# Refusals remembered: a stranger that invents ids may fill the log, but not the memory.
REMEMBERED = 256

_ADVICE: Mapping[RejectReason, str] = {
    RejectReason.PROTOCOL_VERSION_UNSUPPORTED: "run versions that speak the same protocol major",
    RejectReason.TOPOLOGY_MISMATCH: "it is a member of another mesh: give both the same mesh name, or remove the "
    "endpoint from peers",
    RejectReason.IDENTITY_MISMATCH: "another node answers there than the one expected, or two nodes use one routing "
    "id: check peers and rid",
    RejectReason.SECURITY_IDENTITY_MISMATCH: "its security identity is not the one published for it: check the keys of "
    "both nodes",
    RejectReason.CAPABILITY_MISMATCH: "it does not know a part of the protocol that is required: upgrade it",
    RejectReason.INVALID_DESCRIPTOR: "the Location Store does not show it, or it advertises an endpoint nobody can "
    "dial: check that both use the same store, and its advertise_host",
    RejectReason.CHANNEL_MISMATCH: "it has another channel than the one meant: give both the same channel name, or "
    "remove the endpoint",
    RejectReason.RESOURCE_LIMIT: "the other side is at one of its limits",
}

_FIRST_RECORD: Mapping[str, str] = {
    "prefix.magic": "what connects there is no mesh node: check who uses this port",
    "prefix.major": "the peer speaks another protocol version: run versions of the same major",
}


class Refusals:
    """The refusals one holder has spoken of."""

    def __init__(self, where: str) -> None:
        """`where` is how people know the holder: ``mesh play``."""
        self._where = where
        self._said: set[tuple[str, object]] = set()

    def tell(self, who: str, reason: RejectReason, detail: str) -> None:
        """`who` was refused, or refused us."""
        advice = _ADVICE.get(reason)
        if advice is None:
            log.info("%s: no connection with %s: %s", self._where, who, detail)
            return
        if self._is_news(who, reason):
            log.warning("%s: no connection with %s: %s; %s", self._where, who, detail, advice)

    def _is_news(self, who: str, what: object) -> bool:
        if (who, what) in self._said:
            return False
        if len(self._said) >= REMEMBERED:
            self._said.clear()
        self._said.add((who, what))
        return True

    def ended(self, link: PeerLink, ended: Ended) -> None:
        """An attempt is over; says something if either side refused."""
        if ended.failure is None:
            return
        if ended.reject is None:
            # Of keys the transport says by itself what is wrong and what to change.
            if ended.failure.reason is FailureReason.SECURITY_MISMATCH and self._is_news(
                link.endpoint, ended.failure.detail
            ):
                log.warning("%s: no connection with %s: %s", self._where, link.title, ended.failure.detail)
            return
        claim, who, detail = link.claim, link.endpoint, ended.failure.detail
        if claim is not None:
            who = f"node {claim.node_rid} at {who}"
            if ended.reject is RejectReason.TOPOLOGY_MISMATCH:
                detail = f"{detail} (it names the mesh {claim.mesh_name!r})"
        self.tell(who, ended.reject, detail)

    def admitted(self, link: PeerLink) -> None:
        """A connection came about: the next refusal is news."""
        who = (link.endpoint, f"node {link.rid} at {link.endpoint}")
        self._said = {said for said in self._said if said[0] not in who}

    def tell_malformed(self, endpoint: str, error: ProtocolError) -> None:
        """A connection at the listener `endpoint` began with something else than a `hello`."""
        advice = _FIRST_RECORD.get(error.field, "the peer breaks the protocol: check its version")
        log.warning("%s: closing a connection at %s: %s; %s", self._where, endpoint, error, advice)
