"""A puppet in a process of its own, to be stopped, continued or killed: ``python -m tests.contract.mesh.peer_process``.

Prints its endpoint, then one line per record it is told on the application lane. With the argument ``service`` it is a
server of a ClientServer channel instead of a mesh node.
"""

from __future__ import annotations

import sys

import trio

from tests.puppet import Puppet, PuppetLane, RawSockets
from tests.service_puppet import ServicePuppet
from zlinkpy.wire import LivenessProbe, Record


async def main() -> None:
    async with RawSockets() as wire:
        puppet: Puppet = (
            ServicePuppet(wire, "p", channel="work", serves=True)
            if sys.argv[1:] == ["service"]
            else Puppet(wire, "p", channels={"work": 100})
        )

        def tell(lane: PuppetLane, record: Record) -> bool:
            command = record.command
            number = command.probe_id if isinstance(command, LivenessProbe) else 0
            print(type(command).__name__, number, flush=True)
            return False

        puppet.hears = tell
        print(await puppet.listen(), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)  # until whoever started us is gone


if __name__ == "__main__":
    trio.run(main)
