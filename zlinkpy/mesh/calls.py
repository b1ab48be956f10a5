"""The messaging calls of a host: node direct and channel select-one, send and request (SA §H, §M for these calls).

Order inside a call, and why: arguments are checked and the message encoded first, before anything waits (SA-121,
SA-206); then cancellation is looked at; then selection, the pending entry and the submission follow in one synchronous
stretch, so that no other task can see a chosen target that was not given the record. After that nothing is ever given
to another target (SA-130).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar, overload

import trio

from zlinkpy.errors import (
    DeadlineExceededError,
    InvalidOperationError,
    NotConfiguredError,
    NotFoundError,
    ShuttingDownError,
    UnavailableError,
    error_for_kind,
)
from zlinkpy.mesh.channels import SendPath
from zlinkpy.mesh.core import MeshCore
from zlinkpy.mesh.local import LocalTarget
from zlinkpy.mesh.peer_link import PeerLink
from zlinkpy.mesh.request_table import Pending
from zlinkpy.mesh.route_mesh import RouteMesh
from zlinkpy.messages import Request, Shape, to_milliseconds, validate_metadata
from zlinkpy.wire import (
    Record,
    Reply,
    TerminalResult,
    kind_of_reply,
)

R = TypeVar("R")

# A task that sends in a tight loop gives way to others after so many sends that did not have to wait; a checkpoint per
# send would cost more than the send (architecture.md §4).
SENDS_PER_CHECKPOINT = 64

# A call on a ClientServer channel waits this long for a connection that is being made, in seconds (LV [D6]).
ADMISSION_WAIT = 1.0


class Calls:
    """What a running host, and every handler of it, can call."""

    def __init__(self, core: MeshCore) -> None:
        self._core = core
        self._shape = core.shapes.of
        self._sends = 0

    # -- channel -----------------------------------------------------------------------------------------------------

    async def send_to_channel(
        self, channel: str, message: object, *, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Hand a one-way message to one ready server of `channel` (SA-120, SA-124).

        Completes when the local send path or queue has taken it; has no time limit of its own (bound it with a cancel
        scope). Raises NotFoundError (name not registered here, or no member known), UnavailableError (members known,
        none ready, serving and of weight > 0; or the chosen route went away while waiting), ShuttingDownError,
        ValueError and TypeError for arguments. Cancelled before the message was taken, it is never sent; after, it is
        delivered once.
        """
        shape = self._shape(message)
        payload = shape.encode(message)
        flagged = validate_metadata(metadata) if metadata is not None else None
        await trio.lowlevel.checkpoint_if_cancelled()
        path = self._path(channel)
        target = path.select()
        if target is None:
            target = await path.wait_for_target(ADMISSION_WAIT)
        await self._send(target, shape, channel, payload, flagged, metadata)

    @overload
    async def request_to_channel(
        self,
        channel: str,
        request: Request[R],
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> R: ...
    @overload
    async def request_to_channel(
        self, channel: str, request: object, *, timeout: float | None = None, metadata: Mapping[str, str] | None = None
    ) -> Any: ...
    async def request_to_channel(
        self, channel: str, request: object, *, timeout: float | None = None, metadata: Mapping[str, str] | None = None
    ) -> Any:
        """Ask one ready server of `channel` and return its reply (SA-124, SA-198..208).

        `timeout` in seconds, else the mesh's, else the host's default; one budget covers waiting to send, handler and
        reply. Raises as `send_to_channel`, DeadlineExceededError, and the kind a remote error carries. Cancellation
        ends the wait here; the remote handler is neither stopped nor rolled back.
        """
        shape = self._shape(request)
        payload = shape.encode(request)
        flagged = validate_metadata(metadata) if metadata is not None else None
        path = self._path(channel)
        ms = to_milliseconds(timeout) if timeout is not None else path.default_timeout_ms
        await trio.lowlevel.checkpoint_if_cancelled()
        target = path.select()
        deadline = trio.current_time() + ms / 1000
        if target is None:
            target = await path.wait_for_target(min(ADMISSION_WAIT, ms / 1000))
            ms = _milliseconds_left(deadline)
        entry = self._core.requests.open(target, deadline, shape.packet_name)
        return await self._request(target, entry, shape, channel, ms, payload, flagged, metadata)

    # -- node direct ---------------------------------------------------------------------------------------------------

    async def send_to_node(
        self, mesh: str, rid: str, message: object, *, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Hand a one-way message to exactly the node `rid` of `mesh`; weight and drain are ignored (SA-122, wire.md
        §10).

        Raises NotFoundError (no such member, an object client, or an unknown mesh), UnavailableError (member not
        ready).
        """
        shape = self._shape(message)
        payload = shape.encode(message)
        flagged = validate_metadata(metadata) if metadata is not None else None
        await trio.lowlevel.checkpoint_if_cancelled()
        target = self._node(mesh, rid)
        await self._send(target, shape, None, payload, flagged, metadata)

    @overload
    async def request_to_node(
        self,
        mesh: str,
        rid: str,
        request: Request[R],
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> R: ...
    @overload
    async def request_to_node(
        self,
        mesh: str,
        rid: str,
        request: object,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Any: ...
    async def request_to_node(
        self,
        mesh: str,
        rid: str,
        request: object,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Any:
        """Ask exactly the node `rid` of `mesh`. Raises as `send_to_node` and `request_to_channel`."""
        shape = self._shape(request)
        payload = shape.encode(request)
        flagged = validate_metadata(metadata) if metadata is not None else None
        ms = to_milliseconds(timeout) if timeout is not None else self._mesh(mesh).default_timeout_ms
        await trio.lowlevel.checkpoint_if_cancelled()
        target = self._node(mesh, rid)
        entry = self._core.requests.open(target, trio.current_time() + ms / 1000, shape.packet_name)
        return await self._request(target, entry, shape, None, ms, payload, flagged, metadata)

    # -- the framework's own channels ----------------------------------------------------------------------------------

    async def _ask_member(self, mesh: str, rid: str, channel: str, request: Request[R], *, timeout: float) -> R:
        """Ask exactly the node `rid`, of any role, on a channel of the framework. Raises as `request_to_node`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        reply: R = await self.ask_link(self._mesh(mesh).member(rid), channel, request, timeout=timeout)
        return reply

    async def ask_link(self, link: PeerLink, channel: str, request: object, *, timeout: float) -> Any:
        """Ask the peer behind `link`, for the framework. Raises as `request_to_node`."""
        shape = self._shape(request)
        payload = shape.encode(request)
        ms = to_milliseconds(timeout)
        entry = self._core.requests.open(link, trio.current_time() + ms / 1000, shape.packet_name)
        return await self._request(link, entry, shape, channel, ms, payload, None, None)

    # -- the shared stretch -------------------------------------------------------------------------------------------

    def _path(self, channel: str) -> SendPath:
        if not self._core.accepting:
            raise self._closed()
        path = self._core.channels.get(channel)
        if path is None:
            if channel in self._core.served_only:
                raise NotConfiguredError(
                    f"channel {channel!r} is a ClientServer channel that this process serves but does not use; add "
                    f"host.use_client_server({channel!r})"
                )
            raise NotFoundError(
                f"channel {channel!r} is not registered in this process; add mesh.use_channel({channel!r}), "
                f"mesh.serve_channel({channel!r}) or host.use_client_server({channel!r})"
            )
        return path

    def _mesh(self, name: str) -> RouteMesh:
        if not self._core.accepting:
            raise self._closed()
        mesh = self._core.meshes.get(name)
        if mesh is None:
            raise NotFoundError(f"mesh {name!r} is not registered in this process")
        return mesh

    def _node(self, mesh: str, rid: str) -> PeerLink | LocalTarget:
        return self._mesh(mesh).node(rid)

    def _closed(self) -> ShuttingDownError | InvalidOperationError:
        if self._core.runtime_state == 0:
            return InvalidOperationError("the host is not running yet; make calls inside `async with host.run()`")
        return ShuttingDownError("this host is shutting down and takes no new calls")

    async def _send(
        self,
        target: PeerLink | LocalTarget,
        shape: Shape,
        channel: str | None,
        payload: bytes,
        flagged: bytes | None,
        metadata: Mapping[str, str] | None,
    ) -> None:
        if isinstance(target, LocalTarget):
            await target.submit(Record(shape.send_command(channel), _snapshot(metadata), [payload]), ms=None)
        else:
            frames = shape.send_frames(channel, payload, flagged)
            if not target.submit(frames):
                await target.submit_later(lambda: frames)
                return
        self._sends += 1
        if self._sends >= SENDS_PER_CHECKPOINT:
            self._sends = 0
            # The message is taken: cancellation may no longer pretend otherwise (SA-205).
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def _request(
        self,
        target: PeerLink | LocalTarget,
        entry: Pending,
        shape: Shape,
        channel: str | None,
        ms: int,
        payload: bytes,
        flagged: bytes | None,
        metadata: Mapping[str, str] | None,
    ) -> Any:
        requests = self._core.requests
        try:
            if isinstance(target, LocalTarget):
                command = shape.request_command(channel, entry.corr, ms)
                await self._in_time(entry, target.submit(Record(command, _snapshot(metadata), [payload]), ms=ms))
            else:
                frames = shape.request_frames(channel, entry.corr, ms, payload, flagged)
                if not target.submit(frames):

                    def later() -> list[bytes]:
                        left = _milliseconds_left(entry.deadline)
                        return shape.request_frames(channel, entry.corr, min(left, ms), payload, flagged)

                    await self._in_time(entry, target.submit_later(later))
        except BaseException as error:
            if isinstance(error, trio.Cancelled):
                requests.cancel(entry)
            else:
                requests.withdraw(entry)
            raise
        reply, answer = await requests.wait(entry)
        if reply.terminal_result == 0:
            if reply.payload is None:
                return shape.no_reply()
            return shape.decode_reply(reply.payload, answer[0])
        raise _remote_error(reply, shape.packet_name)

    async def _in_time(self, entry: Pending, submission: Any) -> None:
        """Wait for the record to be taken, but not beyond the request's deadline: one budget covers both (SA-203)."""
        with trio.CancelScope(deadline=entry.deadline) as scope:
            await submission
        if scope.cancelled_caught:
            raise DeadlineExceededError(f"{entry.label}: the target took no record within the time given")


def _milliseconds_left(deadline: float) -> int:
    return max(1, math.ceil((deadline - trio.current_time()) * 1000))


def _snapshot(metadata: Mapping[str, str] | None) -> Mapping[str, str] | None:
    return dict(metadata) if metadata else None


def _remote_error(reply: Reply, packet: str) -> Exception:
    """The exception a remote error stands for; decided by the code alone, whatever the text (SA-252)."""
    kind = kind_of_reply(reply.terminal_result, reply.failure_code)
    result = TerminalResult(reply.terminal_result)
    if result is TerminalResult.NOT_CONNECTED:
        return UnavailableError(f"{packet}: the target could not reach what it needed", cause="RouteNotConnected")
    return error_for_kind(
        kind, f"{packet}: the target answered {result.name.lower()} (failure code {reply.failure_code})"
    )
