"""What the Redis stores of sessions share: one server, one pool of connections, one Lua call per step.

Physical layout (single primary; `zl` is the prefix; ids are escaped):

============================================  ======================================================================
``zl:{sid}:lease``                            hash h, t, a (attempt), at; expires with the lease
``zl:{sid}:fence``                            the last token; seven days
``zl:{sid}:rec``                              hash sid, ref, state, ver, attrs, fence, last (turn id)
``zl:{sid}:in:0`` .. ``:2``                   a stream for each priority, fields p (envelope) and k (idempotency key)
``zl:{sid}:d:<delivery id>``                  an inbox id; ten minutes
``zl:{sid}:cb:<batch id>``                    a batch; five minutes
``zl:in:idx``                                 zset: session by the arrival of its oldest waiting message
``zl:idem:<key>``                             hash sid, ih, st, h, ep, c, t, ttl, r
``zl:idem:live``                              zset: held keys in flight by their last touch
============================================  ======================================================================

Nothing here repeats a call; redis-py's own retries are off (`zlinkpy.location.redis_target`, SR-421). A cluster is
refused: the index keys and a session's keys would lie on different nodes (SR-457).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

from zlinkpy.errors import ConfigurationError
from zlinkpy.location.open import store_target
from zlinkpy.location.redis_calls import StoreCalls
from zlinkpy.location.redis_errors import Operation
from zlinkpy.location.redis_scripts import Script, load_script
from zlinkpy.location.redis_session import Argument, RedisSession, StoreIdentity
from zlinkpy.location.redis_target import ClusterTarget, RedisTarget
from zlinkpy.location.store import StoreCorruption, StoreFailure
from zlinkpy.sessions.errors import SessionBackendError

T = TypeVar("T")
DEFAULT_PREFIX: Final = "zl"
CALL_SECONDS: Final = 2.0
CALL_THREADS: Final = 40
_NOUN: Final = "session store"
_ESCAPED: Final = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


def script(name: str, *, grows: bool = False) -> Script:
    """lua/NAME.lua. A script that takes on new work (`grows`) is refused when the server's memory is full; what
    finishes work or gives memory back is not.
    """
    return load_script(name, flags="" if grows else "allow-oom", package="zlinkpy.sessions")


def escaped(text: str) -> str:
    """An id as part of a key: braces mark the hash tag, so they cannot be part of it."""
    return text.translate(_ESCAPED)


def unescaped(data: bytes) -> str:
    """The id behind an escaped one. Raises UnicodeDecodeError."""
    return unquote_to_bytes(data).decode()


class RedisBackend:
    """One server as the session stores of one process use it.

    Args:
        target: a URL as for the location store, or a place.
        prefix: beginning of all keys.
        timeout: seconds, bounds every call.

    Raises:
        ConfigurationError: For a URL that cannot work, and for a cluster.
    """

    def __init__(
        self, target: str | RedisTarget, *, prefix: str = DEFAULT_PREFIX, timeout: float = CALL_SECONDS
    ) -> None:
        place = store_target(target) if isinstance(target, str) else target
        if place is None:
            raise ConfigurationError("memory:// has no server: use open_session_stores")
        if isinstance(place, ClusterTarget):
            raise ConfigurationError(
                "the session stores need one primary and cannot use redis+cluster://: use redis:// or redis+sentinel://"
            )
        if not prefix or set(prefix) & set("{}%") or not prefix.isprintable():
            raise ConfigurationError(f"the prefix of session keys is printable text without {{}}%, not {prefix!r}")
        if not timeout > 0:
            raise ConfigurationError(f"timeout is a positive number of seconds, not {timeout!r}")
        self._place = place
        self._prefix = prefix
        self._identity = StoreIdentity(place.label, _NOUN)
        self._session = RedisSession(place, self._identity, size=CALL_THREADS, timeout=timeout)
        self._calls = StoreCalls(self._identity, timeout=timeout, threads=CALL_THREADS)

    @property
    def label(self) -> str:
        """The server's address for people, without credentials."""
        return self._identity.label

    def session_key(self, session_id: str, *parts: str) -> bytes:
        """``zl:{sid}:part:…``."""
        return ":".join((self._prefix, f"{{{escaped(session_id)}}}", *map(escaped, parts))).encode()

    def key(self, *parts: str) -> bytes:
        """``zl:part:…``; the parts are escaped already."""
        return ":".join((self._prefix, *parts)).encode()

    async def call(
        self,
        family: type[SessionBackendError],
        operation: Operation,
        step: Script,
        keys: Sequence[bytes],
        arguments: Sequence[Argument] = (),
        read: Callable[[list[Any]], T] = lambda answer: answer,  # type: ignore[assignment,return-value]
    ) -> T:
        """Run one script and read its answer. Errors are of `family` (SR-040, SR-076, SR-108).

        Cancelled before it was sent it does nothing; cancelled later it may still take effect.
        """
        try:
            answer = await self._calls.in_thread(
                operation, lambda ticket: self._session.run(operation, step, keys, arguments, ticket)
            )
        except (StoreFailure, StoreCorruption, ConfigurationError) as error:
            raise as_family(family, error) from error
        try:
            return read(answer)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise self.unreadable(family) from error

    def unreadable(self, family: type[SessionBackendError]) -> SessionBackendError:
        """An answer, or a row in it, that none of our builds writes."""
        return family(f"the {_NOUN} {self.label} holds a row that cannot be read", applied="unknown")

    def dedicated(self, timeout: float) -> RedisSession:
        """One connection, for one plain thread; `timeout` seconds bound each of its socket operations."""
        return RedisSession(self._place, self._identity, size=1, timeout=timeout)

    async def aclose(self) -> None:
        """Refuse new calls, let the running ones end, drop the connections. Idempotent."""
        await self._calls.close_after(self._session.close)


def as_family(family: type[SessionBackendError], error: Exception) -> SessionBackendError:
    """A failure of the shared client as an error of the store's family."""
    applied = error.applied if isinstance(error, StoreFailure) else "no"
    return family(str(error), applied=applied, cause=type(error).__name__)


def flags_of(family: type[SessionBackendError], answers: Sequence[Any]) -> list[Any]:
    """The answers of a pipeline of yes-or-no scripts: a bool each, or an error of `family`."""
    return [as_family(family, answer) if isinstance(answer, Exception) else answer[0] == 1 for answer in answers]
