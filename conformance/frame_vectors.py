"""Vectors that belong to no single command: prefixes, metadata frames, fanout, reply tails and error kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.breakage import Spot, breaks
from conformance.forms import to_json
from conformance.packing import BAD_UTF8, EMPTY_MAP, EXTENSION, FLOAT, HUGE_ARRAY, Raw, pack, replaced, tree, widest
from conformance.shapes import FLOW, leaves, shapes
from conformance.vector import Connection, vector
from zlinkpy.wire import (
    ALLOWED_CODES,
    BEACON_PAYLOAD,
    BEACON_TOPIC,
    COMMANDS,
    METADATA_ENTRIES_MAX,
    ChannelRequest,
    FanoutEvent,
    Lane,
    PayloadHead,
    Topology,
    encode,
    encode_fanout,
    encode_metadata,
    kind_of_reply,
    spec_of,
)
from zlinkpy.wire.composite import struct_of
from zlinkpy.wire.limits import FLAG_METADATA
from zlinkpy.wire.table import prefix_of
from zlinkpy.wire.tails import TAILS

MESH = Connection(Topology.ROUTE_MESH, lane=Lane.APPLICATION)
REQUEST = ChannelRequest(7, 30_000, "orders", PayloadHead("place_order"))


def prefixes() -> Iterator[dict[str, Any]]:
    """Steps 1 to 4: frame counts, magic, major, and every reserved number."""
    head, part = encode(REQUEST, parts=[b""])
    for name, frames, field in (
        ("no frame", [], "frames"),
        ("empty frame 0", [b"", part], "prefix"),
        ("prefix cut short", [head[:4], part], "prefix"),
        ("prefix without a body", [head[:5], part], "prefix"),
        ("other magic", [b"ZN" + head[2:], part], "prefix.magic"),
        ("magic turned round", [b"MZ" + head[2:], part], "prefix.magic"),
        ("major 0", [b"ZM\x00" + head[3:], part], "prefix.major"),
        ("major 2", [b"ZM\x02" + head[3:], part], "prefix.major"),
        ("JSON", [b'{"corr": 7}'], "prefix.magic"),
        ("body is a map", [head[:5] + b"\x80", part], "body"),
        ("body is nil", [head[:5] + b"\xc0", part], "body"),
        ("body is the unused byte c1", [head[:5] + b"\xc1", part], "body"),
    ):
        yield vector(name, "channelRequest", MESH, frames, field=field)
    for number in range(256):
        if number not in COMMANDS:
            frames = [prefix_of(number, 0) + b"\x90"]
            yield vector(f"command {number}", f"reserved {number}", MESH, frames, field="prefix.command")


def metadata() -> Iterator[dict[str, Any]]:
    """Metadata frames, each inside a channelRequest."""
    body = encode(REQUEST, parts=[b""])[0][5:]
    spec = spec_of(ChannelRequest)

    def frames(frame: bytes) -> list[bytes]:
        return [prefix_of(spec.id, FLAG_METADATA) + body, frame, b""]

    many = {f"{index:02x}": "" for index in range(METADATA_ENTRIES_MAX)}
    longest = "v" * (1024 - len(encode_metadata({"k": "v" * 900})) + 900)
    for name, entries in (
        ("no entry", {}),
        ("two entries in their order", {"tenant": "acme", "a": "1"}),
        ("empty value", {"tenant": ""}),
        ("not ASCII", {"schlüssel": "wert ✓"}),
        ("key of 255 bytes", {"k" * 255: "v"}),
        ("frame of 1024 bytes", {"k": longest}),
        ("255 entries", many),
    ):
        pairs = [text for pair in entries.items() for text in pair]
        frame = pack([1, pairs])
        value = to_json(spec.bodies[Topology.ROUTE_MESH], REQUEST)
        listed = [list(pair) for pair in entries.items()]
        both = {"value": value, "metadata": listed, "parts": [""]}
        if len(frame) <= 1024:
            yield vector(name, "channelRequest", MESH, frames(frame), **both, canonical=True)
        if len(longer := pack(widest([1, pairs]))) <= 1024:
            yield vector(f"{name}, longest encoding", "channelRequest", MESH, frames(longer), **both, canonical=False)
    for name, node, field in (
        ("nil", None, "metadata"),
        ("map", EMPTY_MAP, "metadata"),
        ("one element", [1], "metadata"),
        ("three elements", [1, [], []], "metadata"),
        ("version 0", [0, []], "metadata.version"),
        ("version 2", [2, []], "metadata.version"),
        ("version true", [True, []], "metadata.version"),
        ("entries are a map", [1, EMPTY_MAP], "metadata.entries"),
        ("entries are nil", [1, None], "metadata.entries"),
        ("key without a value", [1, ["a"]], "metadata.entries"),
        ("256 entries", [1, [text for index in range(256) for text in (f"{index:x}", "")]], "metadata.entries"),
        ("claims 2^31-1 entries", [1, HUGE_ARRAY], "metadata.entries"),
        ("key twice", [1, ["a", "1", "b", "2", "a", "3"]], "metadata.entries[4]"),
        ("empty key", [1, ["", "1"]], "metadata.entries[0]"),
        ("key of 256 bytes", [1, ["k" * 256, "1"]], "metadata.entries[0]"),
        ("number as key", [1, [1, "1"]], "metadata.entries[0]"),
        ("number as value", [1, ["a", 1]], "metadata.entries[1]"),
        ("nil as value", [1, ["a", None]], "metadata.entries[1]"),
        ("bin as value", [1, ["a", b"1"]], "metadata.entries[1]"),
        ("float as value", [1, ["a", FLOAT]], "metadata.entries[1]"),
        ("extension as value", [1, ["a", EXTENSION]], "metadata.entries[1]"),
        ("NUL in a key", [1, ["a\0", "1"]], "metadata.entries[0]"),
        ("NUL in a value", [1, ["a", "1\0"]], "metadata.entries[1]"),
        ("value is not UTF-8", [1, ["a", BAD_UTF8]], "metadata.entries[1]"),
    ):
        yield vector(name, "channelRequest", MESH, frames(pack(node)), field=field)
    for name, frame, field in (
        ("empty", b"", "metadata"),
        ("trailing byte", pack([1, []]) + b"\xc0", "metadata"),
        ("last byte missing", pack([1, ["a", "bc"]])[:-1], "metadata.entries[1]"),
        ("1025 bytes", pack([1, ["k", longest + "v"]]), "metadata"),
    ):
        yield vector(name, "channelRequest", MESH, frames(frame), field=field)


def fanout() -> Iterator[dict[str, Any]]:
    """Events and beacons."""

    def one(name: str, frames: list[bytes], **more: Any) -> dict[str, Any]:
        found = {"name": name, "topology": "fanout", "frames": [frame.hex() for frame in frames]}
        return found | ({"valid": False, **more} if "field" in more else {"valid": True, **more})

    event = FanoutEvent("order/created", "events", "node-a", PayloadHead("order_created"), b"\x81\xa1a\x01")
    topics = ("order/created", "\0", "\x01ZLF", "\x01ZLF1\0", "\x01ZLF2", "ü" * 127)
    heads = (PayloadHead("order_created"), PayloadHead("order_created", flow=FLOW))
    for topic in topics:
        for head in heads[: 2 if topic == topics[0] else 1]:
            for entries in (None, {"tenant": "acme"}):
                made = FanoutEvent(topic, "events", "node-a", head, event.content, entries)
                yield one(
                    f"event on {topic[:16]!r}, flow {head.flow is not None}, metadata {entries is not None}",
                    encode_fanout(made),
                    value={
                        "topic": topic,
                        "channelName": "events",
                        "sourceRid": "node-a",
                        "payload": to_json(struct_of(PayloadHead), head),
                    },
                    metadata=entries and [list(pair) for pair in entries.items()],
                    parts=[event.content.hex()],
                )
    yield one("beacon", [BEACON_TOPIC, BEACON_PAYLOAD], beacon=True)
    topic, head, content = encode_fanout(event)
    for name, frames, field in (
        ("beacon without a payload", [BEACON_TOPIC], "fanout.beacon"),
        ("beacon with three frames", [BEACON_TOPIC, BEACON_PAYLOAD, b""], "fanout.beacon"),
        ("beacon with another payload", [BEACON_TOPIC, b"ZF\x01\x02"], "fanout.beacon"),
        ("beacon with a longer payload", [BEACON_TOPIC, BEACON_PAYLOAD + b"\0"], "fanout.beacon"),
        ("event on the reserved topic", [BEACON_TOPIC, head, content], "fanout.beacon"),
        ("no frame", [], "frames"),
        ("topic only", [topic], "frames"),
        ("no payload", [topic, head], "frames"),
        ("one frame more", [topic, head, content, b""], "frames"),
        ("empty topic", [b"", head, content], "fanout.topic"),
        ("topic of 256 bytes", [b"t" * 256, head, content], "fanout.topic"),
        ("topic is not UTF-8", [b"\xff\xfe", head, content], "fanout.topic"),
        ("head cut short", [topic, head[:5], content], "prefix"),
        ("other magic", [topic, b"XM" + head[2:], content], "prefix.magic"),
        ("major 2", [topic, b"ZM\x02" + head[3:], content], "prefix.major"),
        ("a service command", [topic, b"ZM\x01\x12" + head[4:], content], "prefix.command"),
        ("flags 0x02", [topic, b"ZM\x01\x00\x02" + head[5:], content], "prefix.flags"),
        ("metadata flag without its frame", [topic, b"ZM\x01\x00\x01" + head[5:], content], "frames"),
        ("metadata is no msgpack", [topic, b"ZM\x01\x00\x01" + head[5:], b"\xc1", content], "metadata"),
        ("trailing byte", [topic, head + b"\xc0", content], "body"),
    ):
        yield one(name, frames, field=field)
    node = ["events", "node-a", ["order_created", "application/msgpack", 1, None]]
    for name, place, wrong, field in (
        ("one short", (), node[:2], "body"),
        ("one long", (), [*node, None], "body"),
        ("channel name is nil", (0,), None, "body.channelName"),
        ("channel name is not UTF-8", (0,), BAD_UTF8, "body.channelName"),
        ("source RID is empty", (1,), "", "body.sourceRid"),
        ("source RID of 201 bytes", (1,), "r" * 201, "body.sourceRid"),
        ("payload head is nil", (2,), None, "body.payload"),
        ("two parts", (2, 2), 2, "body.payload.parts"),
        ("no part", (2, 2), 0, "body.payload.parts"),
        ("flow without an origin", (2, 3), [FLOW.flow_id], "body.payload.flow"),
    ):
        yield one(name, [topic, head[:5] + pack(replaced(node, place, wrong)), content], field=field)


def tails() -> Iterator[dict[str, Any]]:
    """Tails of ok replies: which shape goes with which request. `tail` is one msgpack value."""

    def one(name: str, request: str, tail: bytes, **more: Any) -> dict[str, Any]:
        found = {"name": name, "request": request, "tail": tail.hex()}
        return found | ({"valid": False, **more} if "field" in more else {"valid": True, **more})

    for cls, shape in TAILS.items():
        request = spec_of(cls).name
        examples = shapes(shape)
        for index, value in enumerate(examples):
            packed = pack(tree(shape.dump(value, "tail")))
            yield one(f"shape {index + 1}", request, packed, value=to_json(shape, value))
        fullest = max(examples, key=lambda value: leaves(shape.dump(value, "tail")))
        node = tree(shape.dump(fullest, "tail"))
        for each in breaks(shape, Spot(node, fullest, (), "body.tail")):
            if not isinstance(each.node, Raw) and each.node != EMPTY_MAP:  # those never pass the record's own check
                wrong = pack(replaced(node, each.place, each.node))
                yield one(f"{each.field}: {each.label}", request, wrong, field=each.field)
    for spec in COMMANDS.values():
        if spec.cls not in TAILS and "corr" in {name for name, _ in spec.bodies[Topology.ROUTE_MESH].fields}:
            yield one("nil", spec.name, b"\xc0", value=None)
            yield one("not nil", spec.name, b"\x90", field="body.tail")


def error_kinds() -> Iterator[dict[str, Any]]:
    """The public kind of every failed ending."""
    for result, codes in sorted(ALLOWED_CODES.items()):
        for code in sorted(codes):
            if result:
                kind = kind_of_reply(result, code)
                name = f"result {result}, code {code}"
                yield {
                    "name": name,
                    "valid": True,
                    "terminalResult": result,
                    "failureCode": code,
                    "kind": int(kind),
                    "kindName": "".join(word.capitalize() for word in kind.name.split("_")),
                }
