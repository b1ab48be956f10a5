"""Location: the store of who owns what, and what a host does with it by itself: lease, descriptors, discovery.

`zlinkpy.location.embedded` (`serve_embedded`) is not imported here: it needs file locks that not every system has.
"""

from zlinkpy.location.channel_descriptors import CLIENT_SERVER, FANOUT, ClientServerDescriptor, FanoutDescriptor
from zlinkpy.location.counters import CounterBlock, GenerationExhausted
from zlinkpy.location.descriptor_kind import Descriptor, DescriptorKind
from zlinkpy.location.descriptors import (
    MESH_NODE,
    MeshNodeDescriptor,
    NodeCapacity,
    ObjectCapability,
    RelocationPolicy,
    SpotTypeUsage,
    Usage,
)
from zlinkpy.location.directory import (
    Listed,
    Listing,
    NodeEntry,
    NodeList,
    UnreadableNode,
    list_nodes,
    list_publishers,
    list_servers,
)
from zlinkpy.location.discovery import ServiceDiscovery
from zlinkpy.location.discovery_machine import Candidate, Interest, Snapshot, nodes_around, publishers_of, servers_of
from zlinkpy.location.health import OperationHealth, StoreHealth, StoreOperation
from zlinkpy.location.inspection import StoreInspection, inspect_store
from zlinkpy.location.lease import LeaseDriver, OwnerLease
from zlinkpy.location.lease_machine import LeaseEvent, LeaseEventKind, LeaseState
from zlinkpy.location.maintenance import Cleaned, clean_store
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.open import open_store
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.publisher import DescriptorPublisher
from zlinkpy.location.redis_store import RedisStore
from zlinkpy.location.service import Service
from zlinkpy.location.store import (
    Applied,
    BlockingStore,
    Condition,
    Conflict,
    DedicatedProvider,
    Delete,
    Expired,
    Found,
    IfMissing,
    IfValue,
    IfVersion,
    Item,
    LocationStore,
    Missing,
    Mutation,
    Page,
    Put,
    StoreCorruption,
    StoreFailure,
)

__all__ = [
    "CLIENT_SERVER",
    "FANOUT",
    "MESH_NODE",
    "Applied",
    "BlockingStore",
    "Candidate",
    "Cleaned",
    "ClientServerDescriptor",
    "Condition",
    "Conflict",
    "CounterBlock",
    "DedicatedProvider",
    "Delete",
    "Descriptor",
    "DescriptorKind",
    "DescriptorPublisher",
    "Expired",
    "FanoutDescriptor",
    "Found",
    "GenerationExhausted",
    "IfMissing",
    "IfValue",
    "IfVersion",
    "Interest",
    "Item",
    "LeaseDriver",
    "LeaseEvent",
    "LeaseEventKind",
    "LeaseState",
    "Listed",
    "Listing",
    "LocationOptions",
    "LocationStore",
    "MemoryStore",
    "MeshNodeDescriptor",
    "Missing",
    "Mutation",
    "NodeCapacity",
    "NodeEntry",
    "NodeList",
    "ObjectCapability",
    "OperationHealth",
    "OwnerLease",
    "Page",
    "Put",
    "RedisStore",
    "RelocationPolicy",
    "Service",
    "ServiceDiscovery",
    "Snapshot",
    "SpotTypeUsage",
    "StoreCorruption",
    "StoreFailure",
    "StoreHealth",
    "StoreInspection",
    "StoreOperation",
    "UnreadableNode",
    "Usage",
    "clean_store",
    "inspect_store",
    "list_nodes",
    "list_publishers",
    "list_servers",
    "nodes_around",
    "open_store",
    "publishers_of",
    "servers_of",
]
