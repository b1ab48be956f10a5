"""One attempt of a ClientServer client and server to be connected: a `PeerLink` whose one connection is both lanes.

Replies and probes queue on it behind what was submitted before them (wire.md §8), so a peer that does not read gets no
answer to its requests either. What both ends agreed on in their admissions is kept here: nothing larger is submitted.
"""

from __future__ import annotations

from zlinkpy.errors import InvalidOperationError
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

    @property
    def was_admitted(self) -> bool:
        """True once the other end was let in."""
        return self.pair.remote is not None

    def _connected(self, lane: Lane, connection: Connection) -> None:
        super()._connected(lane, connection)
        self._completion = connection

    def _heard(self, admission: Admission) -> None:
        super()._heard(admission)
        self._send_limit = self.pair.send_limit

    def submit(self, frames: list[bytes]) -> bool:
        """As `PeerLink.submit`. Raises InvalidOperationError for a record above the limit; nothing is sent then."""
        self._check_size(frames, "the message")
        return super().submit(frames)

    async def reply(self, frames: list[bytes], deadline: float | None) -> bool:
        """As `PeerLink.reply`. Raises InvalidOperationError for a reply its requester does not take."""
        self._check_size(frames, "the reply")
        return await super().reply(frames, deadline)

    def _check_size(self, frames: list[bytes], what: str) -> None:
        limit = self._send_limit
        if limit is None:
            return
        size = sum(map(len, frames))
        if size > limit:
            whose = "this side's own" if limit == self._own_limit else f"that of {self.title}"
            raise InvalidOperationError(
                f"{what} takes {size} bytes as a record, above the limit max_message_bytes = {limit} of this "
                f"connection ({whose}); raise it on both sides, or send less at once"
            )
