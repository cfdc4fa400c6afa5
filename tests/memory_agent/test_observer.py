"""What a look says where a source says less than it should."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from colocate.clock import ManualClock
from colocate.host.pod_memory import PodsReading
from colocate.kubelet.paths import KubeletPaths
from colocate.memory.agent.machine import MachineReading
from colocate.memory.agent.objects import ApiPod
from colocate.memory.agent.observer import MemoryObserver
from colocate.model.memory import MemoryControls, NodeMemory, NodeWord, PodMemory
from colocate.model.pod import QosClass

NODE = NodeMemory(total=1 << 30, available=1 << 29, free=1 << 29, inactive_file=0)


async def test_a_pod_bound_here_that_the_kubelet_has_not_taken_in_requests_nothing_of_the_node(
    tmp_path: Path,
) -> None:
    """For example a pod that asks for all memory, which any tenant may bind by name, for the kubelet to refuse."""

    def pod(uid: str, **status: str) -> ApiPod:
        main = {"name": "main", "resources": {"requests": {"memory": "900Gi"}}}
        marks = {"name": uid, "namespace": "tenant", "uid": uid}
        return msgspec.convert({"metadata": marks, "spec": {"containers": [main]}, "status": status}, ApiPod)

    new = pod("new", phase="Pending", startTime="2026-01-02T03:04:05Z")
    pods = [pod("phantom", phase="Pending"), new, pod("failed", phase="Failed"), pod("runs")]
    runs = PodMemory(uid="runs", qos=QosClass.BURSTABLE, usage=0, anon=0, file=0, inactive_file=0)

    async def read() -> MachineReading:
        return MachineReading(NODE, PodsReading((runs,)), MemoryControls(cgroup=2))

    machine: Any = SimpleNamespace(read=read)
    rights = SimpleNamespace(without_eviction=frozenset(), without_creation=frozenset())
    cluster: Any = SimpleNamespace(
        is_synced=True, answers=True, node=None, node_name="here", pods=pods, kubelet=None, rights=rights
    )
    observer = MemoryObserver(machine, KubeletPaths(tmp_path), cluster, ManualClock(), "test.com/memory")
    look = await observer.look(off=False, outcomes=(), promised=lambda ids: ())
    assert [each.uid for each in look.facts.pods] == ["new", "runs"]


async def test_a_node_that_the_api_server_does_not_have_is_no_open_node_and_is_named(tmp_path: Path) -> None:
    async def read() -> MachineReading:
        return MachineReading(NODE, PodsReading(), MemoryControls(cgroup=2))

    machine: Any = SimpleNamespace(read=read)
    rights = SimpleNamespace(without_eviction=frozenset({"a"}), without_creation=frozenset({"a", "b"}))
    cluster: Any = SimpleNamespace(
        is_synced=True, answers=True, node=None, node_name="mistyped", pods=[], kubelet=None, rights=rights
    )
    observer = MemoryObserver(machine, KubeletPaths(tmp_path), cluster, ManualClock(), "test.com/memory")
    look = await observer.look(off=False, outcomes=(), promised=lambda ids: ())
    assert look.facts.word == NodeWord(absent=True)
    assert look.facts.without_eviction == {"a"}
    assert look.facts.without_creation == {"a", "b"}
    assert any("no node named mistyped; set memory.node" in why for why in look.silent)
