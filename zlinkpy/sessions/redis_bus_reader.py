"""The reading thread of the Redis bus: the sole reader of the one subscriber connection.

*Who may write.* A SUBSCRIBE is written by whoever needs it, under a lock: the reader sits in `recv` and could not. The
lock is never waited for. Whoever finds it taken leaves a note, and the one who holds it looks for notes after letting
go; so the event loop does not stand behind a reconnect, and no wish is forgotten.

*What is wanted.* One table of channels says what is to be subscribed; a second one what has been written on this very
connection. Writing is making the second equal the first, which is also all that has to be done after a reconnect. The
gap is lost: pub/sub is at most once (SR-089).

*Whether it is alive.* After `SILENCE_SECONDS` without a word the reader sends a PING; after as long again without an
answer the connection is given up.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import redis
from attrs import frozen
from redis.connection import Connection

from zlinkpy.entropy import Entropy
from zlinkpy.location.redis_target import NodePools
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")

SILENCE_SECONDS: Final = 2.0
RETRY_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Between two attempts to connect, each with up to half as much again at random."""

CHANNELS_PER_COMMAND: Final = 512


@frozen(kw_only=True)
class ReaderStatistics:
    """What the thread did."""

    connected: bool
    connections: int
    channels: int
    received: int


class ReaderThread:
    """Reads until it is closed.

    Args:
        received: called on the thread with the bytes of each message.
        confirmed: called on the thread when a subscription may have become effective.
    """

    def __init__(
        self,
        pools: NodePools,
        label: str,
        entropy: Entropy,
        *,
        received: Callable[[bytes], None],
        confirmed: Callable[[], None],
    ) -> None:
        self._pools = pools
        self._label = label
        self._entropy = entropy
        self._received = received
        self._confirmed = confirmed
        self._writing = threading.Lock()
        self._note = False
        self._table = threading.Lock()
        self._wanted: dict[bytes, None] = {}
        self._changed: dict[bytes, None] = {}
        """What may have to be written."""
        self._written: dict[bytes, None] = {}
        self._outstanding: dict[bytes, int] = {}
        """Commands about a channel that the server has not confirmed yet."""
        self._connection: Connection | None = None
        self._closed = threading.Event()
        self._connections = 0
        self._messages = 0
        self.thread = threading.Thread(target=self.run, name="zlink-session-reader", daemon=True)

    # -- any thread ----------------------------------------------------------------------------------------------------

    def want(self, channels: Iterable[bytes], *, on: bool) -> None:
        """Have channels subscribed, or not any more. Does not wait; see `effective`."""
        with self._table:
            for channel in channels:
                self._changed[channel] = None
                if on:
                    self._wanted[channel] = None
                else:
                    self._wanted.pop(channel, None)
        self._reconcile(0.0)

    def effective(self, channels: Iterable[bytes]) -> bool:
        """True when the server has confirmed all of them on the connection there is now."""
        with self._table:
            return all(channel in self._written and channel not in self._outstanding for channel in channels)

    def _reconcile(self, patience: float) -> None:
        self._note = True
        while self._note and self._writing.acquire(blocking=False):
            try:
                self._note = False
                self._write(patience)
            finally:
                self._writing.release()

    def _write(self, patience: float) -> None:
        """Write what has changed, waiting `patience` seconds for room. What finds none stays for the next time."""
        connection: Any = self._connection
        if connection is None:
            return
        try:
            while self._changed:
                if not _writable(connection, patience):
                    if not patience:
                        return
                    raise redis.TimeoutError("the server does not read")
                command, channels = self._next_command()
                if channels:
                    connection.send_packed_command(connection.pack_command(command, *channels), check_health=False)
        except (redis.RedisError, OSError, ValueError, AttributeError) as error:
            # The reader finds the connection cut and makes a new one, on which everything is written again.
            log.debug("could not subscribe on %s: %r", self._label, error)
            _cut(connection)

    def _next_command(self) -> tuple[str, list[bytes]]:
        """Commands of one kind for some changed channels, counted as written."""
        with self._table:
            chosen: list[bytes] = []
            on: bool | None = None
            for channel in list(self._changed):
                wanted = channel in self._wanted
                if wanted is (channel in self._written):
                    del self._changed[channel]
                    continue
                if on is None:
                    on = wanted
                if on is not wanted or len(chosen) == CHANNELS_PER_COMMAND:
                    continue
                del self._changed[channel]
                chosen.append(channel)
                self._outstanding[channel] = self._outstanding.get(channel, 0) + 1
                if on:
                    self._written[channel] = None
                else:
                    del self._written[channel]
            return ("SUBSCRIBE" if on else "UNSUBSCRIBE"), chosen

    def close(self) -> None:
        """End the thread. The pools are to be closed next, which wakes it."""
        self._closed.set()

    def statistics(self) -> ReaderStatistics:
        """A copy of the counters."""
        return ReaderStatistics(
            connected=self._connection is not None,
            connections=self._connections,
            channels=len(self._written),
            received=self._messages,
        )

    # -- the thread ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The thread."""
        failures = 0
        while not self._closed.is_set():
            connection: Connection | None = None
            try:
                connection = self._pools.pool().get_connection()
                with self._writing, self._table:
                    self._connection = connection
                    self._written, self._outstanding = {}, {}
                    self._changed = dict(self._wanted)
                self._connections += 1
                if self._connections > 1 or failures:
                    log.info("the signal bus %s is connected again; signals of the gap are lost", self._label)
                failures = 0
                self._reconcile(SILENCE_SECONDS)
                self._read(connection)
            except (redis.RedisError, OSError, ValueError, AttributeError) as error:
                if not self._closed.is_set() and not failures:
                    log.warning("the signal bus %s hears nothing: %s", self._label, type(error).__name__)
            except Exception:
                log.exception("the signal bus %s failed to read", self._label)
            self._lose(connection)
            pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
            failures += 1
            self._closed.wait(pause + self._entropy.uniform(0.0, pause / 2))

    def _lose(self, connection: Connection | None) -> None:
        with self._writing, self._table:
            self._connection = None
            self._written, self._outstanding = {}, {}
        if connection is not None:
            try:
                untyped: Any = connection
                untyped.disconnect()
                self._pools.pool().release(connection)
            except Exception:
                log.debug("could not put a broken connection away", exc_info=True)

    def _read(self, connection: Any) -> None:
        silent = False
        while not self._closed.is_set():
            try:
                # The connection stays on a timeout: that is only silence.
                response = connection.read_response(disconnect_on_error=False)
            except redis.TimeoutError:
                if silent:
                    raise
                silent = True
                self._ping(connection)
                continue
            silent = False
            kind = response[0] if isinstance(response, list) and response else None
            if kind == b"message":
                self._messages += 1
                self._received(response[2])
            elif kind in (b"subscribe", b"unsubscribe"):
                self._confirm(response[1])
            if self._changed:
                # Somebody found no room for a command. The server reads, or this would not have come.
                self._reconcile(0.0)

    def _ping(self, connection: Any) -> None:
        with self._writing:
            if not _writable(connection, 0.0):
                raise redis.TimeoutError("the server does not read")
            connection.send_packed_command(connection.pack_command("PING"), check_health=False)
        self._reconcile(SILENCE_SECONDS)

    def _confirm(self, channel: bytes) -> None:
        with self._table:
            left = self._outstanding.get(channel, 0) - 1
            if left > 0:
                self._outstanding[channel] = left
            else:
                self._outstanding.pop(channel, None)
        if left <= 0:
            self._confirmed()


def _writable(connection: Any, seconds: float) -> bool:
    """True when a small command can be written without waiting: the event loop must not stand behind a server that has
    stopped reading."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(connection._sock, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))
    return bool(select.select((), (connection._sock,), (), seconds)[1])


def _cut(connection: Any) -> None:
    """End the connection under its reader, who sees the end and cleans up."""
    try:
        connection._sock.shutdown(2)
    except (OSError, AttributeError):
        pass
