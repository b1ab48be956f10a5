"""From registration and settings to what a start needs: every check that needs no I/O (SA §A, LO §1, wire.md §9).

The plan is complete before the first socket is bound or the first store call is made; what it raises is a
ConfigurationError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from zlinkpy.entropy import Entropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.execution import JobQueueOptions
from zlinkpy.location import LocationOptions, LocationStore
from zlinkpy.mesh import (
    HandlerTable,
    MeshOptions,
    automatic_rid,
    check_fixed_rid,
    check_peer_endpoint,
    check_prefix,
    check_weight,
    plan_listener,
)
from zlinkpy.messages import Codecs, HandlerSpec
from zlinkpy.runtime.registration import DEFAULT_PREFIX, ChannelRegistration, Mesh, check_timeout
from zlinkpy.wire import ObjectRole

if TYPE_CHECKING:
    from zlinkpy.runtime.settings import MeshSettings


@frozen(kw_only=True)
class HostOptions:
    """The host-wide settings in force."""

    location_store: str | LocationStore | None
    application_version: int
    default_request_timeout: float
    shutdown_deadline: float
    job_queue: JobQueueOptions
    location: LocationOptions


@frozen(kw_only=True)
class MeshPlan:
    """One mesh, ready to be started."""

    options: MeshOptions
    channels: tuple[ChannelRegistration, ...]
    handlers: HandlerTable


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


def _plan(mesh: Mesh, settings: MeshSettings | None, host: HostOptions, codecs: Codecs, entropy: Entropy) -> MeshPlan:
    where = mesh.where
    listen = settings.listen if settings and settings.listen is not None else mesh.listen
    advertise_host = (
        settings.advertise_host if settings and settings.advertise_host is not None else mesh.advertise_host
    )
    prefix = settings.rid_prefix if settings and settings.rid_prefix is not None else mesh.rid_prefix
    rid = mesh.rid
    peers = settings.peers if settings and settings.peers is not None else mesh.peers
    weight = settings.placement_weight if settings and settings.placement_weight is not None else mesh.placement_weight
    cap = settings.max_message_bytes if settings and settings.max_message_bytes is not None else mesh.max_message_bytes
    timeout = mesh.default_request_timeout
    if settings and settings.default_request_timeout is not None:
        timeout = settings.default_request_timeout
    has_store = host.location_store is not None
    if rid is not None:
        check_fixed_rid(rid, f"{where}.rid")
        if prefix is not None:
            raise ConfigurationError(f"{where}: rid and rid_prefix exclude each other; a fixed rid has no prefix")
        if mesh.object_role is not ObjectRole.NONE:
            raise ConfigurationError(
                f"{where}.rid: a node with an object role gets a new id at every start; remove rid"
            )
        if has_store:
            raise ConfigurationError(
                f"{where}.rid: with a Location Store nodes find each other under ids that are new at every start; "
                "remove rid, or remove location_store and name peers"
            )
    elif prefix is not None:
        check_prefix(prefix, f"{where}.rid_prefix")
    if mesh.object_role is not ObjectRole.NONE and not has_store:
        raise ConfigurationError(
            f"{where}: the object role {mesh.object_role.name.lower()} needs a Location Store; set location_store"
        )
    handlers = HandlerTable(where, codecs)
    for registration in mesh.handlers:
        handlers.add(HandlerSpec.inspect(registration.function, registration.kind), registration.channel)
    options = MeshOptions(
        name=mesh.name,
        rid=rid if rid is not None else automatic_rid(prefix or DEFAULT_PREFIX, entropy),
        listener=plan_listener(listen, advertise_host, where),
        peers=tuple(check_peer_endpoint(peer, f"{where}.peers") for peer in peers),
        discovers=has_store,
        object_role=mesh.object_role,
        placement_weight=check_weight(weight, f"{where}.placement_weight"),
        max_message_bytes=cap or None,
        application_version=host.application_version,
        default_request_timeout_ms=check_timeout(
            timeout if timeout is not None else host.default_request_timeout, f"{where}.default_request_timeout"
        ),
    )
    return MeshPlan(options=options, channels=tuple(mesh.channels.values()), handlers=handlers)
