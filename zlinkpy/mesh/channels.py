"""A channel's send path in this process: who serves it, and whose turn is next (wire.md §9, §10, SA-124..129).

One name has one path: a mesh's channel, or a ClientServer client. Calls see a `SendPath` and no topology.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio
from attrs import define, field

from zlinkpy.errors import NotFoundError, UnavailableError, ZlinkError
from zlinkpy.mesh.selection import SmoothWeighted

if TYPE_CHECKING:
    from zlinkpy.mesh.local import LocalTarget
    from zlinkpy.mesh.peer_link import PeerLink
    from zlinkpy.mesh.route_mesh import RouteMesh


class SendPath(Protocol):
    """Where the calls on one channel name go."""

    cycle: SmoothWeighted[PeerLink | LocalTarget]
    """The servers that can be chosen now."""

    @property
    def default_timeout_ms(self) -> int:
        """The time a request has that names none."""

    def select(self) -> PeerLink | LocalTarget | None:
        """Choose the next server. None: there is none yet, and `wait_for_target` is worth it. Raises NotFoundError or
        UnavailableError when there is none (LV [D6])."""

    async def wait_for_target(self, seconds: float) -> PeerLink | LocalTarget:
        """Wait at most `seconds` for a connection that is being made, then choose; raises as `select`. Nothing is
        awaited after the choice."""


@define(eq=False)
class Channel:
    """One registered channel name. Server includes Client: whoever serves may also call."""

    name: str
    mesh: RouteMesh
    serves: bool
    weight: int
    """This node's own weight; meaningless for a Client."""
    cycle: SmoothWeighted[PeerLink | LocalTarget] = field(factory=SmoothWeighted)

    @property
    def default_timeout_ms(self) -> int:
        return self.mesh.default_timeout_ms

    def select(self) -> PeerLink | LocalTarget:
        """Choose the next server. Raises at once when there is none (LV [D6], SA-126)."""
        target = self.cycle.select()
        if target is None:
            raise self._no_target()
        return target

    async def wait_for_target(self, seconds: float) -> PeerLink | LocalTarget:
        """A mesh decides at once."""
        await trio.lowlevel.checkpoint()
        return self.select()

    def _no_target(self) -> ZlinkError:
        known, undecided = self.mesh.members_of(self.name)
        if not known and not undecided:
            return NotFoundError(
                f"channel {self.name!r}: no node of mesh {self.mesh.name!r} is known to serve it; "
                "start one that does, or check the channel's name"
            )
        if not known:
            return UnavailableError(
                f"channel {self.name!r}: {undecided} configured peer(s) of mesh {self.mesh.name!r} have not been "
                "reached yet, and no other node is known to serve it",
                cause="RouteNotConnected",
            )
        return UnavailableError(
            f"channel {self.name!r}: none of its {known} known server(s) in mesh {self.mesh.name!r} is ready, serving "
            "and of weight above 0",
            cause="RouteNotConnected",
        )
