"""The security of one host: from options to keys, and what a host without keys may not do. No sockets.

A host has keys or it has none; there is nothing in between, such as keys for one mesh. Without keys it may be reached
from its own machine only, unless somebody has written down that this is meant: `insecure = true`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from attrs import field, frozen

from zlinkpy.errors import ConfigurationError
from zlinkpy.mesh import ANONYMOUS, ListenPlan, check_peer_endpoint
from zlinkpy.security import AllowList, HostKeys, Secret, read_key_file
from zlinkpy.transport import key_pair_of


def _as_secret(value: str | Secret | None) -> Secret | None:
    return Secret(value) if isinstance(value, str) else value


@frozen(kw_only=True)
class SecurityOptions:
    """Keys of a host and who may be connected with it (docs/security.md).

    Args:
        key_file: path of the file that ``zlink keygen`` wrote; it must be readable by its owner only.
        secret_key: the secret key itself, where there is no file: z85 text. Not with `key_file`.
        allow_list: path of a TOML file, node names to public keys; read again when it changes.
        allow_any: take every key. Then the allow-list only gives names to keys.
        insecure: a host without keys may listen where other machines reach it.
    """

    key_file: str | None = None
    secret_key: Secret | None = field(default=None, converter=_as_secret)
    allow_list: str | None = None
    allow_any: bool = False
    insecure: bool = False

    def load(self) -> HostKeys | None:
        """Read the files; None for a host without keys. Raises ConfigurationError naming the setting and the fix."""
        if self.key_file is not None and self.secret_key is not None:
            raise ConfigurationError("[security]: key_file and secret_key exclude each other; give one of them")
        if self.key_file is not None:
            pair = read_key_file(self.key_file)
            if key_pair_of(pair.secret) != pair:
                raise ConfigurationError(
                    f"key file {self.key_file}: its two keys do not belong together; zlink keygen writes both"
                )
        elif self.secret_key is not None:
            pair = key_pair_of(self.secret_key)
        elif self.allow_list is not None or self.allow_any:
            given = "allow_list" if self.allow_list is not None else "allow_any"
            raise ConfigurationError(
                f"[security] {given} is set and this host has no keys, so nobody would be asked for any; set key_file"
            )
        else:
            return None
        allow_list = AllowList(self.allow_list) if self.allow_list is not None else None
        return HostKeys(pair=pair, allow_list=allow_list, allow_any=self.allow_any)


@frozen(kw_only=True)
class HostSecurity:
    """What plans need to know: the keys in force, and whether a host may do without."""

    keys: HostKeys | None = None
    insecure: bool = False

    @property
    def identity(self) -> str:
        """The security identity of everything this host publishes and says about itself."""
        return self.keys.public if self.keys is not None else ANONYMOUS

    def check_bind(self, plan: ListenPlan, where: str) -> ListenPlan:
        """`plan`, if a host like this may listen there. Raises ConfigurationError naming both fixes."""
        if self.keys is None and not self.insecure and not is_loopback(plan.bind.host):
            raise ConfigurationError(
                f"{where}.listen: {plan.bind} can be reached from other machines and this host has no keys, so anybody "
                "who reaches it is let in and everything can be read on the way; set [security] key_file (zlink keygen "
                "makes one), or write insecure = true under [security] where the network itself is trusted"
            )
        return plan

    def endpoints(self, texts: Iterable[str], where: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """Manual endpoints and the names of those that have one, from texts such as ``beta@tcp://10.0.0.5:7001``.

        The name stands for the key that the allow-list has for it. A host with keys needs one everywhere, because a
        client has to know the key of the server it dials. Raises ConfigurationError.
        """
        endpoints: list[str] = []
        names: dict[str, str] = {}
        for text in texts:
            name, endpoint = split_name(text, where)
            endpoints.append(endpoint)
            if name:
                self._check_name(name, text, where)
                names[endpoint] = name
            elif self.keys is not None:
                raise ConfigurationError(
                    f"{where}: this host has keys and does not know the key of {endpoint}; write NAME@{endpoint}, "
                    "where NAME is the peer's name on the allow-list ([security] allow_list)"
                )
        return tuple(endpoints), names

    def _check_name(self, name: str, text: str, where: str) -> None:
        if self.keys is None:
            raise ConfigurationError(
                f"{where}: {text} names a key and this host has none itself; set [security] key_file, or leave {name}@ "
                "out"
            )
        if self.keys.key_of(name) is None:
            listing = self.keys.allow_list
            fix = (
                f"add {name} to {listing.path}"
                if listing is not None
                else "set [security] allow_list to a file with it"
            )
            raise ConfigurationError(f"{where}: {text}: no key is listed for {name!r}; {fix}")


def split_name(text: str, where: str) -> tuple[str, str]:
    """The name, empty without one, and the canonical endpoint of ``NAME@ENDPOINT``. Raises ConfigurationError for an
    endpoint that cannot be dialled."""
    name, _, endpoint = text.rpartition("@")
    return name, check_peer_endpoint(endpoint, where)


def is_loopback(host: str) -> bool:
    """True for addresses that only this machine reaches. Names are not resolved; of them, only ``localhost`` is one."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
