"""Location: the store of who owns what, and what a host does with it by itself: lease, descriptors, discovery."""

from zlinkpy.location.counters import CounterBlock, GenerationExhausted
from zlinkpy.location.descriptors import (
    MeshNodeDescriptor,
    NodeCapacity,
    ObjectCapability,
    RelocationPolicy,
    SpotTypeUsage,
    Usage,
)
from zlinkpy.location.discovery import MeshDiscovery
from zlinkpy.location.discovery_machine import Candidate, Snapshot
from zlinkpy.location.health import OperationHealth, StoreHealth, StoreOperation
from zlinkpy.location.lease import LeaseDriver, OwnerLease
from zlinkpy.location.lease_machine import LeaseEvent, LeaseEventKind, LeaseState
from zlinkpy.location.open import open_store
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.publisher import DescriptorPublisher
from zlinkpy.location.service import Service
from zlinkpy.location.store import LocationStore, StoreCorruption, StoreFailure

__all__ = [
    "Candidate",
    "CounterBlock",
    "DescriptorPublisher",
    "GenerationExhausted",
    "LeaseDriver",
    "LeaseEvent",
    "LeaseEventKind",
    "LeaseState",
    "LocationOptions",
    "LocationStore",
    "MeshDiscovery",
    "MeshNodeDescriptor",
    "NodeCapacity",
    "ObjectCapability",
    "OperationHealth",
    "OwnerLease",
    "RelocationPolicy",
    "Service",
    "Snapshot",
    "SpotTypeUsage",
    "StoreCorruption",
    "StoreFailure",
    "StoreHealth",
    "StoreOperation",
    "Usage",
    "open_store",
]
