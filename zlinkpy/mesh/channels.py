"""A channel's send path in this process: who serves it, and whose turn is next (wire.md §9, §10, SA-124..129)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

from zlinkpy.errors import NotFoundError, UnavailableError, ZlinkError
from zlinkpy.mesh.selection import SmoothWeighted

if TYPE_CHECKING:
    from zlinkpy.mesh.local import LocalTarget
    from zlinkpy.mesh.peer_link import PeerLink
    from zlinkpy.mesh.route_mesh import RouteMesh


@define(eq=False)
class Channel:
    """One registered channel name. Server includes Client: whoever serves may also call."""

    name: str
    mesh: RouteMesh
    serves: bool
    weight: int
    """This node's own weight; meaningless for a Client."""
    cycle: SmoothWeighted[PeerLink | LocalTarget] = field(factory=SmoothWeighted)

    def select(self) -> PeerLink | LocalTarget:
        """Choose the next server. Raises at once when there is none (LV [D6], SA-126)."""
        target = self.cycle.select()
        if target is None:
            raise self._no_target()
        return target

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
