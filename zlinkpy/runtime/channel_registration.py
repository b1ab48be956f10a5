"""What an application registers of ClientServer channels before a host runs: servers and clients. Does no I/O.

A channel's two roles are registered apart and may both be in one process (wire.md §9).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attrs import define, field

from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.mesh import check_max_message_bytes, check_weight, plan_listener
from zlinkpy.messages import HandlerKind, check_handler
from zlinkpy.runtime.registration import (
    HandlerRegistration,
    check_channel_name,
    check_timeout,
    check_two_ids,
)
from zlinkpy.runtime.security import split_name

F = TypeVar("F", bound=Callable[..., Any])


def where_of(channel: str) -> str:
    """How errors name a ClientServer channel."""
    return f"client_server.{channel}"


@define(eq=False)
class ServedChannel:
    """A ClientServer channel this host serves. Made by `Host.serve_client_server`, whose arguments are documented
    there."""

    name: str
    listen: str
    advertise_host: str | None
    weight: int
    rid_prefix: str | None
    rid: str | None
    max_message_bytes: int
    _frozen: Callable[[], bool]
    handlers: list[HandlerRegistration] = field(factory=list)

    def on_send(self, function: F) -> F:
        """Decorator: handle one-way messages; the first parameter's annotation names the message."""
        return self._handle("send", function)

    def on_request(self, function: F) -> F:
        """Decorator: answer requests; what the function returns is the reply."""
        return self._handle("request", function)

    def _handle(self, kind: HandlerKind, function: F) -> F:
        if self._frozen():
            raise InvalidOperationError(f"{where_of(self.name)}: the host has started; registrations are fixed")
        check_handler(function, kind)
        self.handlers.append(HandlerRegistration(function, kind, self.name))
        return function


@define(eq=False)
class UsedChannel:
    """A ClientServer channel this host calls."""

    name: str
    servers: tuple[str, ...]
    default_request_timeout: float | None
    max_message_bytes: int


def serve_channel(
    name: str,
    frozen: Callable[[], bool],
    *,
    listen: str,
    advertise_host: str | None,
    weight: int,
    rid_prefix: str | None,
    rid: str | None,
    max_message_bytes: int,
) -> ServedChannel:
    """Check one server's own arguments and build its registration."""
    where = where_of(check_channel_name(name))
    plan_listener(listen, advertise_host, where)
    check_two_ids(rid, rid_prefix, where)
    return ServedChannel(
        name=name,
        listen=listen,
        advertise_host=advertise_host,
        weight=check_weight(weight, f"{where}.weight"),
        rid_prefix=rid_prefix,
        rid=rid,
        max_message_bytes=check_max_message_bytes(max_message_bytes, where),
        frozen=frozen,
    )


def use_channel(
    name: str, *, servers: Sequence[str], default_request_timeout: float | None, max_message_bytes: int
) -> UsedChannel:
    """Check one client's own arguments and build its registration."""
    where = where_of(check_channel_name(name))
    if isinstance(servers, str):
        raise ConfigurationError(f"{where}.servers: give a sequence of endpoints, not the one text {servers!r}")
    if default_request_timeout is not None:
        check_timeout(default_request_timeout, f"{where}.default_request_timeout")
    for server in servers:
        split_name(server, f"{where}.servers")
    return UsedChannel(
        name=name,
        servers=tuple(servers),
        default_request_timeout=default_request_timeout,
        max_message_bytes=check_max_message_bytes(max_message_bytes, where),
    )
