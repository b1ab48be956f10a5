"""A process that uses an embedded store: `python -m tests.integration.location.embedded_user DIRECTORY NAME`.

It writes a row with its name, prints ``ready``, and then answers lines on its standard input: a name prints the row
of that name, ``end`` closes the store and ends the process.
"""

from __future__ import annotations

import sys

import trio

from zlinkpy.location.open import open_store
from zlinkpy.location.store import Found, Put, StoreFailure


async def main(directory: str, name: str) -> None:
    store = open_store(f"valkey+embedded://{directory}")
    await store.write([], [Put(name.encode(), b"here")])
    print("ready", flush=True)
    while (line := (await trio.to_thread.run_sync(sys.stdin.readline)).strip()) not in ("end", ""):
        try:
            row = await store.read(line.encode())
        except StoreFailure as failure:
            print(f"failure {failure.applied}", flush=True)
        else:
            print(row.value.decode() if isinstance(row, Found) else "missing", flush=True)
    await store.aclose()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
