"""Every kind of descriptor behind one face, for tests of rules that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve, frozen

from tests.location_hosts import MESH, Gate, node
from zlinkpy.location import (
    CLIENT_SERVER,
    FANOUT,
    MESH_NODE,
    ClientServerDescriptor,
    Descriptor,
    DescriptorKind,
    FanoutDescriptor,
)
from zlinkpy.location.store import Found, LocationStore, Put
from zlinkpy.wire import RuntimeState

CHANNEL = "orders"
STATES = list(RuntimeState)


def server(rid: str, *, port: int = 0, **fields: Any) -> ClientServerDescriptor:
    """A serving ClientServer server of the test channel on an endpoint of its own."""
    return ClientServerDescriptor(**_common(rid, port) | fields)


def publisher(rid: str, *, port: int = 0, **fields: Any) -> FanoutDescriptor:
    """A serving fanout publisher of the test channel on an endpoint of its own."""
    return FanoutDescriptor(**_common(rid, port) | fields)


def _common(rid: str, port: int) -> dict[str, Any]:
    return {
        "channel_name": CHANNEL,
        "rid": rid,
        "lifecycle_generation": 7,
        "endpoint": f"tcp://10.0.0.1:{port or 5000 + sum(rid.encode())}",
        "security_identity": "plain",
        "state": RuntimeState.SERVING,
    }


@frozen
class Subject:
    """One kind: `describe` makes a descriptor of the test mesh or channel, `vary` gives it the n-th other content.

    n is not divisible by 7.
    """

    kind: DescriptorKind[Any]
    scope: str
    describe: Callable[..., Any]
    vary: Callable[[Any, int], Any]

    @property
    def prefix(self) -> bytes:
        return self.kind.prefix(self.scope)

    def key(self, rid: str) -> bytes:
        return self.kind.key(self.scope, rid)

    async def stored(self, store: LocationStore, rid: str) -> Any:
        """The descriptor as it is in the store, None where there is none."""
        found = await store.read(self.key(rid))
        return self.kind.decode(found.value) if isinstance(found, Found) else None

    def sent(self, gate: Gate) -> list[Any]:
        """Every row that was sent, in order, whether or not it arrived."""
        return [
            self.kind.decode(mutation.value)
            for call in gate.writes(self.prefix)
            for mutation in call.mutations
            if isinstance(mutation, Put) and mutation.key.startswith(self.prefix)
        ]


def _vary_state(descriptor: Descriptor, number: int) -> Descriptor:
    return evolve(descriptor, state=STATES[(number + 1) % len(STATES)])


NODE = Subject(MESH_NODE, MESH, node, lambda descriptor, number: evolve(descriptor, placement_weight=number))
SERVER = Subject(CLIENT_SERVER, CHANNEL, server, lambda descriptor, number: evolve(descriptor, weight=number))
PUBLISHER = Subject(FANOUT, CHANNEL, publisher, _vary_state)
SUBJECTS = [NODE, SERVER, PUBLISHER]

every_kind = pytest.mark.parametrize("subject", SUBJECTS, ids=["node", "server", "publisher"])
channel_kinds = pytest.mark.parametrize("subject", [SERVER, PUBLISHER], ids=["server", "publisher"])
