"""Makes the memory part from an agent's configuration, and applies a new configuration while it runs."""

from functools import partial
from pathlib import Path

import msgspec

from colocate.agent.device_bound import DeviceBound
from colocate.agent.schema import Config
from colocate.clock import Clock
from colocate.cluster import connection
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Flags, Remedies
from colocate.cluster.node_status import node_kubelet
from colocate.host.identity import this_node
from colocate.memory import blocks_for_settings
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.machine import Machine
from colocate.memory.agent.part import MemoryPart
from colocate.memory.agent.section import MemorySection
from colocate.memory.agent.store import MemoryStore

_FIXED = (
    *("enabled", "resource", "block_size", "state_folder", "cgroup_root", "node", "kubeconfig", "dry_run"),
    "swap",
)
"""Fields that change only with a restart."""

_REMEDIES = Remedies(kubeconfig="a kubeconfig with memory.kubeconfig or KUBECONFIG", context="", insecure="")
"""An agent has no flags for the cluster, and always verifies the server."""

_PATIENCE = ClientSettings(
    timeout=10.0, list_timeout=30.0, attempts=2, most_objects=10_000, longest_list=1 << 30
)
"""Bounds for reading the node and its pods: a longer list is not theirs."""


def memory_part(config: Config, clock: Clock, bound: DeviceBound) -> MemoryPart:
    """The part as configured; UserError where no cluster is configured or the stored state cannot be read."""
    memory = config.memory
    kubeconfig = Path(memory.kubeconfig) if memory.kubeconfig else None
    client = Client(connection.find(Flags(kubeconfig=kubeconfig), remedies=_REMEDIES), clock, _PATIENCE)
    bound.ask = partial(node_kubelet, client, memory.node or this_node())
    return MemoryPart(
        memory.settings(),
        store=MemoryStore(memory.state_folder),
        machine=Machine(Path(memory.cgroup_root)),
        cluster=ClusterView(client, memory.node or this_node()),
        paths=config.kubelet.settings().paths,
        clock=clock,
        refresh=memory.refresh,
        rate=memory.migration_rate,
        move_expiry=memory.move_expiry,
        dry_run=memory.dry_run,
    )


def fixed_differences(old: MemorySection, new: MemorySection) -> list[str]:
    """The fields that differ and take effect only with the next start."""
    return [f"memory.{name}" for name in _FIXED if getattr(old, name) != getattr(new, name)]


def take_settings(part: MemoryPart, new: MemorySection) -> None:
    """Apply new settings; UserError where the size or name of held blocks would change."""
    held = frozenset(id for ids in part.state.holders.values() for id in ids)
    settings = new.settings()
    blocks_for_settings(part.state.blocks, settings, held)
    fixed = ("resource", "block_size", "swap")
    part.settings = msgspec.structs.replace(
        settings, **{name: getattr(part.settings, name) for name in fixed}
    )
    part.refresh = new.refresh
    part.executor.rate = new.migration_rate
    part.executor.moves.expiry = new.move_expiry
