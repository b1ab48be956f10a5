"""Keys and the list of who may come in, apart from any socket: files, checks, and a type that keeps a secret silent.

A key pair is two z85 texts of 40 characters, as ZeroMQ's CURVE uses them. The public one names a node (it is the
security identity of its admission) and may be printed; the secret one never leaves a `Secret`. What needs libzmq,
making a pair and finding the public key of a secret one, is in `zlinkpy.transport.curve`.

An allow-list is a TOML file of node names and public keys. It holds both ways: whoever is not on it can neither connect
nor be connected to, so that not even the Location Store can bring a node in. It is read again when it changes; a file
that cannot be used is reported and leaves the last good list in force.
"""

from __future__ import annotations

import hmac
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from attrs import define, field, frozen

from zlinkpy.errors import ConfigurationError
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.security")

KEY_CHARACTERS = 40

# The file is looked at when a decision is needed, this often at most.
RELOAD_SECONDS = 1.0

_Z85 = {
    character: value
    for value, character in enumerate(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    )
}
_GROUP = 5
_GROUP_LIMIT = 1 << 32

_KEY_FILE_HEAD = (
    "# Key pair of a zlink node. The public key goes into the allow-lists of other nodes.\n"
    "# The secret key belongs to this node alone: keep the mode of this file at 600.\n"
)


class KeyRefusedError(ConfigurationError):
    """A connection that the keys of this host forbid; the text names the fix."""


class Secret:
    """A text that no log line, status, metric or traceback can show. `reveal` is the only way to it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the call that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "<secret>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a Secret cannot be pickled or copied")


def is_key(text: object) -> bool:
    """True for 40 characters of z85 that stand for 32 bytes."""
    if not isinstance(text, str) or len(text) != KEY_CHARACTERS or not all(character in _Z85 for character in text):
        return False
    groups = (text[start : start + _GROUP] for start in range(0, KEY_CHARACTERS, _GROUP))
    return all(_number_of(group) < _GROUP_LIMIT for group in groups)


def _number_of(group: str) -> int:
    number = 0
    for character in group:
        number = number * len(_Z85) + _Z85[character]
    return number


@frozen
class KeyPair:
    """Both keys of one node; `public` is z85 text."""

    public: str
    secret: Secret


def read_key_file(path: str | os.PathLike[str]) -> KeyPair:
    """The pair in a file that `write_key_file` wrote. Nothing of the content is ever quoted.

    Raises ConfigurationError when it cannot be read, when others than its owner have any right to it, and when it is no
    key file.
    """
    try:
        # Asked of the open file: the name may lead elsewhere a moment later.
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(4096)
    except OSError as error:
        problem = error.strerror or "cannot be read"
        raise ConfigurationError(f"key file {path}: {problem}; zlink keygen --out {path} makes one") from None
    if os.name == "posix" and status.st_mode & 0o077:
        raise ConfigurationError(
            f"key file {path}: others than its owner may use it (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"run chmod 600 {path}, and make a new key if somebody may have read this one"
        )
    try:
        document: dict[str, Any] | None = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        document = None
    public, secret = (document.get(name) if document is not None else None for name in ("public_key", "secret_key"))
    if not is_key(public) or not is_key(secret):
        raise ConfigurationError(
            f"key file {path}: it does not hold public_key and secret_key, {KEY_CHARACTERS} characters of z85 each; "
            f"zlink keygen --out FILE writes such a file"
        )
    return KeyPair(str(public), Secret(str(secret)))


def write_key_file(path: str | os.PathLike[str], pair: KeyPair, *, replace: bool = False) -> None:
    """Write `pair` to a file that only its owner can read, from its first byte on.

    Raises ConfigurationError when it exists (unless `replace`: then it is exchanged whole) or cannot be written.
    """
    text = f'{_KEY_FILE_HEAD}public_key = "{pair.public}"\nsecret_key = "{pair.secret.reveal()}"\n'
    target = Path(path)
    written = target.with_name(f".{target.name}.new") if replace else target
    try:
        if replace:
            written.unlink(missing_ok=True)
        descriptor = os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        if replace:
            written.replace(target)
    except FileExistsError:
        raise ConfigurationError(
            f"key file {path} exists; everybody who listed its key must list the new one: --force replaces it"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"key file {path}: {error.strerror or 'cannot be written'}") from None


def read_allow_list(path: str | os.PathLike[str]) -> dict[str, str]:
    """Node names and public keys of the TOML file `path`. Raises ConfigurationError naming the entry and the fix."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"allow-list {path}: {error.strerror or 'cannot be read'}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"allow-list {path}: not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"allow-list {path}: not TOML: {error}") from None
    for name, key in document.items():
        if not is_key(key):
            # Not quoted: somebody may have pasted the wrong half.
            raise ConfigurationError(
                f'allow-list {path}: {name} has no public key; write {name} = "KEY" with the {KEY_CHARACTERS} '
                "characters that zlink keygen printed for that node"
            )
    if not document:
        # An editor that empties the file before it writes must not throw everybody out.
        raise ConfigurationError(f'allow-list {path}: it is empty; write NAME = "KEY", a line for each node')
    return document


@define(eq=False)
class AllowList:
    """The entries of one file. One thread refreshes it, any may ask: every change replaces the whole.

    Raises ConfigurationError when the file cannot be used at the start.
    """

    path: str
    _keys: Mapping[str, str] = field(init=False, repr=False)
    _admitted: frozenset[str] = field(init=False, repr=False)
    _version: object = field(init=False, repr=False)
    _looked_at: float = field(default=float("-inf"), init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._version = self._version_now()
        self._take(read_allow_list(self.path))

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._keys)

    def admits(self, key: str) -> bool:
        """Whether the holder of `key` may be connected with this host."""
        return key in self._admitted

    def key_of(self, name: str) -> str | None:
        """The public key of the node called `name`, None for a name that is not on the list."""
        return self._keys.get(name)

    def refresh(self, now: float) -> frozenset[str] | None:
        """Read the file if it has changed, at most once in RELOAD_SECONDS.

        Args:
            now: seconds of a monotonic clock.

        Returns:
            The keys that were taken off the list; None when the list is what it was.
        """
        if now - self._looked_at < RELOAD_SECONDS:
            return None
        self._looked_at = now
        version = self._version_now()
        if version == self._version:
            return None
        self._version = version
        try:
            entries = read_allow_list(self.path)
        except ConfigurationError as error:
            log.error("%s; the list read before stays in force", error)
            return None
        if entries == self._keys:
            return None
        before = self._admitted
        self._take(entries)
        log.info("allow-list %s was read again: %d nodes", self.path, len(entries))
        return before - self._admitted

    def _take(self, entries: Mapping[str, str]) -> None:
        self._keys, self._admitted = entries, frozenset(entries.values())

    def _version_now(self) -> object:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


@frozen(eq=False, kw_only=True)
class HostKeys:
    """The keys of one host, and whose keys it takes.

    Args:
        pair: its own.
        allow_list: who may be connected with it; None only with `allow_any`.
        allow_any: take every key. The list then serves to find keys by name.
    """

    pair: KeyPair
    allow_list: AllowList | None = None
    allow_any: bool = False

    def __attrs_post_init__(self) -> None:
        if self.allow_list is None and not self.allow_any:
            raise ConfigurationError(
                "[security]: this host has keys and no list of the keys it takes; set allow_list to a TOML file with a "
                'line NAME = "PUBLIC KEY" for each node, or write allow_any = true to take every key'
            )

    @property
    def public(self) -> str:
        """The host's public key, which is its security identity."""
        return self.pair.public

    def admits(self, key: str) -> bool:
        """Whether the holder of `key` may be connected with this host."""
        return self.allow_any or (self.allow_list is not None and self.allow_list.admits(key))

    def key_of(self, name: str) -> str | None:
        """The public key listed for `name`."""
        return self.allow_list.key_of(name) if self.allow_list is not None else None

    def refresh(self, now: float) -> frozenset[str] | None:
        """See `AllowList.refresh`; with `allow_any` nobody is ever taken off."""
        removed = self.allow_list.refresh(now) if self.allow_list is not None else None
        return frozenset() if removed and self.allow_any else removed

    def refusal_of(self, key: str) -> str:
        """Why `key` is not taken, and what to do about it."""
        assert self.allow_list is not None
        return f'it is not on the allow-list {self.allow_list.path}; if it belongs here, add NAME = "{key}" to it'

    def check_dial(self, endpoint: str, server_key: str | None) -> None:
        """Raise KeyRefusedError when no key is known of the peer at `endpoint`, or one that is not listed."""
        if server_key is None:
            raise KeyRefusedError(
                f"this node has keys and knows none of the peer at {endpoint}: put the peer's public key on the "
                f"allow-list under a name and dial NAME@{endpoint}; a peer that the Location Store shows without a key "
                "needs keys of its own ([security] key_file)"
            )
        if not self.admits(server_key):
            raise KeyRefusedError(f"the peer at {endpoint} has the key {server_key}: {self.refusal_of(server_key)}")


def check_unkeyed_dial(endpoint: str, server_key: str | None) -> None:
    """Raise KeyRefusedError when a host without keys is to dial a peer that is known to have some."""
    if server_key is not None:
        raise KeyRefusedError(
            f"the peer at {endpoint} demands keys and this node has none: set [security] key_file "
            "(zlink keygen makes one)"
        )
