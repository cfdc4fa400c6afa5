"""What a look says where a source says less than it should."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from colocate.apps.memory.machine import MachineReading
from colocate.apps.memory.observer import Observer
from colocate.clock import ManualClock
from colocate.host.pod_memory import PodsReading
from colocate.kubelet.paths import KubeletPaths
from colocate.model.memory import MemoryControls, NodeMemory, NodeWord

NODE = NodeMemory(total=1 << 30, available=1 << 29, free=1 << 29, inactive_file=0)


async def test_a_node_that_the_api_server_does_not_have_is_no_open_node_and_is_named(tmp_path: Path) -> None:
    async def read() -> MachineReading:
        return MachineReading(NODE, PodsReading(), MemoryControls(cgroup=2))

    machine: Any = SimpleNamespace(read=read)
    rights = SimpleNamespace(without_eviction=frozenset({"a"}), without_creation=frozenset({"a", "b"}))
    cluster: Any = SimpleNamespace(
        is_synced=True, answers=True, node=None, node_name="mistyped", pods=[], kubelet=None, rights=rights
    )
    observer = Observer(machine, KubeletPaths(tmp_path), cluster, ManualClock(), "test.com/memory")
    look = await observer.look(off=False, outcomes=(), promised=lambda ids: ())
    assert look.facts.word == NodeWord(absent=True)
    assert look.facts.without_eviction == {"a"}
    assert look.facts.without_creation == {"a", "b"}
    assert any("no node named mistyped; set memory.node" in why for why in look.silent)
