"""What a failed server call means: not applied, unknown, corrupt data, or wrong configuration (LO-012, LO-055, LO-056).

Two facts decide. *When*: an error before the command was handed to the socket changed nothing. *What*: a refusal that
the server issues before it starts a script changed nothing either. Everything else is unknown, because saying "not
applied" wrongly makes the caller repeat a write that happened.

Texts name the store and the reason in our words, never the server's: its words quote keys, commands and scripts
(LO-067).
"""

from __future__ import annotations

from typing import Final, Literal

import redis
from redis import exceptions as server

from zlinkpy.errors import ConfigurationError
from zlinkpy.location.store import StoreCorruption, StoreFailure
from zlinkpy.telemetry import get_logger

logger = get_logger("zlinkpy.location")

LOCATION_STORE: Final = "location store"
Stage = Literal["connect", "sent"]
Operation = Literal["read", "write", "scan"]

# Refusals before execution, by the word the server's text starts with, and the words we use for them.
_REFUSED: Final = {
    "LOADING": "the server is loading its data",
    "READONLY": "the server is a read-only replica",
    "CLUSTERDOWN": "the cluster is down",
    "MASTERDOWN": "the replica has lost its primary",
    "TRYAGAIN": "the cluster is moving the data",
    "MOVED": "the cluster has moved the data",
    "ASK": "the cluster is moving the data",
    "OOM": "the server is out of memory",
    "MISCONF": "the server cannot save its data",
    "NOREPLICAS": "the server has too few replicas",
    "BUSY": "the server is busy",
}
# redis-py takes the first word off the texts of these.
_REFUSED_CLASSES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (server.BusyLoadingError, "LOADING"),
    (server.ReadOnlyError, "READONLY"),
    (server.MasterDownError, "MASTERDOWN"),
    (server.ClusterDownError, "CLUSTERDOWN"),
    (server.TryAgainError, "TRYAGAIN"),
    (server.MovedError, "MOVED"),
    (server.AskError, "ASK"),
    (server.OutOfMemoryError, "OOM"),
)


def classify(
    error: Exception, *, stage: Stage, operation: Operation, label: str, proven: bool, noun: str = LOCATION_STORE
) -> StoreFailure | StoreCorruption | ConfigurationError:
    """Turn a client library's exception into ours.

    `noun` and `label` say what is at the other end, as in "location store redis://host:6379". `proven` is true once
    the store answered a call: from then on refused credentials are a failure of the store, not of the configuration,
    because the process is running.
    """
    logger.debug("%s %s failed (%s, %s): %r", noun, operation, stage, label, error)
    store = f"{noun} {label}"
    if isinstance(error, (server.AuthenticationError, server.AuthorizationError, server.NoPermissionError)):
        if not proven:
            return _refused_credentials(store)
        return _failure("the server refuses the credentials", "no", operation, store)
    refusal = _refusal(error)
    if refusal is not None:
        return _failure(_REFUSED[refusal], "no", operation, store)
    if isinstance(error, redis.ResponseError):
        return _response(error, stage, operation, store, proven)
    if isinstance(error, (redis.TimeoutError, TimeoutError)):
        return _failure("no answer in time", _applied(stage, operation), operation, store)
    if stage == "connect":
        return _failure("no connection", "no", operation, store)
    return _failure("the connection was lost", _applied(stage, operation), operation, store)


def timed_out(
    operation: Operation, label: str, seconds: float, *, sent: bool, noun: str = LOCATION_STORE
) -> StoreFailure:
    """The operation timeout passed; `sent` tells whether the command had been handed to a socket."""
    stage: Stage = "sent" if sent else "connect"
    return _failure(f"no answer within {seconds:g} s", _applied(stage, operation), operation, f"{noun} {label}")


def closed(operation: Operation, label: str, *, noun: str = LOCATION_STORE) -> StoreFailure:
    """A call on a store that was closed."""
    return _failure("it is closed", "no", operation, f"{noun} {label}")


def _response(
    error: redis.ResponseError, stage: Stage, operation: Operation, store: str, proven: bool
) -> StoreFailure | StoreCorruption | ConfigurationError:
    text = str(error)
    if text.startswith(("ZCORRUPT", "WRONGTYPE")):
        return StoreCorruption(f"the {store} holds a row that cannot be read")
    if "ACL failure" in text and not proven:
        return _refused_credentials(store)
    if "compiling script" in text and not proven:
        return ConfigurationError(f"the {store} is too old: Redis 7, Valkey 7.2 or newer is needed")
    return _failure("the server answered with an error", _applied(stage, operation), operation, store)


def _refused_credentials(store: str) -> ConfigurationError:
    return ConfigurationError(f"the {store} refused the credentials: check user, password and permissions of its URL")


def _refusal(error: BaseException) -> str | None:
    for kind, word in _REFUSED_CLASSES:
        if isinstance(error, kind):
            return word
    if isinstance(error, redis.ResponseError):
        word = str(error).split(" ", 1)[0]
        return word if word in _REFUSED else None
    # A sentinel-managed connection turns the demoted primary's READONLY into a connection error around it.
    if isinstance(error.__context__, server.ReadOnlyError):
        return "READONLY"
    return None


def _applied(stage: Stage, operation: Operation) -> Literal["no", "unknown"]:
    return "unknown" if stage == "sent" and operation == "write" else "no"


def _failure(reason: str, applied: Literal["no", "unknown"], operation: Operation, store: str) -> StoreFailure:
    effect = "" if operation != "write" else (" (nothing was written)" if applied == "no" else " (outcome unknown)")
    return StoreFailure(f"{operation} of the {store}: {reason}{effect}", applied=applied, operation=operation)
