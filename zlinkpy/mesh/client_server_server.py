"""A server of one ClientServer channel: its listener and its clients (wire.md §2, §4, §5, §8; LV, SA §H).

A client says nothing about who it is, so there is no book of peers here: each accepted connection is a link of its own,
from its first record to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from zlinkpy.errors import ConfigurationError, ProtocolError
from zlinkpy.link import Ended, Expectation, Failure, FailureReason, ServicePair
from zlinkpy.mesh.dispatch import HandlerTable
from zlinkpy.mesh.holder import LinkHolder
from zlinkpy.mesh.identity import ListenPlan
from zlinkpy.mesh.limits import advertised_limit, transport_limit
from zlinkpy.mesh.options import ANONYMOUS
from zlinkpy.mesh.peer_link import PeerLink
from zlinkpy.mesh.selection import DEFAULT_WEIGHT, check_weight
from zlinkpy.mesh.service_link import LANE, ServiceLink, ServiceSink
from zlinkpy.telemetry import catalogue
from zlinkpy.transport import Connection, Transport
from zlinkpy.wire import Record, ServerAdmission

if TYPE_CHECKING:
    from zlinkpy.mesh.core import MeshCore


_MALFORMED = FailureReason.PROTOCOL_ERROR


@frozen(kw_only=True)
class ServerOptions:
    """What a server is told at its start and, but for its weight, cannot change afterwards."""

    channel: str
    rid: str
    listener: ListenPlan
    weight: int = DEFAULT_WEIGHT
    max_message_bytes: int
    """0: no cap."""
    security_identity: str = ANONYMOUS


class ClientServerServer(LinkHolder):
    """This process's server of one ClientServer channel."""

    scope_kind = "channel"
    kind = "ClientServer channel"

    def __init__(self, core: MeshCore, options: ServerOptions, handlers: HandlerTable) -> None:
        super().__init__(core, options.channel, handlers)
        self.options = options
        self.rid = options.rid
        self.weight = options.weight
        self.generation = core.entropy.generation()
        self.last_failure: Failure | None = None
        """Why the client that was lost last was lost."""
        self._admission: ServerAdmission | None = None
        self._max_bytes = transport_limit(options.max_message_bytes)

    async def start(self, transport: Transport) -> None:
        """Bind the listener. Raises ConfigurationError when it cannot bind."""
        plan = self.options.listener
        self._listener = await transport.listen(str(plan.bind), self._accept, max_message_bytes=self._max_bytes)
        self.endpoint = plan.advertised(self._listener.endpoint)
        self.core.add(self)
        self._rebuild()

    # -- what this server says about itself ----------------------------------------------------------------------------

    def admission(self) -> ServerAdmission:
        """The current admission record (wire.md §4)."""
        if self._admission is None:
            assert self.endpoint is not None
            self._admission = ServerAdmission(
                channel_name=self.name,
                server_rid=self.rid,
                lifecycle_generation=self.generation,
                descriptor_revision=self._revision,
                weight=self.weight,
                runtime_state=self.core.runtime_state,
                security_identity=self.options.security_identity,
                max_message_bytes=advertised_limit(self.options.max_message_bytes),
                advertised_endpoint=self.endpoint,
            )
        return self._admission

    def _content_is_old(self) -> None:
        self._admission = None

    def set_weight(self, weight: int) -> None:
        """Change this server's weight: its clients and the Store know at once, without a reconnect (wire.md §4).

        Raises ValueError for a weight outside 0..10000; the old one stays.
        """
        try:
            check_weight(weight, f"channel {self.name!r}")
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        if self.weight != weight:
            self.weight = weight
            self.content_changed()

    # -- clients -------------------------------------------------------------------------------------------------------

    def _accept(self, connection: Connection) -> ServiceSink:
        core = self.core
        assert self.endpoint is not None
        pair = ServicePair(
            dialler=False,
            local=self.admission,
            expected=lambda: Expectation(proved=connection.peer_key),
            judge=lambda _admission: None,
            probe_ids=core.entropy.generation,
            flow=lambda: core.flow,
            prepared=self._prepared,
        )
        link = ServiceLink(
            self, pair, endpoint=self.endpoint, dialler=False, own_limit=self.admission().max_message_bytes
        )
        link.peer_key = connection.peer_key
        self._hold(link)
        sink = ServiceSink(self, link, self._max_bytes)
        link.adopt(sink, LANE, connection)
        link.start()
        return sink

    def application_record(self, link: PeerLink, connection: Connection, record: Record, now: float) -> None:
        if record.command.channel_name != self.name:
            error = ProtocolError(f"this connection is for channel {self.name!r}", field="body.channelName")
            link.violated(LANE, error)
            return
        super().application_record(link, connection, record, now)

    def link_not_ready(self, link: PeerLink, failure: Failure) -> None:
        self.last_failure = failure
        super().link_not_ready(link, failure)

    def link_ended(self, link: PeerLink, ended: Ended) -> None:
        super().link_ended(link, ended)
        if ended.reject is not None:
            self._count_refusal("rejected")
        elif link.pair.remote is None and ended.failure is not None and ended.failure.reason is _MALFORMED:
            self._count_refusal("protocol_error")
        self._rebuild()
        self._check_idle()

    def _count_refusal(self, reason: str) -> None:
        self.core.telemetry.counter(
            catalogue.PEER_REFUSALS, scope_kind=self.scope_kind, scope_name=self.name, reason=reason
        )
