"""The smallest mesh: one node that greets, one that asks. No store: the second node is given an address.

python examples/greeter.py            both in one process
zlink run examples.greeter:host       the greeting node alone; ask it from another terminal:
zlink request greetings Greet '{"name": "Ann"}' --mesh hello --peer tcp://127.0.0.1:PORT
"""

from __future__ import annotations

import trio

import zlinkpy as zl


@zl.message
class Greeting:
    text: str


@zl.message
class Greet(zl.Request[Greeting]):
    name: str


host = zl.Host()
hello = host.mesh("hello")
hello.serve_channel("greetings")


@hello.on_channel_request("greetings")
async def greet(request: Greet) -> Greeting:
    return Greeting(f"Hello, {request.name}!")


async def main() -> None:
    async with host.run() as greeter:
        visitor = zl.Host()
        visitor.mesh("hello", peers=[greeter.endpoint("hello")]).use_channel("greetings")
        async with visitor.run() as rt:
            await rt.wait_ready_target("greetings")
            greeting = await rt.request_to_channel("greetings", Greet("Ann"), timeout=3)
            print(greeting.text)


if __name__ == "__main__":
    trio.run(main)
