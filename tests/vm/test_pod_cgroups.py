"""Pods of the embedded kubelet have control groups of a real cgroup v2, by both of the kubelet's naming schemes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from colocate.host import cgroups
from colocate.host.cgroups import Naming
from colocate.lab.pod_runtime import ProcessRuntime
from colocate.lab.pod_worker import PodRecord
from colocate.testing import TestNode, embedded_kubelet
from tests.support.waiting import until

pytestmark = pytest.mark.vm("mini")

TREE_PARENT = "lab"
CONTROLLERS = {"cpu", "cpuset", "io", "memory", "pids"}


@pytest.fixture(params=list(Naming))
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TestNode]:
    runtime = ProcessRuntime(tmp_path / "pods", parent=TREE_PARENT, naming=request.param)
    assert not runtime.without_cgroups
    async with embedded_kubelet(runtime=runtime) as node:
        yield node
    assert not (cgroups.MOUNT / TREE_PARENT).exists()


def runtime_of(node: TestNode) -> ProcessRuntime:
    assert isinstance(node.kubelet.runtime, ProcessRuntime)
    return node.kubelet.runtime


def folder_of(node: TestNode, record: PodRecord) -> Path:
    (folder,) = runtime_of(node).cgroup_folders(record.pod)
    return folder


async def test_a_pod_is_held_by_a_group_named_as_the_kubelet_would(node: TestNode) -> None:
    record = await node.run_pod({}, command=["sleep", "1000"])
    uid = record.pod.uid
    named = {
        Naming.CGROUPFS: f"kubepods/besteffort/pod{uid}",
        Naming.SYSTEMD: "kubepods.slice/kubepods-besteffort.slice/"
        f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice",
    }[runtime_of(node)._naming]
    assert folder_of(node, record) == cgroups.MOUNT / TREE_PARENT / named

    running = runtime_of(node).running(record.pod, "main")
    assert running is not None
    of_process = Path(f"/proc/{running.pid}/cgroup")
    expected = f"0::/{TREE_PARENT}/{named}/main\n"
    await until(lambda: of_process.read_text() == expected, f"the process to be in {expected}")


async def test_limits_of_every_controller_can_be_set_on_a_pod_and_on_its_container(node: TestNode) -> None:
    record = await node.run_pod({}, command=["sleep", "1000"])
    for folder in (folder_of(node, record), folder_of(node, record) / "main"):
        assert set((folder / "cgroup.controllers").read_text().split()) == CONTROLLERS
        (folder / "memory.max").write_text("64M")
        (folder / "cpuset.cpus").write_text("1")
        assert (folder / "memory.max").read_text() == f"{64 << 20}\n"
        assert (folder / "cpuset.cpus.effective").read_text() == "1\n"


async def test_what_left_its_parents_process_group_ends_with_the_pod(node: TestNode) -> None:
    escape = ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"]
    record = await node.run_pod({}, command=escape, terminationGracePeriodSeconds=1)
    folder = folder_of(node, record)
    await until(lambda: len(cgroups.members(folder)) == 2, "both processes")
    pids = cgroups.members(folder)
    await node.delete_pod(record)
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
