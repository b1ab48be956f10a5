"""Session records of one process; the rules of `redis_records`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import define

from zlinkpy.sessions.arguments import checked_fence, checked_id, checked_optional_id, checked_state, packed_attrs
from zlinkpy.sessions.errors import SessionRecordError
from zlinkpy.sessions.memory_backend import MemoryBackend
from zlinkpy.sessions.memory_leases import MemoryLeaseStore
from zlinkpy.sessions.payloads.values import unpack
from zlinkpy.sessions.types import SessionRecordView, Write


@define
class _SessionRecord:
    fence: int = 0
    ref: str | None = None
    state: bytes | None = None
    version: int = 0
    attrs: bytes = b"\x80"
    last: str | None = None


class MemoryRecordStore:
    """`SessionRecordStore` in memory. With `leases`, the two count as one system: writes look at the lease, too."""

    def __init__(self, backend: MemoryBackend | None = None, *, leases: MemoryLeaseStore | None = None) -> None:
        self.backend = backend or MemoryBackend()
        self._leases = leases
        self._records: dict[str, _SessionRecord] = {}
        if leases is not None:
            leases.lie_beside(self._fence)

    async def provision(
        self, session_id: str, handler_ref: str | None = None, fence: int = 0
    ) -> SessionRecordView | Literal[Write.FENCED]:
        checked_id(session_id, "session id")
        checked_optional_id(handler_ref, "handler_ref")
        checked_fence(fence)
        return await self.backend.perform(
            SessionRecordError, "provision", session_id, lambda: self._provision(session_id, handler_ref, fence)
        )

    async def load(self, session_id: str) -> SessionRecordView | None:
        checked_id(session_id, "session id")
        return await self.backend.perform(SessionRecordError, "load", session_id, lambda: self._view(session_id))

    async def commit(
        self, session_id: str, state: bytes | None, attrs: Mapping[str, Any], fence: int, turn_id: str
    ) -> Write:
        checked_id(session_id, "session id")
        checked_id(turn_id, "turn id")
        checked_fence(fence)
        state, packed = checked_state(state), packed_attrs(attrs)
        return await self.backend.perform(
            SessionRecordError, "commit", session_id, lambda: self._commit(session_id, state, packed, fence, turn_id)
        )

    async def delete(self, session_id: str, fence: int) -> Write:
        checked_id(session_id, "session id")
        checked_fence(fence)
        return await self.backend.perform(
            SessionRecordError, "delete", session_id, lambda: self._delete(session_id, fence)
        )

    def _provision(
        self, session_id: str, handler_ref: str | None, fence: int
    ) -> SessionRecordView | Literal[Write.FENCED]:
        record = self._records.get(session_id) or _SessionRecord()
        if fence < record.fence or (fence and self._lease_differs(session_id, fence)):
            return Write.FENCED
        record.fence = fence
        record.ref = record.ref or handler_ref
        self._records[session_id] = record
        return _view(session_id, record)

    def _commit(self, session_id: str, state: bytes | None, attrs: bytes, fence: int, turn_id: str) -> Write:
        record = self._records.get(session_id)
        if record is None:
            return Write.ABSENT
        if (record.last, record.fence) == (turn_id, fence):
            return Write.OK
        if fence < record.fence or self._lease_differs(session_id, fence):
            return Write.FENCED
        record.fence, record.last, record.attrs, record.state = fence, turn_id, attrs, state
        record.version += 1
        return Write.OK

    def _delete(self, session_id: str, fence: int) -> Write:
        record = self._records.get(session_id)
        if record is None:
            return Write.ABSENT
        if fence < record.fence or self._lease_differs(session_id, fence):
            return Write.FENCED
        del self._records[session_id]
        return Write.OK

    def _fence(self, session_id: str) -> int:
        record = self._records.get(session_id)
        return 0 if record is None else record.fence

    def _view(self, session_id: str) -> SessionRecordView | None:
        record = self._records.get(session_id)
        return None if record is None else _view(session_id, record)

    def _lease_differs(self, session_id: str, fence: int) -> bool:
        return self._leases is not None and self._leases.current_token(session_id) != fence


def _view(session_id: str, record: _SessionRecord) -> SessionRecordView:
    return SessionRecordView(session_id, record.ref, record.state, record.version, unpack(record.attrs))
