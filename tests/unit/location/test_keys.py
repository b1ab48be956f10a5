"""Logical keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from zlinkpy.errors import InvalidOperationError
from zlinkpy.location import keys

RID = b"\x01\x02\x03\x04".decode()
OPERATION = bytes.fromhex("000000000000002a0000000000000001")


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        (keys.mesh_node("main", RID), "aac806d675ecd83db362198ca6460d35232ef282da1058bf60dc4bf30999fd56"),
        (keys.owner_lease("owner-a"), "2103785f1d2cf83bf4dcf0cca11bd6bdf72ae24838410fd9fbc72d1767a6545e"),
        (keys.client_server("chat-channel", RID), "848378eee73ea88c7fd035ab6891bdfdc2438d59c0c940c4ce5a17266587bc39"),
        (keys.fanout("chat-channel", RID), "07279af82edf18ad56bd98fa926d25c1b3dde9f32d179906d1dd520d5a7030e5"),
        (keys.authority("actor", "user:42"), "644fc59a0a9bebe3ccd4de43ad6c17d06a3b5df1b5585471f014d6a6091ec750"),
        (keys.authority("spot", "room:1"), "85883711be9358294d4b878df17330df09f34e5706b926a4b56b6ba5db23c51a"),
        (keys.creation_terminal(RID, 7, OPERATION), "8cf62444954aeae82a91bb2939e437a39acafa8ee2e66b5a9fe833d048c8fa91"),
    ],
)
def test_published_vectors(key: bytes, digest: str) -> None:
    assert hashlib.sha256(key).hexdigest() == digest


@pytest.mark.contract("LO-071")
def test_ids_enter_unchanged_and_rids_as_hex() -> None:
    assert keys.authority("actor", "User:42%é") == b"authority\0actor\0" + "User:42%é".encode()
    assert keys.entry_spot("A:%ü") == b"entry-spot\0" + "A:%ü".encode()
    assert keys.mesh_node("Main:%", "Né:%") == b"mesh-node\0Main:%\0" + "Né:%".encode().hex().encode()
    assert keys.capacity("m", "r", 7) == b"capacity\0m\x0072\x007"


def test_actor_and_spot_of_one_name_are_two_rows() -> None:
    assert keys.authority("actor", "x") != keys.authority("spot", "x")


def test_a_prefix_holds_its_own_names_only() -> None:
    assert keys.mesh_node("main", "a").startswith(keys.mesh_node_prefix("main"))
    assert not keys.mesh_node("main2", "a").startswith(keys.mesh_node_prefix("main"))
    assert keys.client_server("c", "a").startswith(keys.client_server_prefix("c"))
    assert keys.fanout("c", "a").startswith(keys.fanout_prefix("c"))
    assert keys.authority("spot", "a").startswith(keys.AUTHORITY_PREFIX)
    assert keys.mesh_node("main", "a").startswith(keys.MESH_NODES_PREFIX)


NAMED: list[Callable[[str], bytes]] = [
    lambda name: keys.authority("actor", name),
    lambda name: keys.authority("spot", name),
    lambda name: keys.mesh_node(name, "r"),
    keys.mesh_node_prefix,
    lambda name: keys.client_server(name, "r"),
    lambda name: keys.fanout(name, "r"),
    keys.entry_spot,
    keys.owner_lease,
]


@pytest.mark.contract("LO-073")
@pytest.mark.parametrize("build", NAMED)
def test_names_are_1_to_255_bytes_without_nul(build: Callable[[str], bytes]) -> None:
    for good in ("x", "x" * 255, "é" * 127):
        assert good.encode() in build(good)
    for bad in ("", "x" * 256, "é" * 128, "a\0b", "\0", "\ud800"):
        with pytest.raises(InvalidOperationError):
            build(bad)


def test_rids_are_1_to_200_bytes_and_operation_ids_16() -> None:
    assert keys.mesh_node("m", "r" * 200)
    with pytest.raises(InvalidOperationError, match="routing id"):
        keys.mesh_node("m", "r" * 201)
    with pytest.raises(InvalidOperationError, match="16 bytes"):
        keys.creation_terminal("r", 1, b"short")
