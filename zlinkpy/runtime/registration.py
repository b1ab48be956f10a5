"""What an application registers before a host runs: meshes, channels, roles, handlers (SA §A). Does no I/O.

What can be judged from the registration alone is judged here, at the line that is wrong; what needs the rest (the
store, the other meshes, resolved type hints) is judged when `host.run()` is entered, before any socket is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attrs import define, field

from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.mesh import (
    DEFAULT_WEIGHT,
    FRAMEWORK_PREFIX,
    MemberChannel,
    RouteMesh,
    check_fixed_rid,
    check_prefix,
    check_weight,
    open_member_channel,
    plan_listener,
)
from zlinkpy.messages import HandlerKind, check_handler, to_milliseconds
from zlinkpy.runtime.setting_values import MESSAGE_CAP
from zlinkpy.wire import ObjectRole

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_LISTEN = "tcp://127.0.0.1:0"
DEFAULT_PREFIX = "node"
NAME_BYTES = 255


def check_name(name: str, what: str) -> str:
    """A mesh or channel name: 1..255 bytes of UTF-8 without NUL (wire type `t`)."""
    if not isinstance(name, str):
        raise ConfigurationError(f"{what} must be a str, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= NAME_BYTES or "\0" in name:
        raise ConfigurationError(f"{what} {name!r} must be 1 to {NAME_BYTES} bytes of UTF-8 without NUL")
    return name


def check_channel_name(name: str) -> str:
    """A channel name an application may have: not one of the framework's."""
    check_name(name, "channel name")
    if name.startswith(FRAMEWORK_PREFIX):
        raise ConfigurationError(
            f"channel {name!r}: names that start with {FRAMEWORK_PREFIX!r} belong to the framework"
        )
    return name


def check_two_ids(rid: str | None, rid_prefix: str | None, where: str) -> None:
    """A fixed routing id or a prefix for automatic ones; each well formed, and not both."""
    if rid_prefix is not None:
        check_prefix(rid_prefix, f"{where}.rid_prefix")
    if rid is not None:
        check_fixed_rid(rid, f"{where}.rid")
        if rid_prefix is not None:
            raise ConfigurationError(f"{where}: rid and rid_prefix exclude each other; a fixed rid has no prefix")


@define(eq=False)
class HandlerRegistration:
    """A decorated function, to be inspected when the host starts: forward names resolve then."""

    function: Callable[..., Any]
    kind: HandlerKind
    channel: str | None


@define(eq=False)
class ChannelRegistration:
    """One channel of one mesh."""

    name: str
    serves: bool
    weight: int


@define(eq=False)
class Mesh:
    """A mesh this host is a member of. Made by `Host.mesh`; the keyword arguments are documented there."""

    name: str
    listen: str
    advertise_host: str | None
    rid_prefix: str | None
    rid: str | None
    peers: tuple[str, ...]
    default_request_timeout: float | None
    placement_weight: int
    max_message_bytes: int
    _frozen: Callable[[], bool]
    object_role: ObjectRole = ObjectRole.NONE
    channels: dict[str, ChannelRegistration] = field(factory=dict)
    handlers: list[HandlerRegistration] = field(factory=list)
    member_channels: dict[str, None] = field(factory=dict)
    """Channels of the framework that this node is a published member of."""
    node: RouteMesh | None = None
    """The running node, while there is one."""

    @property
    def where(self) -> str:
        """How errors name this mesh."""
        return f"mesh.{self.name}"

    def serve_channel(self, name: str, *, weight: int = DEFAULT_WEIGHT) -> None:
        """Be a server of channel `name`, with `weight` 0..10000 (0: a member that is never selected). Includes calling
        it."""
        self._register(name, serves=True, weight=check_weight(weight, f"{self.where}.channels.{name}"))

    def use_channel(self, name: str) -> None:
        """Be able to call channel `name`. Not published."""
        self._register(name, serves=False, weight=0)

    def serve_member_channel(self, name: str) -> None:
        """For parts of the framework: be a published member of its channel `name`, with weight 0."""
        self._open()
        if not name.startswith(FRAMEWORK_PREFIX):
            raise ConfigurationError(f"{self.where}: {name!r} is no channel of the framework")
        self.member_channels[name] = None

    def member_channel(self, name: str) -> MemberChannel:
        """For parts of the framework: take hold of the channel while the host runs.

        Raises InvalidOperationError when the host does not run, or the channel is not served here or in use.
        """
        if self.node is None:
            raise InvalidOperationError(f"{self.where}: the host is not running; use it inside `async with host.run()`")
        return open_member_channel(self.node, name)

    def object_client(self) -> None:
        """Use Spots and Actors without hosting any. Needs a Location Store; excludes node direct handlers (SA-04,
        SA-07)."""
        self._open()
        if self.object_role is not ObjectRole.NONE:
            raise ConfigurationError(f"{self.where}: the object role is already {self.object_role.name.lower()}")
        self.object_role = ObjectRole.CLIENT

    def on_channel_send(self, channel: str) -> Callable[[F], F]:
        """Decorator: handle one-way messages of `channel`; the first parameter's annotation names the message."""
        return self._handler("send", channel)

    def on_channel_request(self, channel: str) -> Callable[[F], F]:
        """Decorator: answer requests of `channel`; what the function returns is the reply."""
        return self._handler("request", channel)

    def on_node_send(self, function: F) -> F:
        """Decorator: handle one-way messages sent to exactly this node."""
        return self._handler("send", None)(function)

    def on_node_request(self, function: F) -> F:
        """Decorator: answer requests sent to exactly this node."""
        return self._handler("request", None)(function)

    def _handler(self, kind: HandlerKind, channel: str | None) -> Callable[[F], F]:
        self._open()
        if channel is not None:
            check_name(channel, "channel name")

        def decorate(function: F) -> F:
            self._open()
            check_handler(function, kind)
            self.handlers.append(HandlerRegistration(function, kind, channel))
            return function

        return decorate

    def _register(self, name: str, *, serves: bool, weight: int) -> None:
        self._open()
        check_channel_name(name)
        if name in self.channels:
            raise ConfigurationError(
                f"{self.where}: channel {name!r} is registered twice; serving a channel includes calling it"
            )
        self.channels[name] = ChannelRegistration(name, serves, weight)

    def _open(self) -> None:
        if self._frozen():
            raise InvalidOperationError(f"{self.where}: the host has started; roles and registrations are fixed")

    def check(self) -> None:
        """What is wrong with this mesh alone. Raises ConfigurationError."""
        for handler in self.handlers:
            if handler.channel is None:
                if self.object_role is ObjectRole.CLIENT:
                    raise ConfigurationError(
                        f"{self.where}: an object client takes no node direct messages; remove the handler "
                        f"{handler.function.__qualname__} or serve a channel instead"
                    )
            elif handler.channel not in self.channels or not self.channels[handler.channel].serves:
                raise ConfigurationError(
                    f"{self.where}: {handler.function.__qualname__} handles channel {handler.channel!r}, which this "
                    f"mesh does not serve; add serve_channel({handler.channel!r})"
                )


def make_mesh(
    name: str,
    frozen: Callable[[], bool],
    *,
    listen: str,
    advertise_host: str | None,
    rid_prefix: str | None,
    rid: str | None,
    peers: Sequence[str],
    default_request_timeout: float | None,
    placement_weight: int,
    max_message_bytes: int,
) -> Mesh:
    """Check one mesh's own arguments and build its registration."""
    where = f"mesh.{check_name(name, 'mesh name')}"
    plan_listener(listen, advertise_host, where)
    check_two_ids(rid, rid_prefix, where)
    if default_request_timeout is not None:
        check_timeout(default_request_timeout, f"{where}.default_request_timeout")
    check_weight(placement_weight, f"{where}.placement_weight")
    return Mesh(
        name=name,
        listen=listen,
        advertise_host=advertise_host,
        rid_prefix=rid_prefix,
        rid=rid,
        peers=tuple(peers),
        default_request_timeout=default_request_timeout,
        placement_weight=placement_weight,
        max_message_bytes=check_message_cap(max_message_bytes, f"{where}.max_message_bytes"),
        frozen=frozen,
    )


def check_message_cap(size: int, where: str) -> int:
    """A bound on the bytes of one frame; 0 for none. Raises ConfigurationError naming the key."""
    try:
        return MESSAGE_CAP.read(size)
    except ValueError:
        raise ConfigurationError(f"{where} is {size!r}; it must be {MESSAGE_CAP.expects}") from None


def check_timeout(seconds: float, where: str) -> int:
    """A configured timeout as milliseconds. Raises ConfigurationError naming the key."""
    try:
        return to_milliseconds(seconds)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{where}: {error}") from None
