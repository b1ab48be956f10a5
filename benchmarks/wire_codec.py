"""What the wire codec costs per record, in microseconds: `python -m benchmarks.wire_codec`.

Beside each figure stands the same work done by msgpack alone (pack or unpack of the body, nothing checked): the floor
no codec in Python can go below. Each figure is the best of several rounds, which is what the code costs when the
machine does nothing else.
"""

from __future__ import annotations

import json
import sys
import timeit
from collections.abc import Callable

import msgpack

from zlinkpy.wire import (
    ChannelRequest,
    Flow,
    FlowOrigin,
    Lane,
    LivenessProbe,
    PayloadHead,
    Reply,
    Topology,
    decode,
    encode,
)

CALLS = 50_000
ROUNDS = 7


def cost(action: Callable[[], object]) -> float:
    """Microseconds per call, best of `ROUNDS`."""
    return min(timeit.repeat(action, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def measures() -> dict[str, float]:
    """Name -> microseconds."""
    mesh = Topology.ROUTE_MESH
    parts = [bytes(128)]
    head = PayloadHead("place_order")
    flow = PayloadHead("place_order", flow=Flow("01980a7c-5d2e-7b31-9c44-0123456789ab", FlowOrigin.APPLICATION))
    metadata = {"tenant": "acme", "trace": "1"}
    found: dict[str, float] = {}
    for name, command, lane, entries in (
        ("channelRequest", ChannelRequest(2**40, 30_000, "orders", head), Lane.APPLICATION, None),
        ("channelRequest with a flow", ChannelRequest(2**40, 30_000, "orders", flow), Lane.APPLICATION, None),
        ("channelRequest with metadata", ChannelRequest(2**40, 30_000, "orders", head), Lane.APPLICATION, metadata),
        ("reply", Reply(2**40, 0, 0, None, head), Lane.COMPLETION, None),
        ("livenessProbe", LivenessProbe(2**40), Lane.APPLICATION, None),
    ):
        own = parts if getattr(command, "payload", None) is not None else []
        frames = encode(command, metadata=entries, parts=own)
        body = frames[0][5:]
        value = msgpack.unpackb(body, use_list=False)
        found[f"encode {name}"] = cost(lambda c=command, m=entries, p=own: encode(c, metadata=m, parts=p))
        found[f"  msgpack alone, pack {name}"] = cost(lambda v=value: msgpack.packb(v))
        found[f"decode {name}"] = cost(lambda f=frames, at=lane: decode(f, topology=mesh, lane=at))
        found[f"  msgpack alone, unpack {name}"] = cost(lambda b=body: msgpack.unpackb(b, use_list=False))
    return found


def main() -> int:
    found = measures()
    for name, figure in found.items():
        print(f"{name:55} {figure:7.2f} us", file=sys.stderr)
    print(json.dumps({name.strip(): round(figure, 3) for name, figure in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
