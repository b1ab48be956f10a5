"""What every descriptor has in common, and what sets the kinds apart (facts §3, §4, LO-076..081, LO-137..139).

A descriptor is an immutable value: what one process run tells the others about one thing it offers. All kinds share
who published it, where it listens, its state, and the row around that; `DescriptorKind` holds the rest: keys, field
names, the fields of its own, and which of them may change under one key. Publishing and discovery are written against
the kind and know no concrete descriptor.

Everything that a kind does not name as mutable is identity: a peer admitted with it must stay the peer it was
(LO-138).
"""

from __future__ import annotations

import ipaddress
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar

import attrs
from attrs import evolve, frozen

from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.location.keys import ID_MAX_BYTES, rid_hex
from zlinkpy.location.rows import GENERATION_MAX, RECORD_VERSION, Fields, dump_row, load_row
from zlinkpy.location.store import StoreCorruption
from zlinkpy.wire import RuntimeState

WEIGHT_MAX = 10_000
DEFAULT_WEIGHT = 100
ROW_MAX_BYTES = 1 << 20
ENDPOINT_MAX_BYTES = 4096

_STATES: Mapping[str, RuntimeState] = {state.name.lower(): state for state in RuntimeState}
# What the publisher fills in itself.
_SIGNATURE = frozenset({"descriptor_revision", "owner_id", "lease_generation"})
_OPEN = frozenset({RuntimeState.PREPARING, RuntimeState.SERVING})


def check_weight(weight: object, what: str) -> None:
    """Raises InvalidOperationError unless `weight` is an integer from 0 to 10,000 (LO-139)."""
    if isinstance(weight, bool) or not isinstance(weight, int) or not 0 <= weight <= WEIGHT_MAX:
        raise InvalidOperationError(f"{what} must be an integer from 0 to {WEIGHT_MAX}, not {weight!r}")


def valid_weight(_self: object, attribute: attrs.Attribute[int], weight: int) -> None:
    """`check_weight` as an attrs validator."""
    check_weight(weight, attribute.name)


@frozen(kw_only=True)
class Descriptor(ABC):
    """The part all kinds share.

    `descriptor_revision`, `owner_id` and `lease_generation` are filled in by the publisher; a descriptor read from the
    store always has them.
    """

    rid: str
    lifecycle_generation: int
    endpoint: str
    security_identity: str
    state: RuntimeState = RuntimeState.PREPARING
    descriptor_revision: int = 0
    owner_id: str = ""
    lease_generation: int = 0

    @property
    @abstractmethod
    def kind(self) -> DescriptorKind[Any]:
        """Its kind."""

    @property
    @abstractmethod
    def scope(self) -> str:
        """The mesh or channel it belongs to: what a discovery lists."""

    @property
    def claimed_spot(self) -> str | None:
        """The Entry Spot id that is claimed together with the row, if any (LO-131)."""
        return None

    @property
    def takes_connections(self) -> bool:
        """False from `relocating` on: no new connection is made then, and existing ones stay (LO-175)."""
        return self.state in _OPEN

    def signed(self, revision: int, owner_id: str, lease_generation: int) -> Self:
        """The same content under a revision and an owner."""
        return evolve(self, descriptor_revision=revision, owner_id=owner_id, lease_generation=lease_generation)


D = TypeVar("D", bound=Descriptor)


def _nothing_more(_old: object, _new: object) -> str | None:
    return None


def _nothing_to_check(_descriptor: object) -> None:
    return None


@frozen(kw_only=True)
class DescriptorKind(Generic[D]):
    """One kind of descriptor.

    Attributes:
        type: The attrs class.
        name: What one is called in errors, and in `zlink` output.
        scope_name: What its scope is: ``mesh`` or ``channel``.
        scope_field: The row field with the scope.
        rid_field: The row field with the routing id.
        all_prefix: What every key of the kind begins with, whatever its scope.
        prefix: From a scope to what every key in it begins with.
        key: From a scope and a routing id to the key.
        dump: The row fields that only this kind has.
        build: From the scope, the row fields and what all kinds share to the descriptor.
        mutable: Attributes that may change under one key.
        uncounted: Those of them that alone are worth no revision (LO-137).
        finer_identity: Compares what is part mutable, part identity; the name of an attribute whose identity changed.
        check: Raises ConfigurationError for what this kind cannot publish.
    """

    type: type[D]
    name: str
    scope_name: str
    scope_field: str
    rid_field: str
    all_prefix: bytes
    prefix: Callable[[str], bytes]
    key: Callable[[str, str], bytes]
    dump: Callable[[D], Mapping[str, object]]
    build: Callable[[str, Fields, Mapping[str, Any]], D]
    mutable: frozenset[str]
    uncounted: frozenset[str] = frozenset()
    finer_identity: Callable[[D, D], str | None] = _nothing_more
    check: Callable[[D], None] = _nothing_to_check

    # Content and identity.

    def _names(self) -> tuple[str, ...]:
        return tuple(attribute.name for attribute in attrs.fields(self.type))

    def same_content(self, old: D, new: D) -> bool:
        """True when replacing `old` by `new` is worth no revision: equal, or different in counts only (LO-133,
        LO-137).
        """
        skipped = self.uncounted | _SIGNATURE
        return all(getattr(old, name) == getattr(new, name) for name in self._names() if name not in skipped)

    def changed_identity(self, old: D, new: Descriptor) -> str | None:
        """The name of an attribute that must not change under one key and did, or None (LO-138)."""
        if not isinstance(new, self.type):
            return "kind"
        skipped = self.mutable | self.uncounted | _SIGNATURE
        for name in self._names():
            if name not in skipped and getattr(old, name) != getattr(new, name):
                return name
        return self.finer_identity(old, new)

    def check_publishable(self, descriptor: D) -> None:
        """Raises ConfigurationError when the row could not be read back, dialled or stored whole (LO-081, LO-130).

        Checked before the first store call, so that nothing partial is ever published.
        """
        where = f"{self.scope_name} {descriptor.scope}"
        self.check(descriptor)
        host, _, port = descriptor.endpoint.rpartition("://")[2].rpartition(":")
        if descriptor.endpoint.startswith("tcp://") and (port == "0" or _is_wildcard(host)):
            raise ConfigurationError(f"{where}: {descriptor.endpoint} cannot be dialled by others")
        raw = self.encode(descriptor.signed(GENERATION_MAX, "o" * ID_MAX_BYTES, GENERATION_MAX), GENERATION_MAX)
        if len(raw) > ROW_MAX_BYTES:
            raise ConfigurationError(
                f"{where}: the {self.name}'s description is {len(raw)} bytes, more than {ROW_MAX_BYTES}; "
                "register fewer or shorter names"
            )
        try:
            self.decode(raw)
        except StoreCorruption as problem:
            raise ConfigurationError(f"{where}: {problem.message}") from None

    # Rows.

    def key_of(self, descriptor: D) -> bytes:
        """Where the row of `descriptor` is."""
        return self.key(descriptor.scope, descriptor.rid)

    def encode(self, descriptor: D, updated_at_ms: int) -> bytes:
        """The row bytes. `updated_at_ms` is wall-clock time and only ever displayed (LO-370)."""
        fenced = {
            "ownerId": descriptor.owner_id,
            "leaseGeneration": str(descriptor.lease_generation),
            "descriptorRevision": str(descriptor.descriptor_revision),
        }
        content: dict[str, object] = {
            self.scope_field: descriptor.scope,
            self.rid_field: rid_hex(descriptor.rid),
            "lifecycleGeneration": str(descriptor.lifecycle_generation),
            "descriptorRevision": fenced["descriptorRevision"],
            "endpoint": descriptor.endpoint,
            **self.dump(descriptor),
            "state": descriptor.state.name.lower(),
            "securityIdentity": descriptor.security_identity,
            "ownerId": fenced["ownerId"],
            "leaseGeneration": fenced["leaseGeneration"],
            "updatedAtEpochMs": str(updated_at_ms),
        }
        return dump_row({"recordVersion": RECORD_VERSION, **fenced, "descriptor": content})

    def decode(self, raw: bytes) -> D:
        """Raises StoreCorruption unless every field is there, typed, in range, and the repeated ones agree (LO-078,
        LO-080).
        """
        row = load_row(raw, self.name)
        body = row.child("descriptor")
        owner_id = body.text("ownerId", ID_MAX_BYTES)
        lease_generation = body.generation("leaseGeneration")
        revision = body.generation("descriptorRevision")
        if row.text("ownerId", ID_MAX_BYTES) != owner_id:
            row.fail("ownerId", "differs from descriptor.ownerId")
        if row.generation("leaseGeneration") != lease_generation:
            row.fail("leaseGeneration", "differs from descriptor.leaseGeneration")
        if row.generation("descriptorRevision") != revision:
            row.fail("descriptorRevision", "differs from descriptor.descriptorRevision")
        body.ordinal("updatedAtEpochMs")
        shared = {
            "rid": body.rid(self.rid_field),
            "lifecycle_generation": body.generation("lifecycleGeneration"),
            "descriptor_revision": revision,
            "endpoint": body.text("endpoint", ENDPOINT_MAX_BYTES),
            "state": body.choice("state", _STATES),
            "security_identity": body.text("securityIdentity", ID_MAX_BYTES),
            "owner_id": owner_id,
            "lease_generation": lease_generation,
        }
        return self.build(body.text(self.scope_field, ID_MAX_BYTES), body, shared)

    def decode_at(self, key: bytes, raw: bytes) -> D:
        """`decode`, and StoreCorruption also when the row is under another key than its own."""
        descriptor = self.decode(raw)
        if self.key_of(descriptor) != key:
            raise StoreCorruption(f"a {self.name} row is stored under another key than its own")
        return descriptor


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host in ("", "*")
