"""Status of sessions: what is broadcast while a pass runs, and what is known of others (SR §23).

Only people read it. No path of the router looks at a status to decide anything (SR-367, SR-391).
"""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import trio

from zlinkpy.sessions.core import RouterCore, log
from zlinkpy.sessions.payloads import decode_status, encode_status
from zlinkpy.sessions.projection_machine import StatusProjection
from zlinkpy.sessions.spi import LiveSession
from zlinkpy.sessions.types import (
    ClusterSessionStatus,
    LiveSessionStatus,
    SessionSignal,
    SignalKind,
    StatusSnapshot,
    StatusSource,
)


def _printed_millis() -> int:
    """When a snapshot was taken, for people."""
    return int(time.time() * 1000)


class StatusHeartbeat(AbstractAsyncContextManager["StatusHeartbeat"]):
    """Snapshots of a running pass: at its start, every heartbeat, at its end (SR-366). Off: nothing at all."""

    def __init__(self, core: RouterCore, session_id: str, session: LiveSession) -> None:
        self._core, self._session_id, self._session = core, session_id, session
        self._scope = trio.CancelScope()

    async def __aenter__(self) -> StatusHeartbeat:
        if self._core.config.status_broadcast:
            self._core.background_nursery.start_soon(self._beat)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._core.config.status_broadcast:
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await self._send()

    async def _beat(self) -> None:
        with self._scope:
            while True:
                await self._send()
                await trio.sleep(self._core.config.status_heartbeat_interval)

    async def _send(self) -> None:
        core = self._core
        try:
            status = self._session.status()
        except Exception:  # noqa: BLE001 - the handler's own code
            log.exception("the status of session %r could not be had", self._session_id)
            return
        core.status_seq += 1
        snapshot = StatusSnapshot(status, _printed_millis(), core.status_seq)
        await core.publish(core.signal(self._session_id, SignalKind.STATUS, encode_status(snapshot)))


class StatusView:
    """What this node can say of a session."""

    def __init__(self, core: RouterCore) -> None:
        self._core = core
        self.projection: StatusProjection[StatusSnapshot] = StatusProjection()

    def received(self, signal: SessionSignal) -> None:
        """A STATUS signal of another router."""
        snapshot = decode_status(signal.payload)
        if snapshot is not None:
            origin = f"{signal.origin_node}/{signal.origin_instance}"
            self.projection.apply(signal.session_id, origin, snapshot.seq, snapshot)

    def of(self, session_id: str) -> ClusterSessionStatus:
        """The handle here, else what another node said last, else nothing (SR-365)."""
        entry = self._core.cache.peek(session_id)
        if entry is not None:
            return ClusterSessionStatus(
                StatusSource.LOCAL_HOLDER, _status(entry.handle), self._core.node_id, _printed_millis()
            )
        known = self.projection.get(session_id)
        if known is None:
            return ClusterSessionStatus(StatusSource.UNKNOWN)
        node = known.origin.rpartition("/")[0]
        return ClusterSessionStatus(StatusSource.REMOTE_PROJECTION, known.status.status, node, known.status.observed_at)


def _status(session: LiveSession) -> LiveSessionStatus | None:
    try:
        return session.status()
    except Exception:  # noqa: BLE001 - the handler's own code
        log.exception("the status of a session could not be had")
        return None
