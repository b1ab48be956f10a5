"""From registration and settings to what a start needs: every check that needs no I/O (SA §A, LO §1, wire.md §9).

The plan is complete before the first socket is bound or the first store call is made; what it raises is a
ConfigurationError.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from attrs import field, frozen

from zlinkpy.entropy import Entropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.execution import JobQueueOptions
from zlinkpy.location import LocationOptions, LocationStore
from zlinkpy.mesh import (
    HandlerTable,
    MeshOptions,
    automatic_rid,
    check_weight,
    plan_listener,
)
from zlinkpy.messages import Codecs, HandlerSpec
from zlinkpy.runtime.registration import DEFAULT_PREFIX, ChannelRegistration, Mesh, check_timeout, check_two_ids
from zlinkpy.runtime.security import HostSecurity
from zlinkpy.wire import ObjectRole

if TYPE_CHECKING:
    from zlinkpy.runtime.settings import MeshSettings


T = TypeVar("T")


@frozen(kw_only=True)
class HostOptions:
    """The host-wide settings in force."""

    # Not shown: a URL may hold a password.
    location_store: str | LocationStore | None = field(repr=False)
    application_version: int
    default_request_timeout: float
    shutdown_deadline: float
    job_queue: JobQueueOptions
    location: LocationOptions
    security: HostSecurity = HostSecurity()


@frozen(kw_only=True)
class MeshPlan:
    """One mesh, ready to be started."""

    options: MeshOptions
    channels: tuple[ChannelRegistration, ...]
    handlers: HandlerTable
    member_channels: tuple[str, ...] = ()


def plan_meshes(
    meshes: Mapping[str, Mesh],
    settings: Mapping[str, MeshSettings],
    host: HostOptions,
    *,
    codecs: Codecs,
    entropy: Entropy,
) -> tuple[MeshPlan, ...]:
    """Check everything that concerns more than one registration and build the plans."""
    for name in settings:
        if name not in meshes:
            known = ", ".join(sorted(meshes)) or "none"
            raise ConfigurationError(
                f"settings name the mesh {name!r}, which this host does not register (it has: {known})"
            )
    owners: dict[str, Mesh] = {}
    for mesh in meshes.values():
        mesh.check()
        for channel in mesh.channels:
            other = owners.setdefault(channel, mesh)
            if other is not mesh:
                raise ConfigurationError(
                    f"channel {channel!r} is registered on the meshes {other.name!r} and {mesh.name!r}; "
                    "one channel name has one send path in a process"
                )
    return tuple(_plan(mesh, settings.get(mesh.name), host, codecs, entropy) for mesh in meshes.values())


def chosen(settings: object | None, key: str, given: T) -> T:
    """What the settings say about `key`, else what was given in code."""
    value: T | None = getattr(settings, key) if settings is not None else None
    return given if value is None else value


@frozen
class ChannelRole:
    """One role a host can have on a channel of its own kind, and the settings that are for it."""

    registered: Collection[str]
    """The channels on which it has the role."""
    keys: tuple[str, ...]
    verb: str
    """As in "this host does not VERB the channel"."""
    method: str
    """How the role is registered."""


def check_channel_settings(kind: str, where: str, name: str, given: object, roles: Sequence[ChannelRole]) -> None:
    """Settings must name a registered channel, and only keys of roles the host has on it. Raises
    ConfigurationError."""
    known = sorted({channel for role in roles for channel in role.registered})
    if name not in known:
        raise ConfigurationError(
            f"settings name the {kind} channel {name!r}, which this host does not register (it has: "
            f"{', '.join(known) or 'none'})"
        )
    for role in roles:
        for key in role.keys:
            if name not in role.registered and getattr(given, key) is not None:
                raise ConfigurationError(
                    f"{where}.{key} is set, but this host does not {role.verb} the channel; remove the setting, or "
                    f"register it with host.{role.method}({name!r})"
                )


def plan_rid(rid: str | None, prefix: str | None, where: str, *, host: HostOptions, entropy: Entropy) -> str:
    """The routing id of one listener: the fixed one, which needs a manual topology, or a new one."""
    check_two_ids(rid, prefix, where)
    if rid is None:
        return automatic_rid(prefix or DEFAULT_PREFIX, entropy)
    if host.location_store is not None:
        raise ConfigurationError(
            f"{where}.rid: with a Location Store nodes find each other under ids that are new at every start; "
            "remove rid, or remove location_store and name peers"
        )
    return rid


def _plan(mesh: Mesh, settings: MeshSettings | None, host: HostOptions, codecs: Codecs, entropy: Entropy) -> MeshPlan:
    where = mesh.where
    if mesh.rid is not None and mesh.object_role is not ObjectRole.NONE:
        raise ConfigurationError(f"{where}.rid: a node with an object role gets a new id at every start; remove rid")
    rid = plan_rid(mesh.rid, chosen(settings, "rid_prefix", mesh.rid_prefix), where, host=host, entropy=entropy)
    peers = chosen(settings, "peers", mesh.peers)
    timeout = chosen(settings, "default_request_timeout", mesh.default_request_timeout)
    has_store = host.location_store is not None
    if mesh.object_role is not ObjectRole.NONE and not has_store:
        raise ConfigurationError(
            f"{where}: the object role {mesh.object_role.name.lower()} needs a Location Store; set location_store"
        )
    handlers = HandlerTable(where, codecs)
    for registration in mesh.handlers:
        handlers.add(HandlerSpec.inspect(registration.function, registration.kind), registration.channel)
    endpoints, key_names = host.security.endpoints(peers, f"{where}.peers")
    options = MeshOptions(
        name=mesh.name,
        rid=rid,
        listener=host.security.check_bind(
            plan_listener(
                chosen(settings, "listen", mesh.listen), chosen(settings, "advertise_host", mesh.advertise_host), where
            ),
            where,
        ),
        peers=endpoints,
        key_names=key_names,
        security_identity=host.security.identity,
        discovers=has_store,
        object_role=mesh.object_role,
        placement_weight=check_weight(
            chosen(settings, "placement_weight", mesh.placement_weight), f"{where}.placement_weight"
        ),
        max_message_bytes=chosen(settings, "max_message_bytes", mesh.max_message_bytes) or None,
        application_version=host.application_version,
        default_request_timeout_ms=check_timeout(
            timeout if timeout is not None else host.default_request_timeout, f"{where}.default_request_timeout"
        ),
    )
    return MeshPlan(
        options=options,
        channels=tuple(mesh.channels.values()),
        handlers=handlers,
        member_channels=tuple(mesh.member_channels),
    )
