"""Logical keys of the Location Store: pure functions from names to bytes (facts §3, LO-070..073).

Parts are joined by one NUL byte and enter the key as their own UTF-8 bytes, without escaping or length prefix; that
is safe because no part may hold a NUL. Routing ids are the exception: they enter as lowercase hex, so that a key
stays readable whatever a routing id is made of. How a provider turns a logical key into a physical one is the
provider's business.

Every function refuses a bad part with `InvalidOperationError` before anything is sent.
"""

from __future__ import annotations

from typing import Literal

from zlinkpy.errors import InvalidOperationError

SEPARATOR = b"\0"
ID_MAX_BYTES = 255
RID_MAX_BYTES = 200
OPERATION_ID_BYTES = 16

OWNER_COUNTER = b"zlink:v11:owner-counter"
OBJECT_COUNTER = b"zlink:v11:object-counter"
AUTHORITY_OWNER_COUNTER = b"zlink:v11:authority-owner-counter"

AUTHORITY_PREFIX = b"authority\0"
MESH_NODES_PREFIX = b"mesh-node\0"
CLIENT_SERVERS_PREFIX = b"client-server\0"
FANOUT_PUBLISHERS_PREFIX = b"fanout-publisher\0"


def encode_part(text: str, what: str, limit: int = ID_MAX_BYTES) -> bytes:
    """The UTF-8 bytes of one name, 1..`limit`, without NUL. Raises InvalidOperationError naming `what` (LO-073)."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise InvalidOperationError(f"{what} {text!r} cannot be written as UTF-8") from None
    if not 1 <= len(raw) <= limit:
        raise InvalidOperationError(f"{what} must be 1 to {limit} bytes of UTF-8, not {len(raw)}")
    if SEPARATOR in raw:
        raise InvalidOperationError(f"{what} {text!r} must not contain NUL")
    return raw


def rid_hex(rid: str) -> str:
    """Lowercase hex of a routing id's UTF-8 bytes (1..200)."""
    return encode_part(rid, "routing id", RID_MAX_BYTES).hex()


def _join(*parts: bytes) -> bytes:
    return SEPARATOR.join(parts)


def owner_lease(owner_id: str) -> bytes:
    """The lease row of one process run."""
    return _join(b"owner-lease", encode_part(owner_id, "owner id"))


def mesh_node_prefix(mesh_name: str) -> bytes:
    """What every MeshNode descriptor key of one mesh begins with."""
    return MESH_NODES_PREFIX + encode_part(mesh_name, "mesh name") + SEPARATOR


def mesh_node(mesh_name: str, rid: str) -> bytes:
    """The descriptor row of one MeshNode."""
    return mesh_node_prefix(mesh_name) + rid_hex(rid).encode()


def client_server_prefix(channel_name: str) -> bytes:
    """What every ClientServer server descriptor key of one channel begins with."""
    return CLIENT_SERVERS_PREFIX + encode_part(channel_name, "channel name") + SEPARATOR


def client_server(channel_name: str, rid: str) -> bytes:
    """The descriptor row of one ClientServer server."""
    return client_server_prefix(channel_name) + rid_hex(rid).encode()


def fanout_prefix(channel_name: str) -> bytes:
    """What every fanout publisher descriptor key of one channel begins with."""
    return FANOUT_PUBLISHERS_PREFIX + encode_part(channel_name, "channel name") + SEPARATOR


def fanout(channel_name: str, rid: str) -> bytes:
    """The descriptor row of one fanout publisher."""
    return fanout_prefix(channel_name) + rid_hex(rid).encode()


def authority(kind: Literal["actor", "spot"], object_id: str) -> bytes:
    """The authority row of an Actor, or of a Spot of any kind: Spots share one name space (LO-072)."""
    return AUTHORITY_PREFIX + _join(kind.encode(), encode_part(object_id, f"{kind} id"))


def entry_spot(entry_spot_id: str) -> bytes:
    """The claim of an Entry Spot id by the MeshNode that hosts it."""
    return _join(b"entry-spot", encode_part(entry_spot_id, "entry spot id"))


def capacity(mesh_name: str, rid: str, lifecycle_generation: int) -> bytes:
    """The used capacity of one MeshNode run."""
    mesh = encode_part(mesh_name, "mesh name")
    return _join(b"capacity", mesh, rid_hex(rid).encode(), str(lifecycle_generation).encode())


def creation_terminal(source_rid: str, source_lifecycle: int, operation_id: bytes) -> bytes:
    """The stored end of one creation. `operation_id` is 16 bytes."""
    if len(operation_id) != OPERATION_ID_BYTES:
        raise InvalidOperationError(f"operation id must be {OPERATION_ID_BYTES} bytes, not {len(operation_id)}")
    source = rid_hex(source_rid).encode()
    return _join(b"creation-terminal", source, str(source_lifecycle).encode(), operation_id.hex().encode())
