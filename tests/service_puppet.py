"""A puppet on a ClientServer channel: a scripted client or server with one connection per pair."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import trio
from attrs import evolve

from tests.puppet import APP, Puppet, PuppetLane, PuppetPair
from zlinkpy.wire import (
    Admit,
    ClientAdmission,
    Close,
    Direction,
    Hello,
    LivenessAck,
    LivenessProbe,
    Record,
    Reject,
    RuntimeState,
    ServerAdmission,
    Topology,
    Update,
)

_numbers = count(1)

# What a mesh puppet's tests call it -> what a server's admission calls it.
_NAMES = {"node_rid": "server_rid"}


class ServicePuppetLane(PuppetLane):
    """The one connection; its `lane` is the application lane, as the machines call it."""

    topology = Topology.CLIENT_SERVER

    @property
    def direction(self) -> Direction:
        return Direction.TO_SERVER if self.puppet.serves else Direction.TO_CLIENT


class ServicePuppetPair(PuppetPair):
    """A connection as the puppet sees it."""

    @property
    def completion(self) -> PuppetLane:
        """Replies travel on the one connection."""
        return self.app

    def update(self, **changes: Any) -> None:
        """Announce the next revision of the server's admission, with `changes`."""
        own = self.puppet.admission
        revision = changes.pop("descriptor_revision", own.descriptor_revision + 1)
        if "channels" in changes:
            changes["weight"] = dict(changes.pop("channels"))[own.channel_name]
        changes = {_NAMES.get(name, name): value for name, value in changes.items()}
        self.puppet.admission = evolve(own, descriptor_revision=revision, **changes)
        self.app.send(Update(self.puppet.admission))


class ServicePuppet(Puppet):
    """One scripted client (`serves` False) or server."""

    lane_type = ServicePuppetLane
    pair_type = ServicePuppetPair

    def __init__(
        self,
        wire: Any,
        rid: str,
        *,
        channel: str,
        serves: bool,
        endpoint: str = "",
        channels: Mapping[str, int] | None = None,
        weight: int = 100,
        generation: int = 7,
        state: RuntimeState = RuntimeState.SERVING,
        security: str = "anonymous",
        limit: int = 2**32 - 1,
    ) -> None:
        super().__init__(wire, rid)
        self.serves = serves
        self.admission = (
            ServerAdmission(
                channel_name=channel,
                server_rid=rid,
                lifecycle_generation=generation,
                descriptor_revision=1,
                weight=(channels or {}).get(channel, weight),
                runtime_state=state,
                security_identity=security,
                max_message_bytes=limit,
                advertised_endpoint=endpoint or f"tcp://10.9.9.8:{4000 + next(_numbers)}",
            )
            if serves
            else ClientAdmission(channel, security, limit)
        )

    def lane_opened(self, lane: PuppetLane) -> None:
        self.lanes.append(lane)
        if lane.pair is not None and not getattr(lane, "silent", False):
            lane.send(Hello(self.admission))

    def record(self, lane: PuppetLane, record: Record) -> None:
        command = record.command
        if self.hears(lane, record):
            return
        match command:
            case LivenessProbe(probe_id=probe_id) if self.answers_probes:
                lane.send(LivenessAck(probe_id))
            case Hello() if self.admits:
                pair = self._pair_of(lane)
                lane.send(Admit(self.admission))
                self._up(pair, command.admission)
            case Admit(admission=remote):
                assert lane.pair is not None
                self._up(lane.pair, remote)
            case Reject(reason=reason):
                assert lane.pair is not None
                lane.pair.reject = reason
            case Close() if lane.is_open:
                lane.close()

    def _pair_of(self, lane: PuppetLane) -> PuppetPair:
        if lane.pair is None:
            lane.pair = self.pair_type(self, next(_numbers).to_bytes(8, "big"), dialled=False)
            lane.pair.lanes[APP] = lane
            self.pairs.append(lane.pair)
        return lane.pair

    def _up(self, pair: PuppetPair, remote: Any) -> None:
        pair.admitted.add(APP)
        pair.remote = remote
        if pair.ready_at is None:
            pair.ready_at = trio.current_time()
