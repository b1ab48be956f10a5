"""Run the story: .venv/bin/python -m examples.chat_sessions"""

from __future__ import annotations

import sys
import tempfile
from functools import partial

import trio

from examples.chat_sessions.demo import tell

with tempfile.TemporaryDirectory(prefix="zl-chat-", ignore_cleanup_errors=True) as directory:
    sys.exit(trio.run(partial(tell, directory)))
