"""What all meshes and ClientServer channels of one host share: the clock they wait on, the request table, the liveness
owner, the job queue.

There is one of each per host: two timers, two tables or two liveness owners could disagree (LV-05, LV-10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from zlinkpy.entropy import Entropy
from zlinkpy.execution import Ingress, Permits, Pressure, SharedTimer, Workers
from zlinkpy.link import Action, LivenessOwner
from zlinkpy.mesh.framework import FrameworkChannels
from zlinkpy.mesh.request_table import RequestTable
from zlinkpy.messages import Codecs, Shapes
from zlinkpy.security import HostKeys
from zlinkpy.telemetry import Telemetry
from zlinkpy.wire import FlowState, RuntimeState

if TYPE_CHECKING:
    from zlinkpy.mesh.channels import SendPath
    from zlinkpy.mesh.holder import LinkHolder
    from zlinkpy.mesh.peer_link import PeerLink
    from zlinkpy.mesh.route_mesh import RouteMesh


class _LivenessSource:
    """The liveness owner on the shared timer."""

    def __init__(self, owner: LivenessOwner[PeerLink, Action]) -> None:
        self._owner = owner

    def next_deadline(self) -> float | None:
        return self._owner.next_deadline()

    def tick(self, now: float) -> None:
        for link, actions in self._owner.tick(now):
            link.perform(actions)


class MeshCore:
    """The shared parts, and the host's state as peers are told it."""

    def __init__(
        self,
        *,
        entropy: Entropy,
        telemetry: Telemetry,
        codecs: Codecs,
        permits: Permits,
        workers: Workers,
        keys: HostKeys | None = None,
    ) -> None:
        self.keys = keys
        self.entropy = entropy
        self.telemetry = telemetry
        self.codecs = codecs
        self.shapes = Shapes(codecs)
        self.framework = FrameworkChannels(codecs, self.shapes)
        self.permits = permits
        self.workers = workers
        self.timer = SharedTimer()
        self.requests = RequestTable(self.timer.touch)
        self.liveness: LivenessOwner[PeerLink, Action] = LivenessOwner()
        self.ingress = Ingress(permits, workers)
        self.meshes: dict[str, RouteMesh] = {}
        self.holders: dict[LinkHolder, None] = {}
        """Everything that owns connections, in the order of its start."""
        self.channels: dict[str, SendPath] = {}
        """One send path per channel name, whatever the topology (wire.md §9)."""
        self.served_only: set[str] = set()
        """ClientServer channels with a server here and no client: they cannot be called (wire.md §9)."""
        self.runtime_state = RuntimeState.PREPARING
        self.accepting = False
        """True while this host takes new calls of its own application."""
        self.taking = False
        """True while records of peers are taken; outlasts `accepting`, because a peer's last messages are still on
        their way when it learns that this host is draining."""
        self.last_taken = 0.0
        """When the last application record of a peer was taken."""
        permits.on_pressure = self._pressure_changed
        self.timer.add(self.requests)
        self.timer.add(_LivenessSource(self.liveness))

    @property
    def flow(self) -> FlowState:
        """What peers are to be told about this host's job queue (wire.md §12)."""
        return FlowState.PAUSED if self.permits.pressure is Pressure.PAUSED else FlowState.RUNNING

    def _pressure_changed(self, _pressure: Pressure) -> None:
        for holder in self.holders:
            holder.flow_changed(self.flow)

    def set_state(self, state: RuntimeState, *, accepting: bool, taking: bool) -> None:
        """Change the host's state and tell every peer at once (LV-123, LV-124)."""
        self.accepting = accepting
        self.taking = taking
        if state is not self.runtime_state:
            self.runtime_state = state
            for holder in self.holders:
                holder.content_changed()

    def add(self, holder: LinkHolder) -> None:
        """Keep `holder` informed from now on."""
        self.holders[holder] = None

    def remove(self, holder: LinkHolder) -> None:
        """`holder` has closed."""
        self.holders.pop(holder, None)
        if self.meshes.get(holder.name) is holder:
            del self.meshes[holder.name]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the timer and the workers until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.timer.run)
            await nursery.start(self.workers.run)
            task_status.started()
