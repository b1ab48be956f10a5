"""Session records on Redis or Valkey: one hash each, written under the fence.

Where leases lie on the same server (`leases_here`), every fenced write also looks at the lease itself: between a
check of holdership and the write nothing can then get in (SR-053). Elsewhere the record's own fence does it, which a
claim raises before it returns (SR-431).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from zlinkpy.sessions.arguments import checked_fence, checked_id, checked_optional_id, checked_state, packed_attrs
from zlinkpy.sessions.errors import SessionRecordError
from zlinkpy.sessions.payloads.values import unpack
from zlinkpy.sessions.redis_backend import RedisBackend, script
from zlinkpy.sessions.types import SessionRecordView, Write

_PROVISION: Final = script("record_provision", grows=True)
_LOAD: Final = script("record_load")
_COMMIT: Final = script("record_commit", grows=True)
_DELETE: Final = script("record_delete")


class RedisRecordStore:
    """`SessionRecordStore` on a `RedisBackend`; closed with it."""

    def __init__(self, backend: RedisBackend, *, leases_here: bool = False) -> None:
        self._backend = backend
        self._check = "1" if leases_here else "0"

    async def provision(
        self, session_id: str, handler_ref: str | None = None, fence: int = 0
    ) -> SessionRecordView | Literal[Write.FENCED]:
        checked_id(session_id, "session id")
        ref = checked_optional_id(handler_ref, "handler_ref") or ""
        return await self._backend.call(
            SessionRecordError,
            "write",
            _PROVISION,
            self._keys(session_id),
            (session_id, ref, checked_fence(fence), self._check),
            lambda answer: _view(session_id, answer) if answer[0] == 1 else Write.FENCED,
        )

    async def load(self, session_id: str) -> SessionRecordView | None:
        checked_id(session_id, "session id")
        return await self._backend.call(
            SessionRecordError,
            "read",
            _LOAD,
            self._keys(session_id)[:1],
            (),
            lambda answer: _view(session_id, answer) if answer[0] == 1 else None,
        )

    async def commit(
        self, session_id: str, state: bytes | None, attrs: Mapping[str, Any], fence: int, turn_id: str
    ) -> Write:
        checked_id(session_id, "session id")
        state = checked_state(state)
        arguments = [checked_id(turn_id, "turn id"), checked_fence(fence), self._check, packed_attrs(attrs)]
        return await self._write(_COMMIT, session_id, arguments if state is None else [*arguments, state])

    async def delete(self, session_id: str, fence: int) -> Write:
        checked_id(session_id, "session id")
        return await self._write(_DELETE, session_id, [checked_fence(fence), self._check])

    async def _write(self, step: Any, session_id: str, arguments: list[Any]) -> Write:
        return await self._backend.call(
            SessionRecordError,
            "write",
            step,
            self._keys(session_id),
            arguments,
            lambda answer: Write(answer[0].decode()),
        )

    def _keys(self, session_id: str) -> list[bytes]:
        return [self._backend.session_key(session_id, part) for part in ("rec", "lease")]


def _view(session_id: str, answer: list[Any]) -> SessionRecordView:
    _, ref, state, version, attrs = answer
    found = unpack(attrs) if attrs else {}
    if not isinstance(found, dict):
        raise ValueError("attributes are a map")
    return SessionRecordView(session_id, None if ref is None else ref.decode(), state, int(version or 0), found)
