"""One node of the chat: a session router and a web server in one process, on one event loop.

.venv/bin/python -m examples.chat_sessions.node --store redis://localhost --node web-1 --listen 127.0.0.1:8001

Prints one line of JSON once it serves, with its URL. SIGTERM and Ctrl-C end it in order: what runs gets five seconds.
"""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

import zlinkpy as zl
from examples.chat_sessions.app import chat_app
from examples.chat_sessions.chat import Chat
from zlinkpy.sessions.types import DeploymentMode

CLOSE_SECONDS = 5.0


async def run(store: str, node: str, listen: str, pace: float, scale: float) -> None:
    """Serve until told to stop."""
    config = zl.RouterConfig(mode=DeploymentMode.DISTRIBUTED).scaled(scale)
    router = zl.SessionRouter(Chat(pace), store=store, node_id=node, config=config)
    web = Config()
    web.bind = [listen]
    web.graceful_timeout = 1.0
    web.loglevel = "WARNING"
    app: Any = chat_app(router)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:

        async def told_to_stop() -> None:
            async for _ in signals:
                break
            # First the router: it ends the event streams, which the web server would wait for.
            await router.close(timeout=CLOSE_SECONDS)

        async with router, trio.open_nursery() as nursery:
            urls = await nursery.start(partial(serve, app, web, shutdown_trigger=told_to_stop))
            print(json.dumps({"event": "serving", "node": node, "url": urls[0]}), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.chat_sessions.node", description="One node of the chat.")
    parser.add_argument("--store", required=True, help="a Redis or Valkey that all nodes use")
    parser.add_argument("--node", required=True, help="a name that no other node has at the same time")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host and port (default: any free port)")
    parser.add_argument("--pace", type=float, default=0.1, help="seconds between two words of an answer")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all durations of the router, 0.1 to watch")
    options = parser.parse_args(arguments)
    trio.run(run, options.store, options.node, options.listen, options.pace, options.scale)


if __name__ == "__main__":
    main()
