"""Every number the runtime keeps, with the labels it may carry.

A label is either one of a closed list of values or a name the application configured. An endpoint, a routing id or a
connection id is neither: such a label would make a new time series per peer and publish identities (LV-167). Because
the lists are closed, `InMemoryTelemetry` can refuse what does not belong, and tests that use it check their callers.

``exported`` metrics are the public catalogue; names, units and labels of these are fixed across languages. The others
are counts of this runtime for its own status page and are not registered with a metrics provider.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from attrs import frozen

Kind = Literal["counter", "gauge", "histogram"]

_IDENTITY: Final = re.compile(r"://|[0-9a-f]{8}-[0-9a-f]{4}-|[0-9a-f]{16}|\d+\.\d+\.\d+\.\d+")


class ConfiguredName:
    """A label whose values are names from the registration: few, and the same on every host."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and 0 < len(value) <= 255 and _IDENTITY.search(value) is None

    def __repr__(self) -> str:
        return "a configured name"


CONFIGURED: Final = ConfiguredName()

Values = frozenset[str] | ConfiguredName

SURFACES: Final = frozenset({"node", "channel", "spot", "instance_spot", "actor"})
MESSAGE_KINDS: Final = frozenset({"send", "request", "response", "error", "control"})
SOURCES: Final = frozenset({"manual", "redis", "manual_and_redis"})
PRESSURES: Final = frozenset({"running", "paused"})
DISCONNECT_REASONS: Final = frozenset(
    {
        "orderly_close",
        "transport_error",
        "peer_deadline",
        "publisher_silent",
        "identity_mismatch",
        "generation_mismatch",
        "security_mismatch",
        "protocol_error",
        "replaced",
        "host_not_serving",
        "rejected",
    }
)


@frozen(kw_only=True)
class Metric:
    """One number.

    Attributes:
        name: Dotted, as exported.
        kind: How values are combined.
        unit: ``s``, ``By``, or a braced word.
        labels: The label keys, all of which every value carries, and what each may be.
        exported: Whether it is part of the public catalogue.
    """

    name: str
    kind: Kind
    unit: str
    labels: Mapping[str, Values]
    exported: bool = True

    def check(self, labels: Mapping[str, str]) -> None:
        """Refuse labels that do not belong to this metric.

        Raises:
            ValueError: Naming the metric, the label and what it may be.
        """
        if labels.keys() != self.labels.keys():
            raise ValueError(f"{self.name} takes the labels {sorted(self.labels)}, not {sorted(labels)}")
        for key, value in labels.items():
            if value not in self.labels[key]:
                allowed = self.labels[key]
                shown = ", ".join(sorted(allowed)) if isinstance(allowed, frozenset) else repr(allowed)
                raise ValueError(f"{self.name}: the label {key} is {shown}, not {value!r}")


_MESH: Final[Mapping[str, Values]] = {"mesh_name": CONFIGURED}
_SURFACE: Final[Mapping[str, Values]] = {**_MESH, "surface": SURFACES}
_CHANNEL: Final[Mapping[str, Values]] = {"channel_name": CONFIGURED}
_LEASE: Final[Mapping[str, Values]] = {"scope_kind": frozenset({"mesh", "channel"}), "scope_name": CONFIGURED}

REQUESTS_INFLIGHT: Final = "zlink.mesh_node.requests.inflight"
REQUEST_DURATION: Final = "zlink.mesh_node.request.duration"
REQUEST_TIMEOUTS: Final = "zlink.mesh_node.request.timeouts"
MESSAGES_DROPPED: Final = "zlink.mesh_node.messages.dropped"
SELECTION_FAILURES: Final = "zlink.mesh_node.channel.selection_failures"
PEERS_CONFIGURED: Final = "zlink.mesh_node.peers.configured"
PEERS_CONNECTED: Final = "zlink.mesh_node.peers.connected"
PEERS_READY: Final = "zlink.mesh_node.peers.ready"
PEER_DISCONNECTS: Final = "zlink.mesh_node.peer.disconnects"
PRESSURE_TRANSITIONS: Final = "zlink.host.application_job_queue.pressure_transitions"
STORE_ERRORS: Final = "zlink.location.store.errors"
LEASE_RENEW_FAILURES: Final = "zlink.location.owner_lease.renew.failures"
LEASE_RENEW_LATENESS: Final = "zlink.location.owner_lease.renew.lateness"
MESSAGES_SENT: Final = "zlink.mesh_node.messages.sent"
MESSAGES_RECEIVED: Final = "zlink.mesh_node.messages.received"
PEER_CONNECTS: Final = "zlink.mesh_node.peer.connects"
PEER_REFUSALS: Final = "zlink.mesh_node.peer.refusals"
HANDLER_FAILURES: Final = "zlink.mesh_node.handler.failures"
LOOP_BLOCKED: Final = "zlink.host.loop_blocked"
FANOUT_PUBLISHED: Final = "zlink.fanout.events.published"
FANOUT_RECEIVED: Final = "zlink.fanout.events.received"
FANOUT_FAILURES: Final = "zlink.fanout.handler.failures"

_METRICS: Final = (
    Metric(name=REQUESTS_INFLIGHT, kind="gauge", unit="{request}", labels=_SURFACE),
    Metric(
        name=REQUEST_DURATION,
        kind="histogram",
        unit="s",
        labels={**_SURFACE, "outcome": frozenset({"succeeded", "failed", "cancelled", "shutdown", "timed_out"})},
    ),
    Metric(name=REQUEST_TIMEOUTS, kind="counter", unit="{request}", labels=_SURFACE),
    Metric(
        name=MESSAGES_DROPPED,
        kind="counter",
        unit="{message}",
        labels={
            **_SURFACE,
            "message_kind": MESSAGE_KINDS,
            "reason": frozenset({"no_handler", "decode_error", "backpressure", "stale_target", "shutdown"}),
        },
    ),
    Metric(
        name=SELECTION_FAILURES,
        kind="counter",
        unit="{failure}",
        labels={**_MESH, "channel_name": CONFIGURED, "reason": frozenset({"no_member", "not_ready", "draining"})},
    ),
    Metric(name=PEERS_CONFIGURED, kind="gauge", unit="{peer}", labels={**_MESH, "source": SOURCES}),
    Metric(name=PEERS_CONNECTED, kind="gauge", unit="{peer}", labels={**_MESH, "source": SOURCES}),
    Metric(name=PEERS_READY, kind="gauge", unit="{peer}", labels={**_MESH, "source": SOURCES}),
    Metric(name=PEER_DISCONNECTS, kind="counter", unit="{disconnect}", labels={**_LEASE, "reason": DISCONNECT_REASONS}),
    Metric(name=PRESSURE_TRANSITIONS, kind="counter", unit="{transition}", labels={"state": PRESSURES}),
    Metric(
        name=STORE_ERRORS,
        kind="counter",
        unit="{error}",
        labels={
            "operation": frozenset(
                {
                    "read",
                    "compare_exchange",
                    "relocation_put",
                    "relocation_get",
                    "relocation_delete",
                    "lease_renew",
                    "release",
                }
            )
        },
    ),
    Metric(name=LEASE_RENEW_FAILURES, kind="counter", unit="{failure}", labels=_LEASE),
    Metric(name=LEASE_RENEW_LATENESS, kind="histogram", unit="s", labels=_LEASE),
    Metric(
        name=MESSAGES_SENT,
        kind="counter",
        unit="{message}",
        labels={**_SURFACE, "message_kind": MESSAGE_KINDS},
        exported=False,
    ),
    Metric(
        name=MESSAGES_RECEIVED,
        kind="counter",
        unit="{message}",
        labels={**_SURFACE, "message_kind": MESSAGE_KINDS},
        exported=False,
    ),
    Metric(name=PEER_CONNECTS, kind="counter", unit="{connect}", labels=_LEASE, exported=False),
    Metric(
        name=PEER_REFUSALS,
        kind="counter",
        unit="{refusal}",
        labels={**_LEASE, "reason": frozenset({"rejected", "protocol_error", "not_required"})},
        exported=False,
    ),
    Metric(
        name=HANDLER_FAILURES,
        kind="counter",
        unit="{failure}",
        labels={**_SURFACE, "message_kind": MESSAGE_KINDS},
        exported=False,
    ),
    Metric(name=LOOP_BLOCKED, kind="counter", unit="{block}", labels={}, exported=False),
    Metric(name=FANOUT_PUBLISHED, kind="counter", unit="{event}", labels=_CHANNEL, exported=False),
    Metric(name=FANOUT_RECEIVED, kind="counter", unit="{event}", labels=_CHANNEL, exported=False),
    Metric(name=FANOUT_FAILURES, kind="counter", unit="{failure}", labels=_CHANNEL, exported=False),
)

CATALOGUE: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _METRICS}
"""All metrics by name."""
