"""The GPU part made from an agent's configuration, and changed by a new one as far as it can be while it runs."""

from pathlib import Path

import msgspec

from colocate.apps.config.gpus import GpusSection
from colocate.apps.config.schema import Config
from colocate.apps.gpus.allocator import PodAllocator
from colocate.apps.gpus.mock_file import load_mock_gpus
from colocate.apps.gpus.monitor import GpuMonitor
from colocate.apps.gpus.node_counts import GpuNodeCounts
from colocate.apps.gpus.part import GpuPart
from colocate.apps.gpus.pods import NodePods
from colocate.apps.gpus.started import StartedContainers
from colocate.clock import Clock
from colocate.cluster import connection
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Flags, Remedies
from colocate.errors import UserError, system_reason
from colocate.gpus import GpuSettings
from colocate.host.gpu_source import GpuSource
from colocate.host.identity import this_node
from colocate.host.mock_gpus import MockGpus
from colocate.host.nvml import Nvml

_FIXED = ("enabled", "dialects", "state_folder", "node", "kubeconfig")
"""What a running part cannot change."""

_REMEDIES = Remedies(kubeconfig="a kubeconfig with gpus.kubeconfig or KUBECONFIG", context="", insecure="")
"""An agent has no flags for the cluster, and trusts no server unseen."""

_PATIENCE = ClientSettings(timeout=10.0, list_timeout=30.0, attempts=2)
_SHORTEST_KEY = 16
_LONGEST_KEY = 4096


def gpu_part(config: Config, clock: Clock) -> GpuPart:
    """A part as configured; UserError where no cluster is known, or a file that it names cannot be used."""
    gpus = config.gpus
    node = gpus.node or this_node()
    kubeconfig = Path(gpus.kubeconfig) if gpus.kubeconfig else None
    client = Client(connection.find(Flags(kubeconfig=kubeconfig), remedies=_REMEDIES), clock, _PATIENCE)
    source: GpuSource = Nvml() if gpus.mock is None else MockGpus(load_mock_gpus(gpus.mock, node))
    monitor = GpuMonitor(source, clock, gpus.health.settings(), gpus.health.refresh)
    allocator = PodAllocator(
        settings_of(gpus),
        NodePods(client, node),
        config.kubelet.settings().paths,
        StartedContainers(gpus.state_folder),
        clock,
    )
    counts = GpuNodeCounts(client, node, allocator.settings.dialects, monitor)
    return GpuPart(node, monitor, allocator, counts, clock, config.kubelet.settings().paths)


def settings_of(gpus: GpusSection) -> GpuSettings:
    """With the key of sealed bookings; UserError where its file cannot be used."""
    settings = gpus.settings()
    if gpus.key_file is None:
        return settings
    return msgspec.structs.replace(settings, key=read_key(gpus.key_file, "gpus.keyFile"))


def read_key(file: Path, field: str) -> bytes:
    """The key in a file, without the line's end that editors leave; UserError where it is none."""
    try:
        with file.open("rb") as opened:
            key = opened.read(_LONGEST_KEY + 1).rstrip(b"\r\n")
    except OSError as error:
        raise UserError(
            f"{field}: {file} cannot be read ({system_reason(error)}); give the file with the key that agents share "
            "with colocate scheduler"
        ) from error
    if not _SHORTEST_KEY <= len(key) <= _LONGEST_KEY:
        raise UserError(
            f"{field}: the key in {file} has {len(key)} bytes; make one of {_SHORTEST_KEY} to {_LONGEST_KEY}, as "
            "with 'head -c 32 /dev/urandom | base64'"
        )
    return key


def fixed_differences(old: GpusSection, new: GpusSection) -> list[str]:
    """The fields that differ and wait for the next start."""
    names = {"state_folder": "stateFolder"}
    differ = [f"gpus.{names.get(name, name)}" for name in _FIXED if getattr(old, name) != getattr(new, name)]
    return [*differ, *(["gpus.mock"] if (old.mock is None) != (new.mock is None) else [])]


def take_settings(part: GpuPart, new: GpusSection) -> None:
    """Go on by new figures and mock GPUs; UserError where a file cannot be used, and then nothing has changed."""
    settings = settings_of(new)
    if part.mocks is not None and new.mock is not None:
        part.mocks.configure(load_mock_gpus(new.mock, part.node))
        part.monitor.look_again()
    part.allocator.take_settings(settings)
    part.monitor.settings = new.health.settings()
    part.monitor.refresh = new.health.refresh
