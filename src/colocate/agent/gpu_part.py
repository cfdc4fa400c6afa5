"""The GPU part made from an agent's configuration, and changed by a new one as far as it can be while it runs."""

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
from colocate.gpus import GpuSettings
from colocate.gpus.agent.allocator import PodAllocator
from colocate.gpus.agent.key_file import KeyFile, read_keys
from colocate.gpus.agent.mock_file import load_mock_gpus
from colocate.gpus.agent.monitor import GpuMonitor
from colocate.gpus.agent.node_counts import GpuNodeCounts
from colocate.gpus.agent.part import GpuPart
from colocate.gpus.agent.pods import NodePods
from colocate.gpus.agent.section import GpusSection
from colocate.gpus.agent.standing import NodeStanding
from colocate.gpus.agent.started import StartedContainers
from colocate.host.gpu_source import GpuSource
from colocate.host.identity import this_node
from colocate.host.mock_gpus import MockGpus
from colocate.host.nvml import Nvml

_FIXED = ("enabled", "dialects", "state_folder", "node", "kubeconfig")
"""What a running part cannot change."""

_REMEDIES = Remedies(kubeconfig="a kubeconfig with gpus.kubeconfig or KUBECONFIG", context="", insecure="")
"""An agent has no flags for the cluster, and always verifies the server."""

_PATIENCE = ClientSettings(
    timeout=10.0, list_timeout=30.0, attempts=2, most_objects=10_000, longest_list=1 << 30
)
"""Bounds for reading the node and its pods: a longer list is not theirs."""


def gpu_part(config: Config, clock: Clock, bound: DeviceBound) -> GpuPart:
    """A part as configured; UserError where no cluster is known, or a file that it names cannot be used."""
    gpus = config.gpus
    node = gpus.node or this_node()
    kubeconfig = Path(gpus.kubeconfig) if gpus.kubeconfig else None
    client = Client(connection.find(Flags(kubeconfig=kubeconfig), remedies=_REMEDIES), clock, _PATIENCE)
    source: GpuSource = Nvml() if gpus.mock is None else MockGpus(load_mock_gpus(gpus.mock, node))
    monitor = GpuMonitor(source, clock, gpus.health.settings(), gpus.health.refresh)
    standing = NodeStanding()
    keys = KeyFile(gpus.key_file)
    allocator = PodAllocator(
        settings_of(gpus, keys),
        NodePods(client, node),
        config.kubelet.settings().paths,
        StartedContainers(gpus.state_folder),
        clock,
        standing=standing,
        keys=keys,
    )
    counts = GpuNodeCounts(client, node, allocator.settings.dialects, monitor, standing)
    bound.dialects, bound.ask = allocator.settings.dialects, partial(node_kubelet, client, node)
    return GpuPart(node, monitor, allocator, counts, clock, config.kubelet.settings().paths, bound)


def settings_of(gpus: GpusSection, keys: KeyFile) -> GpuSettings:
    """With the keys of sealed bookings, as far as they are there; UserError where the file holds none."""
    found = keys.read()
    if gpus.key_file is not None and not found and gpus.key_file.exists():
        read_keys(gpus.key_file, "gpus.keyFile")
    return msgspec.structs.replace(gpus.settings(), keys=found)


def fixed_differences(old: GpusSection, new: GpusSection) -> list[str]:
    """The fields that differ and wait for the next start."""
    names = {"state_folder": "stateFolder"}
    differ = [f"gpus.{names.get(name, name)}" for name in _FIXED if getattr(old, name) != getattr(new, name)]
    return [*differ, *(["gpus.mock"] if (old.mock is None) != (new.mock is None) else [])]


def take_settings(part: GpuPart, new: GpusSection) -> None:
    """Go on by new figures and mock GPUs; UserError where a file cannot be used, and then nothing has changed."""
    keys = KeyFile(new.key_file)
    settings = settings_of(new, keys)
    if part.mocks is not None and new.mock is not None:
        part.mocks.configure(load_mock_gpus(new.mock, part.node))
        part.monitor.look_again()
    part.allocator.take_settings(settings)
    part.allocator.keys = keys
    part.monitor.settings = new.health.settings()
    part.monitor.refresh = new.health.refresh
