"""What publishers and subscribers need of their host. The runtime gives it; nothing here knows a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from zlinkpy.entropy import Entropy
from zlinkpy.execution import Pausable, SharedTimer
from zlinkpy.link import Action, LivenessOwner
from zlinkpy.messages import Codecs, Shapes
from zlinkpy.security import HostKeys
from zlinkpy.telemetry import Telemetry
from zlinkpy.wire import RuntimeState


class Receiver(Protocol):
    """Whoever holds a link that the host's liveness owner judges (LV-05)."""

    def perform(self, actions: Sequence[Action]) -> None: ...


class EventIngress(Protocol):
    """Where received events wait for a permit."""

    def accept(self, job: Any, size: int, connection: Pausable, listener: Pausable | None) -> None: ...


class FanoutCore(Protocol):
    """The shared parts of one host."""

    @property
    def entropy(self) -> Entropy: ...
    @property
    def telemetry(self) -> Telemetry: ...
    @property
    def codecs(self) -> Codecs: ...
    @property
    def shapes(self) -> Shapes: ...
    @property
    def timer(self) -> SharedTimer: ...
    @property
    def liveness(self) -> LivenessOwner[Any, Action]: ...
    @property
    def ingress(self) -> EventIngress: ...
    @property
    def keys(self) -> HostKeys | None: ...
    @property
    def taking(self) -> bool: ...
    @property
    def runtime_state(self) -> RuntimeState: ...


OnStatus = Callable[[], None]
