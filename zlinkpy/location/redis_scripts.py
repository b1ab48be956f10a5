"""The server-side scripts, as text and digest. One write is one script call (LO-050); nothing else changes rows.

`#!lua` (Redis 7, Valkey 7.2) makes the server refuse a script *before* it starts when memory is full or replicas are
missing, which is why those refusals are known to have changed nothing. Reads and scans allow a full memory, because
discovery must go on. They are deliberately not marked ``no-writes``: a server that was demoted to a replica then
refuses them, instead of answering from the past (LO-064).
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final

from attrs import field, frozen


@frozen
class Script:
    """One script. `sha` is the SHA-1 the server files it under: a name, not a signature."""

    name: str
    text: str = field(repr=False)

    @property
    def sha(self) -> str:
        """The name for EVALSHA."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def load_script(name: str, *, flags: str = "", package: str = "zlinkpy.location") -> Script:
    """Put the shared functions of `package` in front of its lua/NAME.lua."""
    folder = resources.files(package) / "lua"
    shebang = f"#!lua flags={flags}" if flags else "#!lua"
    parts = [shebang, *((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name))]
    return Script(name, "\n".join(parts))


WRITE: Final = load_script("write")
READ: Final = load_script("read", flags="allow-oom")
WALK: Final = load_script("walk", flags="allow-oom")
PAGE: Final = load_script("page", flags="allow-oom")
