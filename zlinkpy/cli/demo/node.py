"""The node that ``zlink demo`` starts three times, as a host like any application's.

It is a module of the package rather than of ``examples/``, because the demo must also work where only the wheel is
installed; ``examples/demo_node.py`` runs this very host. Every answer says which node gave it, under the name the
demo passes in the environment.
"""

from __future__ import annotations

import os

from zlinkpy.messages import Request, message
from zlinkpy.runtime import Host

MESH = "demo"
NAME_VARIABLE = "DEMO_NODE"
"""Not ``ZLINK_…``: those variables are settings, and an unknown one is refused."""
NAME = os.environ.get(NAME_VARIABLE, "node")


@message
class Echoed:
    """The text that came in."""

    text: str
    served_by: str


@message
class Echo(Request[Echoed]):
    """Channel ``echo``."""

    text: str


@message
class Total:
    """What the numbers add up to."""

    value: int
    served_by: str


@message
class Sum(Request[Total]):
    """Channel ``sum``."""

    numbers: list[int]


@message
class Greeting:
    """Who answered."""

    served_by: str


@message
class Greet(Request[Greeting]):
    """To exactly one node."""


@message
class Squared:
    """The square."""

    value: int
    served_by: str


@message
class Square(Request[Squared]):
    """ClientServer channel ``square``."""

    number: int


@message
class Served:
    """Fanout channel ``served``: an echo was answered."""

    by: str


host = Host(shutdown_deadline=5)
demo = host.mesh(MESH, rid_prefix=NAME)
demo.serve_channel("echo")
demo.serve_channel("sum")
squares = host.serve_client_server("square", rid_prefix=NAME)
host.fanout_publisher("served", rid_prefix=NAME)


@demo.on_channel_request("echo")
async def echo(request: Echo) -> Echoed:
    """Repeat the text, and let everybody know."""
    await host.runtime.publish("served", None, Served(NAME))
    return Echoed(request.text, NAME)


@demo.on_channel_request("sum")
def add(request: Sum) -> Total:
    """Add the numbers; a plain function is a handler, too."""
    return Total(sum(request.numbers), NAME)


@demo.on_node_request
async def greet(request: Greet) -> Greeting:
    """Say who this is."""
    return Greeting(NAME)


@squares.on_request
def square(request: Square) -> Squared:
    """Multiply the number with itself."""
    return Squared(request.number**2, NAME)
