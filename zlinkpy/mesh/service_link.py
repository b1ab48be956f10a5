"""One attempt of a ClientServer client and server to be connected: a `PeerLink` whose one connection is both lanes.

Replies and probes queue on it behind what was submitted before them (wire.md §8), so a peer that does not read gets no
answer to its requests either. What both ends agreed on in their admissions is kept here: nothing larger is submitted.
"""

from __future__ import annotations

from zlinkpy.errors import InternalFailureError, InvalidOperationError
from zlinkpy.link import ServicePair
from zlinkpy.mesh.peer_link import LaneSink, LinkOwner, PeerLink
from zlinkpy.transport import Connection
from zlinkpy.wire import Admission, Direction, Lane, Topology

LANE = Lane.APPLICATION


class ServiceSink(LaneSink):
    """The sink of a ClientServer connection."""

    __slots__ = ("direction", "max_bytes")
    topology = Topology.CLIENT_SERVER

    def __init__(self, mesh: LinkOwner, link: ServiceLink, max_bytes: int | None) -> None:
        """`max_bytes` is what a record may have that comes in, over all its frames; None for no cap."""
        super().__init__(mesh, link, LANE)
        self.direction = Direction.TO_CLIENT if link.dialler else Direction.TO_SERVER
        self.max_bytes = max_bytes


class ServiceLink(PeerLink):
    """The client's end (`dialler`) or the server's."""

    pair: ServicePair

    def __init__(self, mesh: LinkOwner, pair: ServicePair, *, endpoint: str, dialler: bool, own_limit: int) -> None:
        """`own_limit` is what this end said: `maxMessageBytes` of its admission."""
        super().__init__(mesh, pair, endpoint=endpoint, dialler=dialler)
        self._own_limit = own_limit
        self._send_limit: int | None = None

    @property
    def title(self) -> str:
        return f"server {self.rid or self.endpoint}" if self.dialler else f"a client at {self.endpoint}"

    def _connected(self, lane: Lane, connection: Connection) -> None:
        super()._connected(lane, connection)
        self._completion = connection

    def _heard(self, admission: Admission) -> None:
        super()._heard(admission)
        self._send_limit = self.pair.send_limit

    def submit(self, frames: list[bytes]) -> bool:
        """As `PeerLink.submit`. Raises InvalidOperationError for a record above the limit; nothing is sent then."""
        if self._is_too_large(frames):
            raise InvalidOperationError(self._complaint("the message", frames))
        return super().submit(frames)

    async def reply(self, frames: list[bytes], deadline: float | None) -> bool:
        """As `PeerLink.reply`. Raises InternalFailureError for a reply above the limit: a handler made what
        nobody can be given."""
        if self._is_too_large(frames):
            raise InternalFailureError(self._complaint("the reply", frames))
        return await super().reply(frames, deadline)

    def _is_too_large(self, frames: list[bytes]) -> bool:
        return self._send_limit is not None and sum(map(len, frames)) > self._send_limit

    def _complaint(self, what: str, frames: list[bytes]) -> str:
        whose = "of this side" if self._send_limit == self._own_limit else f"of {self.title}"
        return (
            f"{what} takes {sum(map(len, frames))} bytes as a record; this connection takes at most "
            f"{self._send_limit}, the max_message_bytes {whose}: raise it, or send less at once"
        )
