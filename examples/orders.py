"""A ClientServer channel: two servers that take orders, and a shop that places them.

Run it: ``python -m examples.orders``. As nodes of their own, found through a store:

    zlink run examples.orders:till --store valkey+embedded://$HOME/zlink-demo
"""

from __future__ import annotations

from collections import Counter

import trio

import zlinkpy as zl


@zl.message
class Placed:
    number: int
    till: str


@zl.message
class Place(zl.Request[Placed]):
    item: str
    count: int = 1


def make_till(name: str, weight: int) -> zl.Host:
    """A host that serves the channel; the other side reaches it at a listener of its own."""
    host = zl.Host()
    orders = host.serve_client_server("orders", rid_prefix=name, weight=weight)
    taken = 0

    @orders.on_request
    async def place(request: Place) -> Placed:
        nonlocal taken
        taken += request.count
        return Placed(taken, name)

    return host


till = make_till("till", 100)


async def main() -> None:
    """Two tills, the second with three times the weight of the first; forty orders."""
    async with make_till("small", 100).run() as small, make_till("large", 300).run() as large:
        shop = zl.Host()
        shop.use_client_server("orders", servers=[till.channel_endpoint("orders") for till in (small, large)])
        async with shop.run() as rt:
            while rt.channel_status("orders").ready_targets < 2:  # noqa: ASYNC110 - only so that the counts are even
                await trio.sleep(0.01)
            tills: Counter[str] = Counter()
            for _ in range(40):
                placed = await rt.request_to_channel("orders", Place("lamp"), timeout=3)
                tills[placed.till] += 1
            print(f"small took {tills['small']} orders, large took {tills['large']}")


if __name__ == "__main__":
    trio.run(main)
