"""A channel of the framework among the members of one mesh: tell one, ask one, hear them all (wire.md §9).

A *member* is a peer that serves the channel, too, on one connection: a peer that reconnects is a new member, so nothing
that was known of it outlives the connection (LV-145). What is told is handed to the transport at once or not at all;
nothing here waits for a peer unless it is asked to, and nothing takes a job permit.

Unlike the channels that every node answers, this one is published, with weight 0: it makes two Object Clients require
each other (LV-30), and no channel call can choose it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from zlinkpy.errors import InvalidOperationError
from zlinkpy.mesh.calls import Calls
from zlinkpy.messages import RawMessage
from zlinkpy.telemetry import get_logger

if TYPE_CHECKING:
    from zlinkpy.mesh.peer_link import PeerLink
    from zlinkpy.mesh.route_mesh import RouteMesh
    from zlinkpy.messages import Shape

log = get_logger("zlinkpy.mesh")

Told = Callable[["Member", bytes], None]
"""Takes what a member told: the member and the payload. Runs in the receive turn: it must not wait, and do little. A
ProtocolError refuses the payload."""


class Member:
    """A peer that serves the channel, on one connection."""

    __slots__ = ("_channel", "_link", "rid")

    def __init__(self, channel: MemberChannel, link: PeerLink) -> None:
        self._channel = channel
        self._link = link
        self.rid = link.rid or ""

    def __repr__(self) -> str:
        return f"<Member {self.rid}>"

    @property
    def is_ready(self) -> bool:
        """True while it can be told something."""
        return self._link.is_ready

    def tell(self, frames: list[bytes]) -> bool:
        """Hand over one message, as `MemberChannel.frames` made it. False: there is no room now, or the peer is paused;
        nothing was taken. Raises UnavailableError or ShuttingDownError when the connection is gone."""
        return self._link.submit(frames)

    async def tell_later(self, frames: Callable[[], list[bytes]]) -> None:
        """Wait in line for room, then hand over what `frames` makes at that moment; it is called again when that was
        refused after all. Raises as `tell`."""
        await self._link.submit_later(frames)

    async def ask(self, packet: str, payload: bytes, *, timeout: float) -> None:
        """Ask for a confirmation. Raises as `Calls.request_to_node`."""
        message = RawMessage(packet, payload)
        await self._channel.calls.ask_link(self._link, self._channel.name, message, timeout=timeout)


class MemberChannel:
    """One host's end of the channel. Made by `open_member_channel`."""

    def __init__(self, mesh: RouteMesh, name: str) -> None:
        self.name = name
        self.calls = Calls(mesh.core)
        self._mesh = mesh
        self._shapes: dict[str, Shape] = {}
        self._known: dict[PeerLink, Member] = {}
        self._ready: dict[Member, None] = {}
        self.told: dict[str, Told] = {}
        """What takes the one-way messages, by packet name."""
        self.asked: dict[str, Told] = {}
        """What takes the requests, by packet name; they are confirmed when it returns."""
        self.on_joined: Callable[[Member], None] = _nothing
        self.on_left: Callable[[Member], None] = _nothing
        """Called once for a member that was known in any way, in the instant in which it can no longer be told
        anything."""

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._ready))

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def rid(self) -> str:
        """This node's own routing id."""
        return self._mesh.rid

    @property
    def limit(self) -> int | None:
        """The largest frame this mesh takes, as far as this node is told; None: no bound. A larger one would cost the
        connection it is sent on."""
        return self._mesh.options.max_message_bytes

    def frames(self, packet: str, payload: bytes) -> list[bytes]:
        """A one-way message for any number of members."""
        shape = self._shapes.get(packet)
        if shape is None:
            shape = self._shapes[packet] = self._mesh.core.shapes.of(RawMessage(packet, b""))
        return shape.send_frames(self.name, payload, None)

    def member_of(self, link: PeerLink) -> Member:
        """The member behind `link`, which has sent something: it may be ready before this side is."""
        member = self._known.get(link)
        if member is None:
            member = self._known[link] = Member(self, link)
        return member

    def refresh(self) -> None:
        """Called whenever a peer may have become ready, or stopped being so."""
        for link, member in tuple(self._known.items()):
            if link.ended:
                del self._known[link]
                self._ready.pop(member, None)
                self._tell_owner(self.on_left, member)
        for peer in self._mesh.book:
            current = peer.link
            if current is not None and current.is_ready and self.name in peer.channels:
                member = self.member_of(current)
                if member not in self._ready:
                    self._ready[member] = None
                    self._tell_owner(self.on_joined, member)

    def _tell_owner(self, callback: Callable[[Member], None], member: Member) -> None:
        try:
            callback(member)
        except Exception:
            log.exception("the owner of channel %s failed over a change of its members", self.name)

    def close(self) -> None:
        """Hear and tell nothing any more; the channel stays published. Idempotent."""
        if self._mesh.member_channels.get(self.name) is self:
            self._mesh.member_channels[self.name] = None
        self._known.clear()
        self._ready.clear()


def open_member_channel(mesh: RouteMesh, name: str) -> MemberChannel:
    """Take hold of the channel on a running mesh.

    Raises InvalidOperationError when it was not registered before the start, or is in use already.
    """
    if name not in mesh.member_channels:
        raise InvalidOperationError(
            f"channel {name!r} is not published by this node: what uses it has to be made before host.run()"
        )
    if mesh.member_channels[name] is not None:
        raise InvalidOperationError(f"channel {name!r} of mesh {mesh.name!r} has one user in a process, and has it")
    channel = mesh.member_channels[name] = MemberChannel(mesh, name)
    return channel


def _nothing(_member: Member) -> None:
    pass
