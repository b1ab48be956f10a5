"""JSON rows of leases, Entry claims and MeshNode descriptors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.location import (
    CLIENT_SERVER,
    FANOUT,
    ClientServerDescriptor,
    Descriptor,
    FanoutDescriptor,
    MeshNodeDescriptor,
    NodeCapacity,
    ObjectCapability,
    RelocationPolicy,
    SpotTypeUsage,
    Usage,
)
from zlinkpy.location.descriptor_kind import ROW_MAX_BYTES
from zlinkpy.location.descriptors import (
    CAPABILITIES_MAX,
    check_publishable,
    decode_mesh_node,
    encode_mesh_node,
)
from zlinkpy.location.rows import (
    EntryClaimRow,
    LeaseRow,
    decode_entry_claim,
    decode_lease,
    dump_row,
    lease_remaining,
)
from zlinkpy.location.store import Found, StoreCorruption
from zlinkpy.wire import ObjectRole, RuntimeState

FULL = MeshNodeDescriptor(
    mesh_name="main",
    rid="node-é",
    lifecycle_generation=2**63 - 1,
    descriptor_revision=3,
    endpoint="tcp://10.0.0.1:5501",
    entry_spot_id="node-entry-1",
    channel_weights={"chat": 0, "jobs": 10_000},
    application_version=0,
    object_capabilities=(
        ObjectCapability("actor", "user", RelocationPolicy.SNAPSHOT, has_snapshot_adapter=True, limit=10),
        ObjectCapability("instanceSpot", "room"),
    ),
    object_role=ObjectRole.SERVER,
    placement_weight=100,
    capacity=NodeCapacity(
        Usage(1, 2, 10), Usage(3, 4, 0), (SpotTypeUsage("userSpot", "room", Usage(5, 6, 7)),), 2, 128
    ),
    maintenance_wave="w1",
    state=RuntimeState.SERVING,
    security_identity="plain",
    owner_id="owner-a",
    lease_generation=5,
)
SERVER = ClientServerDescriptor(
    channel_name="chat-channel",
    rid="server-é",
    lifecycle_generation=2**63 - 1,
    descriptor_revision=3,
    endpoint="tcp://10.0.0.1:5502",
    weight=0,
    state=RuntimeState.RELOCATING,
    security_identity="plain",
    owner_id="owner-a",
    lease_generation=5,
)
PUBLISHER = FanoutDescriptor(
    channel_name="chat-channel",
    rid="publisher-é",
    lifecycle_generation=2**63 - 1,
    descriptor_revision=3,
    endpoint="tcp://10.0.0.1:5503",
    state=RuntimeState.DRAINING,
    security_identity="plain",
    owner_id="owner-a",
    lease_generation=5,
)
LEASE = LeaseRow("owner-a", 5)
CLAIM = EntryClaimRow("main", "node-é", "owner-a", 5)

ROWS: list[tuple[bytes, Callable[[bytes], object]]] = [
    (LEASE.encode(), decode_lease),
    (CLAIM.encode(), decode_entry_claim),
    (encode_mesh_node(FULL, 1_700_000_000_000), decode_mesh_node),
    (CLIENT_SERVER.encode(SERVER, 1_700_000_000_000), CLIENT_SERVER.decode),
    (FANOUT.encode(PUBLISHER, 1_700_000_000_000), FANOUT.decode),
]
DESCRIPTORS = ROWS[2:]


def changed(raw: bytes, *path: str, to: object) -> bytes:
    row = json.loads(raw)
    inner: Any = row
    for name in path[:-1]:
        inner = inner[int(name)] if isinstance(inner, list) else inner[name]
    inner[path[-1]] = to
    return dump_row(row)


def without(raw: bytes, *path: str) -> bytes:
    row = json.loads(raw)
    inner: Any = row
    for name in path[:-1]:
        inner = inner[int(name)] if isinstance(inner, list) else inner[name]
    del inner[path[-1]]
    return dump_row(row)


def every_path(value: object, *path: str) -> list[tuple[str, ...]]:
    if isinstance(value, dict):
        return [found for name, inner in value.items() for found in [(*path, name), *every_path(inner, *path, name)]]
    if isinstance(value, list):
        return [found for n, inner in enumerate(value) for found in every_path(inner, *path, str(n))]
    return []


@pytest.mark.contract("LO-076")
def test_lease_row_has_the_published_bytes() -> None:
    assert LEASE.encode() == b'{"recordVersion":1,"ownerId":"owner-a","leaseGeneration":"5"}'
    assert decode_lease(LEASE.encode()) == LEASE


@pytest.mark.contract("LO-076")
def test_mesh_node_row_has_every_field_in_its_published_type() -> None:
    raw = encode_mesh_node(FULL, 1_700_000_000_000)
    assert json.loads(raw) == {
        "recordVersion": 1,
        "ownerId": "owner-a",
        "leaseGeneration": "5",
        "descriptorRevision": "3",
        "descriptor": {
            "meshName": "main",
            "routingIdHex": "node-é".encode().hex(),
            "lifecycleGeneration": "9223372036854775807",
            "descriptorRevision": "3",
            "endpoint": "tcp://10.0.0.1:5501",
            "entrySpotId": "node-entry-1",
            "channelWeights": {"chat": 0, "jobs": 10_000},
            "applicationVersion": "0",
            "objectCapabilities": [
                {
                    "objectKind": "actor",
                    "stableType": "user",
                    "policy": "snapshot",
                    "hasSnapshotAdapter": True,
                    "limit": 10,
                },
                {
                    "objectKind": "instanceSpot",
                    "stableType": "room",
                    "policy": "unspecified",
                    "hasSnapshotAdapter": False,
                    "limit": 0,
                },
            ],
            "objectRole": "server",
            "placementWeight": 100,
            "capacity": {
                "actors": {"active": 1, "reserved": 2, "limit": 10},
                "spots": {"active": 3, "reserved": 4, "limit": 0},
                "spotTypes": [{"objectKind": "userSpot", "stableType": "room", "active": 5, "reserved": 6, "limit": 7}],
            },
            "activationConcurrency": {"active": 2, "limit": 128},
            "maintenanceWave": "w1",
            "state": "serving",
            "securityIdentity": "plain",
            "ownerId": "owner-a",
            "leaseGeneration": "5",
            "updatedAtEpochMs": "1700000000000",
        },
    }
    assert b": " not in raw
    assert decode_mesh_node(raw) == FULL


@pytest.mark.contract("LO-076")
def test_server_row_has_every_field_in_its_published_type() -> None:
    raw = CLIENT_SERVER.encode(SERVER, 1_700_000_000_000)
    assert json.loads(raw) == {
        "recordVersion": 1,
        "ownerId": "owner-a",
        "leaseGeneration": "5",
        "descriptorRevision": "3",
        "descriptor": {
            "channelName": "chat-channel",
            "serverRoutingIdHex": "server-é".encode().hex(),
            "lifecycleGeneration": "9223372036854775807",
            "descriptorRevision": "3",
            "endpoint": "tcp://10.0.0.1:5502",
            "weight": 0,
            "state": "relocating",
            "securityIdentity": "plain",
            "ownerId": "owner-a",
            "leaseGeneration": "5",
            "updatedAtEpochMs": "1700000000000",
        },
    }
    assert b" " not in raw
    assert CLIENT_SERVER.decode(raw) == SERVER


@pytest.mark.contract("LO-076")
def test_publisher_row_has_every_field_in_its_published_type() -> None:
    raw = FANOUT.encode(PUBLISHER, 1_700_000_000_000)
    assert json.loads(raw) == {
        "recordVersion": 1,
        "ownerId": "owner-a",
        "leaseGeneration": "5",
        "descriptorRevision": "3",
        "descriptor": {
            "channelName": "chat-channel",
            "publisherRoutingIdHex": "publisher-é".encode().hex(),
            "lifecycleGeneration": "9223372036854775807",
            "descriptorRevision": "3",
            "endpoint": "tcp://10.0.0.1:5503",
            "state": "draining",
            "securityIdentity": "plain",
            "ownerId": "owner-a",
            "leaseGeneration": "5",
            "updatedAtEpochMs": "1700000000000",
        },
    }
    assert b" " not in raw
    assert FANOUT.decode(raw) == PUBLISHER


@pytest.mark.contract("LO-076")
def test_absent_optionals_are_null() -> None:
    bare = MeshNodeDescriptor(
        mesh_name="m", rid="r", lifecycle_generation=1, endpoint="tcp://h:1", security_identity="plain"
    ).signed(1, "o", 1)
    body = json.loads(encode_mesh_node(bare, 0))["descriptor"]
    assert body["entrySpotId"] is None
    assert body["maintenanceWave"] is None
    assert decode_mesh_node(encode_mesh_node(bare, 0)) == bare


@pytest.mark.contract("LO-141")
@pytest.mark.parametrize(("raw", "decode"), DESCRIPTORS)
def test_the_state_texts_are_the_published_ones(raw: bytes, decode: Callable[[bytes], Descriptor]) -> None:
    names = ("preparing", "serving", "relocating", "relocated", "draining", "stopped", "error")
    rows = [decode(changed(raw, "descriptor", "state", to=name)) for name in names]
    assert [row.state for row in rows] == list(RuntimeState)
    assert [json.loads(row.kind.encode(row, 0))["descriptor"]["state"] for row in rows] == list(names)
    with pytest.raises(StoreCorruption):
        decode(changed(raw, "descriptor", "state", to="SERVING"))


@pytest.mark.contract("LO-175")
@pytest.mark.parametrize("descriptor", [FULL, SERVER, PUBLISHER])
def test_from_relocating_on_no_new_connection_is_made(descriptor: Descriptor) -> None:
    taking = {state for state in RuntimeState if evolve(descriptor, state=state).takes_connections}
    assert taking == {RuntimeState.PREPARING, RuntimeState.SERVING}


@pytest.mark.contract("LO-077")
@pytest.mark.parametrize(("raw", "decode"), ROWS)
def test_a_row_of_no_or_another_version_is_corruption(raw: bytes, decode: Callable[[bytes], object]) -> None:
    for broken in (
        without(raw, "recordVersion"),
        changed(raw, "recordVersion", to=0),
        changed(raw, "recordVersion", to=2),
        changed(raw, "recordVersion", to="1"),
        changed(raw, "recordVersion", to=True),
    ):
        with pytest.raises(StoreCorruption):
            decode(broken)


@pytest.mark.contract("LO-078")
@pytest.mark.parametrize(("raw", "decode"), DESCRIPTORS)
@pytest.mark.parametrize("name", ["ownerId", "leaseGeneration", "descriptorRevision"])
def test_repeated_fields_must_agree(raw: bytes, decode: Callable[[bytes], object], name: str) -> None:
    row = json.loads(raw)
    assert row[name] == row["descriptor"][name]
    for path in ((name,), ("descriptor", name)):
        with pytest.raises(StoreCorruption, match=name):
            decode(changed(raw, *path, to="77"))
        with pytest.raises(StoreCorruption, match=name):
            decode(without(raw, *path))


@pytest.mark.contract("LO-079")
@pytest.mark.parametrize(("raw", "decode"), ROWS)
def test_unknown_extra_fields_are_ignored(raw: bytes, decode: Callable[[bytes], object]) -> None:
    assert decode(changed(raw, "later", to={"x": [1]})) == decode(raw)
    if "descriptor" in json.loads(raw):
        assert decode(changed(raw, "descriptor", "later", to=1)) == decode(raw)
    if decode == decode_mesh_node:
        for place in (("descriptor", "capacity"), ("descriptor", "objectCapabilities", "0")):
            assert decode(changed(raw, *place, "later", to=1)) == decode(raw)


@pytest.mark.contract("LO-080")
@pytest.mark.parametrize(("raw", "decode"), ROWS)
def test_every_field_is_required_and_typed(raw: bytes, decode: Callable[[bytes], object]) -> None:
    for path in every_path(json.loads(raw)):
        if path[:-1] == ("descriptor", "channelWeights"):
            continue
        with pytest.raises(StoreCorruption):
            decode(without(raw, *path))
        for wrong in (1.5, [1], "\0", "x" * 5000, 2**31, -1, {"x": None}):
            with pytest.raises(StoreCorruption):
                decode(changed(raw, *path, to=wrong))


@pytest.mark.contract("LO-080")
@pytest.mark.parametrize("bad", ["0", "-1", "01", "9223372036854775808", "", "1.0", "+1", "٣", 5, None, "1\n"])
@pytest.mark.parametrize(
    ("row", "path"),
    [
        (0, ("leaseGeneration",)),
        (1, ("leaseGeneration",)),
        (2, ("leaseGeneration",)),
        (2, ("descriptor", "lifecycleGeneration")),
        (2, ("descriptor", "descriptorRevision")),
        (3, ("leaseGeneration",)),
        (3, ("descriptor", "lifecycleGeneration")),
        (3, ("descriptor", "descriptorRevision")),
        (4, ("leaseGeneration",)),
        (4, ("descriptor", "lifecycleGeneration")),
        (4, ("descriptor", "descriptorRevision")),
    ],
)
def test_generations_are_canonical_decimal_strings(row: int, path: tuple[str, ...], bad: object) -> None:
    raw, decode = ROWS[row]
    with pytest.raises(StoreCorruption):
        decode(changed(raw, *path, to=bad))


@pytest.mark.contract("LO-080")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b'{"recordVersion":1,"ownerId":"\xff","leaseGeneration":"5"}',
        b'{"recordVersion":1,"ownerId":"\\ud800","leaseGeneration":"5"}',
        b'{"recordVersion":1,"ownerId":"a","ownerId":"b","leaseGeneration":"5"}',
        b'{"recordVersion":NaN,"ownerId":"a","leaseGeneration":"5"}',
        b'{"recordVersion":1,"ownerId":7,"leaseGeneration":"5"}',
        b"[1]",
        b"{}{}",
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_row_are_corruption(raw: bytes) -> None:
    with pytest.raises(StoreCorruption):
        decode_lease(raw)


@pytest.mark.parametrize("descriptor", [FULL, SERVER, PUBLISHER])
@given(noise=st.binary(max_size=60), start=st.integers(0, 200), cut=st.integers(0, 200))
def test_damaged_descriptor_rows_are_corruption_or_rows(
    descriptor: Descriptor, noise: bytes, start: int, cut: int
) -> None:
    raw = descriptor.kind.encode(descriptor, 0)
    damaged = raw[:start] + noise + raw[start + cut :]
    try:
        decoded = descriptor.kind.decode(damaged)
    except StoreCorruption:
        return
    assert descriptor.kind.encode(decoded, 0)


@pytest.mark.contract("LO-080")
@pytest.mark.parametrize(("raw", "decode"), DESCRIPTORS)
def test_a_row_of_another_kind_is_corruption(raw: bytes, decode: Callable[[bytes], object]) -> None:
    for other, _ in ROWS:
        if other != raw:
            with pytest.raises(StoreCorruption):
                decode(other)


@pytest.mark.contract("LO-080")
@pytest.mark.parametrize("weight", [-1, 10_001, 1.0, True, "100", None])
def test_a_server_row_with_an_impossible_weight_is_corruption(weight: object) -> None:
    with pytest.raises(StoreCorruption, match="weight"):
        CLIENT_SERVER.decode(changed(CLIENT_SERVER.encode(SERVER, 0), "descriptor", "weight", to=weight))


@pytest.mark.parametrize("descriptor", [FULL, SERVER, PUBLISHER])
def test_a_row_under_another_key_is_corruption(descriptor: Descriptor) -> None:
    kind = descriptor.kind
    raw = kind.encode(descriptor, 0)
    assert kind.decode_at(kind.key(descriptor.scope, descriptor.rid), raw) == descriptor
    for key in (kind.key(descriptor.scope, "x"), kind.key("other", descriptor.rid)):
        with pytest.raises(StoreCorruption, match="another key"):
            kind.decode_at(key, raw)


def test_what_a_lease_has_left_comes_from_one_answer_and_needs_an_expiry() -> None:
    assert lease_remaining(Found(b"", "1", 1_000_015_000, 1_000_000_000)) == 15.0
    with pytest.raises(StoreCorruption, match="no expiry"):
        lease_remaining(Found(b"", "1", None, 1_000_000_000))


@pytest.mark.contract("LO-139")
@pytest.mark.parametrize("bad", [-1, 10_001, 1.5, True, "5"])
def test_weights_outside_0_to_10000_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidOperationError, match="placement_weight"):
        node(placement_weight=bad)
    with pytest.raises(InvalidOperationError, match="'chat'"):
        node(channel_weights={"chat": bad})
    with pytest.raises(InvalidOperationError, match="weight"):
        evolve(SERVER, weight=bad)


@pytest.mark.contract("LO-139")
def test_weights_from_0_to_10000_are_accepted_and_100_is_the_default() -> None:
    assert node().placement_weight == 100
    for weight in (0, 1, 10_000):
        descriptor = node(placement_weight=weight, channel_weights={"chat": weight})
        assert decode_mesh_node(encode_mesh_node(descriptor.signed(1, "o", 1), 0)).channel_weights == {"chat": weight}
        assert CLIENT_SERVER.decode(CLIENT_SERVER.encode(evolve(SERVER, weight=weight), 0)).weight == weight
    assert ClientServerDescriptor(channel_name="c", **BARE).weight == 100


BARE: dict[str, Any] = {
    "rid": "r",
    "lifecycle_generation": 1,
    "endpoint": "tcp://h:1",
    "security_identity": "plain",
}


def node(**fields: Any) -> MeshNodeDescriptor:
    return MeshNodeDescriptor(**{"mesh_name": "m"} | BARE | fields)


def capabilities(count: int, size: int = 10) -> tuple[ObjectCapability, ...]:
    return tuple(ObjectCapability("actor", f"{n:0{size}}") for n in range(count))


@pytest.mark.contract("LO-081")
def test_1024_capabilities_are_published_and_1025_or_1_mib_are_not() -> None:
    most = node(object_capabilities=capabilities(CAPABILITIES_MAX))
    check_publishable(most)
    assert decode_mesh_node(encode_mesh_node(most.signed(1, "o", 1), 0)).object_capabilities == most.object_capabilities
    with pytest.raises(ConfigurationError, match="1024"):
        check_publishable(node(object_capabilities=capabilities(CAPABILITIES_MAX + 1)))
    wide = node(
        object_capabilities=capabilities(CAPABILITIES_MAX, 255),
        channel_weights={f"{n:0255}": 1 for n in range(3000)},
    )
    with pytest.raises(ConfigurationError, match=str(ROW_MAX_BYTES)):
        check_publishable(wide)


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoint": "tcp://127.0.0.1:0"},
        {"endpoint": "tcp://0.0.0.0:5501"},
        {"endpoint": "tcp://*:5501"},
        {"endpoint": "tcp://[::]:5501"},
        {"endpoint": ""},
        {"lifecycle_generation": 0},
        {"security_identity": ""},
        {"application_version": -1},
        {"object_capabilities": (ObjectCapability("actor", "x", limit=2**31),)},
    ],
)
def test_what_nobody_could_read_or_dial_is_not_published(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        check_publishable(node(**fields))


@pytest.mark.parametrize("descriptor", [SERVER, PUBLISHER])
@pytest.mark.parametrize(
    "fields",
    [
        {"endpoint": "tcp://127.0.0.1:0"},
        {"endpoint": "tcp://0.0.0.0:5501"},
        {"endpoint": ""},
        {"endpoint": "x" * 4097},
        {"endpoint": "x" * ROW_MAX_BYTES},
        {"lifecycle_generation": 0},
        {"security_identity": ""},
        {"channel_name": "x\0"},
    ],
)
def test_a_provider_nobody_could_read_or_dial_is_not_published(descriptor: Descriptor, fields: dict[str, Any]) -> None:
    descriptor.kind.check_publishable(descriptor)
    with pytest.raises(ConfigurationError, match="channel"):
        descriptor.kind.check_publishable(evolve(descriptor, **fields))
