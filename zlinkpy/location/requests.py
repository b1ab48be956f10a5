"""Store calls as values: what the pure machines ask for and what they are told (the seam between machine and shell).

A machine never calls the store. It returns a `Lookup` or a `Batch`, the shell performs it and hands the outcome back
as a value; failures are values too, because "the answer was lost" is an input the machines have rules for. With that
the same machine runs under trio, on a plain thread and in a simulation that only knows numbers.

Performing one is the business of `zlinkpy.location.calls`; this module is pure.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from zlinkpy.errors import ConfigurationError
from zlinkpy.location.store import (
    Applied,
    Condition,
    Conflict,
    Found,
    Missing,
    Mutation,
    StoreCorruption,
    StoreFailure,
)


@frozen
class Lookup:
    """Read `key`, giving up after `timeout` seconds."""

    key: bytes
    timeout: float


@frozen
class Batch:
    """One atomic write, given up after `timeout` seconds."""

    conditions: tuple[Condition, ...]
    mutations: tuple[Mutation, ...]
    timeout: float


Request: TypeAlias = Lookup | Batch
Answer: TypeAlias = Missing | Found | Applied | Conflict | StoreFailure | StoreCorruption | ConfigurationError


def no_answer(request: Request) -> StoreFailure:
    """The answer to a request that was given up: a batch may have been applied, a lookup changed nothing."""
    operation = "write" if isinstance(request, Batch) else "read"
    return StoreFailure(
        f"the store did not answer within {request.timeout:g} s",
        applied="unknown" if isinstance(request, Batch) else "no",
        operation=operation,
    )
