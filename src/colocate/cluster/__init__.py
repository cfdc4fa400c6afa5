"""The edge to the cluster: how to reach its API server, ask it, follow it and tell it. No decisions here.

Nothing in this room chooses what to evict, patch or report; it carries out what it is given and says how
that went. It knows nothing of the embedded cluster: to it, a lab and a real cluster are the same.
"""

from colocate.cluster.changes import Added, Change, Deleted, Key, Modified
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection, Flags, find
from colocate.cluster.events import EventRecorder, EventType
from colocate.cluster.eviction import Evicted, Eviction, evict
from colocate.cluster.resources import NODES, PODS, Resource, Selection
from colocate.cluster.watch_cache import WatchCache

__all__ = [
    "NODES",
    "PODS",
    "Added",
    "Change",
    "Client",
    "Connection",
    "Deleted",
    "EventRecorder",
    "EventType",
    "Evicted",
    "Eviction",
    "Flags",
    "Key",
    "Modified",
    "Resource",
    "Selection",
    "WatchCache",
    "evict",
    "find",
]
