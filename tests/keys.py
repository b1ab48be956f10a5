"""Key pairs and allow-lists for tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from zlinkpy.security import AllowList, HostKeys, KeyPair
from zlinkpy.transport import generate_key_pair


def write_list(path: Path, entries: Mapping[str, str]) -> Path:
    """Write an allow-list whole, as docs/security.md asks for: a reader sees the old one or the new one."""
    new = path.with_suffix(".new")
    new.write_text("".join(f'"{name}" = "{key}"\n' for name, key in entries.items()))
    os.replace(new, path)
    return path


class Keyring:
    """Named key pairs, and one allow-list file that holds some of them."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.path = directory / "allow.toml"
        self.pairs: dict[str, KeyPair] = {}
        self.allow(*names)

    def pair(self, name: str) -> KeyPair:
        """The pair of `name`, made when it is first asked for."""
        if name not in self.pairs:
            self.pairs[name] = generate_key_pair()
        return self.pairs[name]

    def public(self, name: str) -> str:
        return self.pair(name).public

    def allow(self, *names: str) -> None:
        """Write the list anew, with these and nobody else."""
        write_list(self.path, {name: self.public(name) for name in names})

    def host(self, name: str) -> HostKeys:
        """What a host called `name` is given."""
        return HostKeys(pair=self.pair(name), allow_list=AllowList(str(self.path)))
