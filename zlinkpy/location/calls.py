"""Performing a machine's request against a store, under trio or on a plain thread.

These two functions are the only places that do. Both turn the store's exceptions into answers, because a machine has
rules for them, and let every other exception through, because that is a defect.
"""

from __future__ import annotations

import trio

from zlinkpy.errors import ConfigurationError
from zlinkpy.location.requests import Answer, Lookup, Request, no_answer
from zlinkpy.location.store import BlockingStore, LocationStore, StoreCorruption, StoreFailure


async def perform(store: LocationStore, request: Request) -> Answer:
    """Perform under trio. A cancellation from outside leaves through here unanswered: shield where the outcome
    matters.
    """
    with trio.move_on_after(request.timeout):
        try:
            if isinstance(request, Lookup):
                return await store.read(request.key)
            return await store.write(request.conditions, request.mutations)
        except (StoreFailure, StoreCorruption, ConfigurationError) as failure:
            return failure
    return no_answer(request)


def perform_blocking(store: BlockingStore, request: Request) -> Answer:
    """Perform on a plain thread. The handle's own operation timeout bounds it; a thread cannot be told to give up."""
    try:
        if isinstance(request, Lookup):
            return store.read_blocking(request.key)
        return store.write_blocking(request.conditions, request.mutations)
    except (StoreFailure, StoreCorruption, ConfigurationError) as failure:
        return failure
