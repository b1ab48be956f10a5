"""One script call on one connection, on whatever thread calls: pick a connection, send once, read once.

It never repeats a command that may have been executed. The only second sends follow answers that prove that nothing
ran: an unknown script, a redirect of a cluster. A connection that could not be made is tried once more when the
target says that it repaired something; nothing had been sent.

Nothing here waits for the event loop, so the same session serves worker threads of the async store and the plain
thread of a dedicated handle.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast

import redis
from redis import exceptions as server
from redis.connection import Connection

from zlinkpy.location.redis_errors import LOCATION_STORE, Operation, Stage, classify, closed
from zlinkpy.location.redis_scripts import Script
from zlinkpy.location.redis_target import NodePools, Pool, RedisTarget, exchange
from zlinkpy.location.store import StoreFailure
from zlinkpy.telemetry import get_logger

logger = get_logger("zlinkpy.location")

Argument: TypeAlias = bytes | int | str
_REDIRECTS = 3
_CLOSE_SECONDS = 1.0


class CallAbandoned(Exception):
    """The caller left before anything was sent, so nothing was. Nobody waits for it any more; it is no failure."""


class Ticket:
    """Settles whether a call was sent before its caller left: exactly one of `begin` and `abandon` comes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: Literal["waiting", "sent", "abandoned"] = "waiting"

    def begin(self) -> None:
        """About to send. Raises CallAbandoned when the caller has left."""
        with self._lock:
            if self._state == "abandoned":
                raise CallAbandoned
            self._state = "sent"

    def unsent(self) -> None:
        """The answer proved that nothing was executed."""
        with self._lock:
            if self._state == "sent":
                self._state = "waiting"

    def abandon(self) -> bool:
        """The caller leaves; True when the command had been sent."""
        with self._lock:
            sent = self._state == "sent"
            self._state = "abandoned"
            return sent


class StoreIdentity:
    """What all sessions of one store share: its names, and whether it ever answered a call (LO-012)."""

    def __init__(self, label: str, noun: str = LOCATION_STORE) -> None:
        self.label = label
        self.noun = noun
        self._answered = threading.Event()
        self._inspected = False
        self._inspecting = threading.Lock()

    @property
    def proven(self) -> bool:
        """True once a call was answered."""
        return self._answered.is_set()

    def answered(self) -> None:
        """A call was answered."""
        self._answered.set()

    def inspect(self, connection: Connection) -> None:
        """Once, before the first call: warn about a server that may throw rows away (LO-066)."""
        if self.proven:
            return
        with self._inspecting:
            if self._inspected:
                return
            try:
                text = bytes(exchange(connection, "INFO", "memory")).decode("utf-8", "replace")
            except server.NoPermissionError:
                text = ""
            self._inspected = True
        facts = dict(line.partition(":")[::2] for line in text.splitlines())
        policy = facts.get("maxmemory_policy", "noeviction")
        if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
            logger.warning(
                "the %s %s may evict rows when memory is short: maxmemory-policy is %s, not noeviction",
                self.noun,
                self.label,
                policy,
            )


class RedisSession:
    """A pool of at most `size` connections to one target."""

    def __init__(self, target: RedisTarget, identity: StoreIdentity, *, size: int, timeout: float) -> None:
        self._target = target
        self._identity = identity
        self._size = size
        self._timeout = timeout
        self._idle = threading.Condition()
        self._running = 0
        self._closed = False
        self._pools: NodePools | None = None

    def run(
        self,
        operation: Operation,
        script: Script,
        keys: Sequence[bytes],
        arguments: Sequence[Argument],
        ticket: Ticket | None = None,
    ) -> list[Any]:
        """Execute `script` once and return its answer.

        Raises StoreFailure, StoreCorruption, ConfigurationError (before the store ever answered) or CallAbandoned.
        """
        pools = self._enter(operation)
        try:
            return self._attempt(pools, operation, script, keys, arguments, ticket or Ticket())
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def run_many(
        self, operation: Operation, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[Argument]]]
    ) -> list[Any]:
        """Execute `script` once for each (keys, arguments) in one round trip on one connection.

        One answer each, in order: what the script returned, or the exception that `run` would have raised. For places
        that have one primary: a redirection is an error. A server that does not know the script costs a second round
        trip for the calls it refused.
        """
        try:
            pools = self._enter(operation)
        except StoreFailure as failure:
            return [failure for _ in calls]
        try:
            return self._pipeline(pools, operation, script, calls)
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def close(self) -> None:
        """Refuse calls, cut the running ones, wait for their threads. Blocks for at most a second or so. Idempotent."""
        with self._idle:
            self._closed = True
            pools, self._pools = self._pools, None
        if pools is not None:
            pools.close()
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0, _CLOSE_SECONDS)

    def _enter(self, operation: Operation) -> NodePools:
        with self._idle:
            if self._closed:
                raise closed(operation, self._identity.label, noun=self._identity.noun)
            if self._pools is None:
                self._pools = self._target.open(self._size, self._timeout)
            self._running += 1
            return self._pools

    def _attempt(
        self,
        pools: NodePools,
        operation: Operation,
        script: Script,
        keys: Sequence[bytes],
        arguments: Sequence[Argument],
        ticket: Ticket,
    ) -> list[Any]:
        asking: Pool | None = None
        for _ in range(_REDIRECTS):
            stage: Stage = "connect"
            try:
                connection, pool = self._connection(pools, asking)
                try:
                    self._identity.inspect(connection)
                    ticket.begin()
                    stage = "sent"
                    answer = _evaluate(connection, script, keys, arguments, asking=asking is not None)
                finally:
                    pool.release(connection)
            except server.MovedError as error:  # a kind of AskError, so it comes first
                ticket.unsent()
                pools.moved(error)
                asking = None
            except server.AskError as error:
                ticket.unsent()
                asking = pools.asked(error)
            except (redis.RedisError, OSError) as error:
                raise self._classified(error, stage, operation) from None
            else:
                self._identity.answered()
                return cast("list[Any]", answer)
        raise self._classified(server.TryAgainError("too many redirects"), "sent", operation)

    def _pipeline(
        self,
        pools: NodePools,
        operation: Operation,
        script: Script,
        calls: Sequence[tuple[Sequence[bytes], Sequence[Argument]]],
    ) -> list[Any]:
        stage: Stage = "connect"
        answers: list[Any] = []
        try:
            connection, pool = self._connection(pools, None)
            try:
                self._identity.inspect(connection)
                stage = "sent"
                commands = [("EVALSHA", script.sha, len(keys), *keys, *arguments) for keys, arguments in calls]
                _exchange_many(connection, commands, answers)
                unknown = [at for at, answer in enumerate(answers) if isinstance(answer, server.NoScriptError)]
                if unknown:
                    exchange(connection, "SCRIPT", "LOAD", script.text)
                    second: list[Any] = []
                    _exchange_many(connection, [commands[at] for at in unknown], second)
                    for at, answer in zip(unknown, second, strict=True):
                        answers[at] = answer
            finally:
                pool.release(connection)
        except (redis.RedisError, OSError) as error:
            # Whatever has no answer yet shares the fate of the connection; a refused script had no effect.
            lost = self._classified(error, stage, operation)
            answers = [lost if isinstance(answer, server.NoScriptError) else answer for answer in answers]
            answers += [lost] * (len(calls) - len(answers))
        else:
            self._identity.answered()
        return [
            self._classified(answer, "sent", operation) if isinstance(answer, redis.RedisError) else answer
            for answer in answers
        ]

    def _connection(self, pools: NodePools, asking: Pool | None) -> tuple[Connection, Pool]:
        if asking is not None:
            return asking.get_connection(), asking
        pool = pools.pool()
        try:
            return pool.get_connection(), pool
        except (server.AuthenticationError, server.AuthorizationError, server.BusyLoadingError):
            raise
        except (redis.ConnectionError, redis.TimeoutError):
            if not pools.refused():
                raise
        pool = pools.pool()
        return pool.get_connection(), pool

    def _classified(self, error: Exception, stage: Stage, operation: Operation) -> Exception:
        names = self._identity
        return classify(
            error, stage=stage, operation=operation, label=names.label, proven=names.proven, noun=names.noun
        )


def _exchange_many(connection: Connection, commands: Sequence[tuple[Any, ...]], answers: list[Any]) -> None:
    """Send all, then read all into `answers`; an error reply is an answer. Raises when the connection is lost."""
    untyped: Any = connection
    untyped.send_packed_command(untyped.pack_commands(commands))
    for _ in commands:
        try:
            answers.append(untyped.read_response(disconnect_on_error=True))
        except redis.ResponseError as error:
            answers.append(error)


def _evaluate(
    connection: Connection, script: Script, keys: Sequence[bytes], arguments: Sequence[Argument], *, asking: bool
) -> Any:
    """EVALSHA, and EVAL once when the server does not know the script: nothing had run (LO-053)."""
    if asking:
        exchange(connection, "ASKING")
    try:
        return exchange(connection, "EVALSHA", script.sha, len(keys), *keys, *arguments)
    except server.NoScriptError:
        if asking:
            exchange(connection, "ASKING")
        return exchange(connection, "EVAL", script.text, len(keys), *keys, *arguments)
