"""The settings of a host that are not code: one typed tree, read from a file, the environment and overrides.

Precedence, lowest first: what the program wrote in code; the settings file; the environment; overrides, which is what
command-line flags are. Code comes lowest because it is what the author ships, and the other three are what an operator
adds without changing it. In the tree ``None`` means that nobody set the key, so code keeps its value.

A key nobody knows is an error, never ignored: a misspelt timeout that silently stays at its default is found in the
next outage. There is no key for the liveness interval and deadline, and there will be none: both ends of a connection
must agree on them without talking (LV-03, LV-04).

Errors say key, value, what is expected, and the place: ``zlink.toml:12`` or the variable's name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
from attrs import evolve, field, fields, frozen

from zlinkpy.errors import ConfigurationError
from zlinkpy.execution import MAX_JOBS, JobQueueOptions, JobQueueProfile
from zlinkpy.location.options import LocationOptions
from zlinkpy.runtime.security import SecurityOptions
from zlinkpy.runtime.setting_sources import (
    Entry,
    NamedTable,
    environment_entries,
    file_entries,
    override_entries,
    variable_name,
)
from zlinkpy.runtime.setting_values import (
    MESSAGE_CAP,
    OR_OFF,
    POSITIVE,
    TIMEOUT,
    Choice,
    Flag,
    Kind,
    SecretText,
    Text,
    TextList,
    Whole,
)
from zlinkpy.security import Secret

T = TypeVar("T")


class LogLevel(Enum):
    """Levels of the standard library's logging."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


def _setting(kind: Kind, meaning: str, *, shown: bool = True) -> Any:
    """`shown`: the value may appear in a repr."""
    return field(default=None, metadata={"kind": kind, "meaning": meaning}, repr=shown)


@frozen(kw_only=True)
class JobQueueSettings:
    """Section ``job_queue``: the Application Job Queue."""

    profile: JobQueueProfile | None = _setting(Choice(JobQueueProfile), "Jobs per processor.")
    max: int | None = _setting(Whole(1, MAX_JOBS), "Most queued jobs, instead of the profile's number.")
    pause_percent: int | None = _setting(Whole(1, 100), "Share of the maximum at which peers are asked to hold back.")
    resume_percent: int | None = _setting(Whole(0, 99), "Share at which they may go on; below `pause_percent`.")

    def over(self, options: JobQueueOptions) -> JobQueueOptions:
        """`options` with what is set here."""
        changes = _set_values(self)
        if "max" in changes:
            changes["max_queued_application_jobs"] = changes.pop("max")
        return evolve(options, **changes)


@frozen(kw_only=True)
class LocationSettings:
    """Section ``location``: the location runtime. The meanings are those of `LocationOptions`."""

    owner_lease_renew_interval: float | None = _setting(POSITIVE, "From one lease renewal to the next.")
    owner_lease_ttl: float | None = _setting(POSITIVE, "How long the store keeps a lease nobody renews.")
    owner_lease_renew_timeout: float | None = _setting(POSITIVE, "The most one renewal may take.")
    owner_lease_fencing_margin: float | None = _setting(
        POSITIVE, "How much before the store a host stops trusting its lease."
    )
    polling_interval: float | None = _setting(POSITIVE, "From one reading of the descriptors to the next.")
    store_failure_grace: float | None = _setting(POSITIVE, "How long the last list is used while the store fails.")
    route_cache_max_age: float | None = _setting(OR_OFF, "Longest life of a cached route.")
    message_follow_duration: float | None = _setting(OR_OFF, "How long a previous owner forwards.")
    session_relocation_seal_timeout: float | None = _setting(POSITIVE, "How long a session seal is waited for.")

    def over(self, options: LocationOptions) -> LocationOptions:
        """`options` with what is set here; not validated together."""
        return evolve(options, **_set_values(self))


@frozen(kw_only=True)
class SecuritySettings:
    """Section ``security``: keys. The meanings are those of `SecurityOptions`."""

    key_file: str | None = _setting(Text("the path of a key file"), "Keys of this host (zlink keygen makes them).")
    secret_key: Secret | None = _setting(
        SecretText("the secret half of a zlink key, given in the environment"),
        "Secret key where there is no file; the environment only.",
    )
    allow_list: str | None = _setting(
        Text("the path of a TOML file"), "Names and public keys of the nodes that may be connected with this host."
    )
    allow_any: bool | None = _setting(Flag(), "Take every key.")
    insecure: bool | None = _setting(Flag(), "Let other machines in without keys.")

    def over(self, options: SecurityOptions) -> SecurityOptions:
        """`options` with what is set here."""
        changes = _set_values(self)
        # Two ways to say one thing: the one given here stands in place of the one given in code.
        if "key_file" in changes:
            changes.setdefault("secret_key", None)
        elif "secret_key" in changes:
            changes["key_file"] = None
        return evolve(options, **changes)


@frozen(kw_only=True)
class MeshSettings:
    """Section ``mesh.<name>``: one mesh of this host."""

    listen: str | None = _setting(Text("an endpoint such as tcp://0.0.0.0:7001"), "Where this node is reached.")
    advertise_host: str | None = _setting(
        Text("a host name or address"), "Host that peers dial, where it is not the one listened on."
    )
    rid_prefix: str | None = _setting(Text("1..64 characters of A-Z a-z 0-9 . _ -"), "Start of this node's routing id.")
    peers: tuple[str, ...] | None = _setting(
        TextList("a list of endpoints such as tcp://10.0.0.5:7001"),
        "Nodes to dial, besides those the store shows; with keys: `NAME@tcp://…`.",
    )
    default_request_timeout: float | None = _setting(TIMEOUT, "Timeout of requests on this mesh that name none.")
    placement_weight: int | None = _setting(Whole(0, 10_000), "Share of new objects placed on this node.")
    max_message_bytes: int | None = _setting(MESSAGE_CAP, "A larger frame drops its connection before it is allocated.")


@frozen(kw_only=True)
class ClientServerSettings:
    """Section ``client_server.<name>``: one ClientServer channel of this host, as server, client or both."""

    listen: str | None = _setting(Text("an endpoint such as tcp://0.0.0.0:7001"), "Where the server is reached.")
    advertise_host: str | None = _setting(
        Text("a host name or address"), "Host that clients dial, where it is not the one listened on."
    )
    rid_prefix: str | None = _setting(
        Text("1..64 characters of A-Z a-z 0-9 . _ -"), "Start of the server's routing id."
    )
    weight: int | None = _setting(Whole(0, 10_000), "The server's share of the channel's messages; 0 for none.")
    servers: tuple[str, ...] | None = _setting(
        TextList("a list of endpoints such as tcp://10.0.0.5:7001"), "Servers to dial, besides those the store shows."
    )
    default_request_timeout: float | None = _setting(TIMEOUT, "Timeout of requests on this channel that name none.")
    max_message_bytes: int | None = _setting(
        Whole(0, 2**32 - 1), "Largest record that is taken or sent, 0 for no cap; at least 1024 otherwise."
    )


@frozen(kw_only=True)
class FanoutSettings:
    """Section ``fanout.<name>``: one fanout channel of this host, as publisher, subscriber or both."""

    listen: str | None = _setting(Text("an endpoint such as tcp://0.0.0.0:7001"), "Where the publisher is reached.")
    advertise_host: str | None = _setting(
        Text("a host name or address"), "Host that subscribers dial, where it is not the one listened on."
    )
    rid_prefix: str | None = _setting(
        Text("1..64 characters of A-Z a-z 0-9 . _ -"), "Start of the publisher's routing id."
    )
    publishers: tuple[str, ...] | None = _setting(
        TextList("a list of endpoints such as tcp://10.0.0.5:7001"),
        "Publishers to hear, instead of those of the store.",
    )


@frozen(kw_only=True)
class LogSettings:
    """Section ``log``."""

    level: LogLevel | None = _setting(Choice(LogLevel), "Least level that is logged.")


@frozen(kw_only=True)
class Settings:
    """All settings. ``None``: nobody set the key.

    Attributes:
        mesh: `MeshSettings` by mesh name.
        client_server: `ClientServerSettings` by channel name.
        fanout: `FanoutSettings` by channel name.
        origins: Where each key that is set was set last, by dotted key.
    """

    location_store: str | None = _setting(
        Text("a store URL such as redis://localhost"), "URL of the Location Store.", shown=False
    )
    application_version: int | None = _setting(Whole(0, 2**63 - 1), "Version of the application, for rolling updates.")
    default_request_timeout: float | None = _setting(TIMEOUT, "Timeout of requests that name none.")
    shutdown_deadline: float | None = _setting(TIMEOUT, "How long a shutdown lets accepted work finish.")
    job_queue: JobQueueSettings = field(factory=JobQueueSettings)
    location: LocationSettings = field(factory=LocationSettings)
    security: SecuritySettings = field(factory=SecuritySettings)
    log: LogSettings = field(factory=LogSettings)
    mesh: Mapping[str, MeshSettings] = field(factory=dict)
    client_server: Mapping[str, ClientServerSettings] = field(factory=dict)
    fanout: Mapping[str, FanoutSettings] = field(factory=dict)
    origins: Mapping[str, str] = field(factory=dict, repr=False, eq=False)

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        meshes: Iterable[str] = (),
        client_servers: Iterable[str] = (),
        fanouts: Iterable[str] = (),
    ) -> Settings:
        """Read every source and merge them. Does no I/O but reading `file`.

        Args:
            file: A TOML file.
            environ: The environment; ``None`` is that of the process. Variables start with ``ZLINK_``.
            overrides: Dotted keys with values, as text or typed.
            meshes: The names of the registered meshes, so that ``ZLINK_MESH_<NAME>_…`` finds names that are not
                lower case letters and digits.
            client_servers: The same for ClientServer channels.
            fanouts: The same for fanout channels.

        Raises:
            ConfigurationError: An unreadable file, an unknown key (with the nearest known one), or a bad value.
        """
        entries = file_entries(Path(file)) if file is not None else []
        given = {"mesh": meshes, "client_server": client_servers, "fanout": fanouts}
        tables = [
            NamedTable(
                section,
                tuple(attribute.name for attribute in fields(cls)),
                (
                    *given.get(section, ()),
                    *(entry.path[1] for entry in entries if entry.path[0] == section and len(entry.path) == 3),
                ),
            )
            for section, cls in _NAMED.items()
        ]
        entries += environment_entries(os.environ if environ is None else environ, _plain_paths(), tables)
        entries += override_entries(overrides or {}, _NAMED)
        values: dict[tuple[str, ...], Any] = {}
        origins: dict[str, str] = {}
        for entry in entries:
            if _is_empty_section(entry):
                continue
            values[entry.path] = _read(entry)
            origins[entry.key] = entry.origin
        return _build(values, origins)

    def origin(self, key: str) -> str | None:
        """Where a dotted key was set last; ``None`` where nobody set it."""
        return self.origins.get(key)


_SECTIONS: Final[dict[str, type]] = {
    "job_queue": JobQueueSettings,
    "location": LocationSettings,
    "security": SecuritySettings,
    "log": LogSettings,
}
# Sections with a table per name.
_NAMED: Final[dict[str, type]] = {
    "mesh": MeshSettings,
    "client_server": ClientServerSettings,
    "fanout": FanoutSettings,
}


@frozen(kw_only=True)
class SettingKey:
    """One documented key; a key of a mesh or channel has ``<name>`` for its name."""

    key: str
    variable: str
    expects: str
    meaning: str


def setting_keys() -> list[SettingKey]:
    """Every key there is, in the order of the documentation."""
    paths = [*_plain_paths(), *((name, "<name>", key.name) for name, cls in _NAMED.items() for key in fields(cls))]
    keys = []
    for path in paths:
        attribute = _find(path)
        assert attribute is not None
        variable = variable_name(path).replace("__NAME__", "_<NAME>_")
        kind: Kind = attribute.metadata["kind"]
        keys.append(
            SettingKey(
                key=".".join(path), variable=variable, expects=kind.expects, meaning=attribute.metadata["meaning"]
            )
        )
    return keys


def _plain_paths() -> Iterator[tuple[str, ...]]:
    for attribute in fields(Settings):
        if "kind" in attribute.metadata:
            yield (attribute.name,)
    for section, cls in _SECTIONS.items():
        for attribute in fields(cls):
            yield (section, attribute.name)


def _find(path: tuple[str, ...]) -> attrs.Attribute[Any] | None:
    """The field a path names, or ``None``."""
    if len(path) == 1:
        owner: type | None = Settings
    elif len(path) == 2:
        owner = _SECTIONS.get(path[0])
    else:
        owner = _NAMED.get(path[0]) if path[1] and len(path) == 3 else None
    if owner is None:
        return None
    attribute = attrs.fields_dict(owner).get(path[-1])
    return attribute if attribute is not None and "kind" in attribute.metadata else None


def _read(entry: Entry) -> Any:
    attribute = _find(entry.path)
    if attribute is None:
        raise ConfigurationError(f"{entry.origin}: {_unknown(entry)}")
    kind: Kind = attribute.metadata["kind"]
    if isinstance(kind, SecretText):
        return _read_secret(entry, kind)
    try:
        return kind.read_text(entry.value) if entry.is_text else kind.read(entry.value)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{entry.origin}: {entry.key} is {entry.value!r}; it must be {kind.expects}") from None


def _read_secret(entry: Entry, kind: SecretText) -> Secret:
    """No text here shows the value."""
    if not entry.origin.startswith("environment"):
        raise ConfigurationError(
            f"{entry.origin}: {entry.key} is taken from the environment only ({variable_name(entry.path)}): files are "
            "copied and command lines are listed; a key file of its own goes into security.key_file"
        )
    try:
        return kind.read_text(entry.value)
    except ValueError:
        raise ConfigurationError(f"{entry.origin}: {entry.key} is empty; it must be {kind.expects}") from None


def _unknown(entry: Entry) -> str:
    if entry.origin.startswith("environment"):
        # Where a name ends is not known, so this takes the usual case: one word.
        prefixes = [variable_name((section, "")) for section in _NAMED]
        prefix = next((each for each in prefixes if entry.key.startswith(each)), prefixes[0])
        name = entry.key.removeprefix(prefix).partition("_")[0]
        known = {setting.variable.replace("<NAME>", name) for setting in setting_keys()}
    else:
        name = entry.path[1] if entry.path[0] in _NAMED and len(entry.path) > 1 else "<name>"
        known = {setting.key.replace("<name>", name) for setting in setting_keys()}
    nearest = difflib.get_close_matches(entry.key, sorted(known), n=1, cutoff=0.0)[0]
    what = "section" if isinstance(entry.value, dict) else "key"
    return f"unknown {what} {entry.key!r}; the nearest known key is {nearest!r} (docs/settings.md lists all)"


def _is_empty_section(entry: Entry) -> bool:
    """Whether this is a table that exists and has nothing in it, as when all its keys are commented out."""
    known = (entry.path[0] in _NAMED and len(entry.path) <= 2) or (len(entry.path) == 1 and entry.path[0] in _SECTIONS)
    return known and entry.value == {} and not entry.is_text


def _build(values: Mapping[tuple[str, ...], Any], origins: Mapping[str, str]) -> Settings:
    top = {path[0]: value for path, value in values.items() if len(path) == 1}
    sections = {
        section: cls(**{path[1]: value for path, value in values.items() if path[0] == section and len(path) == 2})
        for section, cls in _SECTIONS.items()
    }
    named: dict[str, Any] = {
        section: {
            name: cls(**{path[2]: value for path, value in values.items() if path[:2] == (section, name)})
            for name in dict.fromkeys(path[1] for path in values if path[0] == section and len(path) == 3)
        }
        for section, cls in _NAMED.items()
    }
    return Settings(**top, **sections, **named, origins=origins)


def _set_values(section: Any) -> dict[str, Any]:
    return {
        attribute.name: value
        for attribute in fields(type(section))
        if (value := getattr(section, attribute.name)) is not None
    }
