"""The edge to the cluster: connects to the API server, reads, watches and writes objects. No decisions here.

Nothing here chooses what to evict, patch or report; it carries out what callers ask and returns the result. A lab
and a real cluster are the same to it.
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
