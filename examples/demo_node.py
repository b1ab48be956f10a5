"""The node of `zlink demo`, to run by hand: start it in two terminals, kill one, and go on asking from a third.

zlink run examples.demo_node:host --store valkey+embedded://~/zlink-demo
zlink request echo Echo '{"text": "hello"}' --store valkey+embedded://~/zlink-demo
zlink request sum Sum '{"numbers": [1, 2, 3]}' --store valkey+embedded://~/zlink-demo
zlink nodes --store valkey+embedded://~/zlink-demo

The host lives in the package (`zlinkpy.cli.demo.node`): the demo also works where only the package is installed.
"""

from __future__ import annotations

from zlinkpy.cli.demo.node import host

__all__ = ["host"]
