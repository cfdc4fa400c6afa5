"""A pod in phase Running is a real process of this machine, in a control group of its own."""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.support.plugins import FAN, Fans
from tests.support.waiting import until

from colocate.host import cgroups
from colocate.host.cgroups import Naming
from colocate.lab.pod_runtime import ProcessRuntime
from colocate.lab.pod_worker import PodRecord
from colocate.model.pod import Phase, Pod, QosClass
from colocate.testing import TestNode, embedded_kubelet


# In a VM the kernel has cgroup v2, whatever this machine has.
@pytest.fixture(params=[pytest.param("own cgroup", marks=pytest.mark.vm("mini", here=True)), "plain process"])
async def processes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TestNode]:
    """A node with real processes; once with control groups, once as on a machine that allows none."""
    mount = cgroups.MOUNT if request.param == "own cgroup" else tmp_path / "nothing here"
    runtime = ProcessRuntime(tmp_path / "pods", parent=f"colocate-test-{uuid.uuid4().hex[:8]}", mount=mount)
    if request.param == "own cgroup" and runtime.without_cgroups:
        if os.environ.get("CI") == "true":
            pytest.fail(runtime.without_cgroups)
        pytest.skip(runtime.without_cgroups)
    async with embedded_kubelet(runtime=runtime) as node:
        await node.serve(Fans("fan-0", "fan-1"))
        await node.devices(FAN, 2)
        yield node
    assert not runtime._tree or not any(folder.exists() for folder in runtime._tree.folders(runtime._parent))


def runtime_of(node: TestNode) -> ProcessRuntime:
    assert isinstance(node.kubelet.runtime, ProcessRuntime)
    return node.kubelet.runtime


async def output(node: TestNode, record: PodRecord, last: str, container: str = "main") -> list[str]:
    """A container's output, once it has said `last`."""
    log = runtime_of(node).log_file(record.pod, container)
    await until(lambda: log.exists() and last in log.read_text().split("\n"), f"{last!r} in the output")
    return log.read_text().splitlines()


def pid_of(node: TestNode, record: PodRecord) -> int:
    running = runtime_of(node).running(record.pod, "main")
    assert running is not None
    assert running.pid is not None
    return running.pid


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


SLEEP = ["sh", "-c", "echo up; exec sleep 1000"]


async def test_the_process_has_what_plugin_and_pod_give_it_and_nothing_of_ours(processes: TestNode) -> None:
    os.environ["COLOCATE_TEST_SECRET"] = "not for pods"
    record = await processes.run_pod({FAN: 2}, command=["sh", "-c", "env; echo done; exec sleep 1000"])
    lines = await output(processes, record, "done")
    assert "FANS=fan-0,fan-1" in lines
    assert not any("SECRET" in line for line in lines)


async def test_a_pods_own_variables_override_the_plugins(processes: TestNode) -> None:
    container = {
        "name": "main",
        "command": ["sh", "-c", "echo $FANS; echo done; exec sleep 1000"],
        "env": [{"name": "FANS", "value": "mine"}],
        "resources": {"limits": {FAN: "1"}},
    }
    pod = msgspec.convert({"metadata": {"name": "p"}, "spec": {"containers": [container]}}, Pod)
    record = processes.kubelet.add_pod(pod)
    assert (await output(processes, record, "done"))[0] == "mine"


async def test_the_process_is_in_the_pods_control_group_or_the_runtime_says_why_not(
    processes: TestNode,
) -> None:
    record = await processes.run_pod({}, command=["sh", "-c", "cat /proc/self/cgroup; echo done; sleep 1000"])
    lines = await output(processes, record, "done")
    runtime = runtime_of(processes)
    if runtime.without_cgroups:
        assert "may not create control groups" in runtime.without_cgroups
    else:
        group = runtime.cgroup(record.pod)
        assert f"kubepods/besteffort/pod{record.pod.uid}" in str(group)
        assert any(line.endswith(f"/{group}/main") for line in lines)


async def test_killing_the_process_of_a_pod_that_is_not_restarted_fails_it(processes: TestNode) -> None:
    record = await processes.run_pod({}, command=SLEEP, restartPolicy="Never")
    await output(processes, record, "up")
    os.kill(pid_of(processes, record), signal.SIGKILL)
    await processes.until_phase(record, Phase.FAILED)
    terminated = record.status.container_statuses[0].state.terminated
    assert terminated is not None
    assert (terminated.exit_code, terminated.reason) == (137, "Error")


async def test_a_restarted_container_waits_longer_each_time(processes: TestNode) -> None:
    record = await processes.run_pod({FAN: 1}, command=SLEEP)
    for restarts, pause in enumerate([10, 20, 40], start=1):
        os.kill(pid_of(processes, record), signal.SIGKILL)
        await processes.kubelet.until(lambda: _waiting(record) == "CrashLoopBackOff", "the back-off")
        assert record.status.phase == Phase.RUNNING
        await processes.clock.advance(pause - 1)
        assert _waiting(record) == "CrashLoopBackOff"
        await processes.clock.advance(1)
        await processes.kubelet.until(lambda: _waiting(record) is None, "a restart")
        assert record.status.container_statuses[0].restart_count == restarts
    assert processes.held(record) == {"fan-0"}


def _waiting(record: PodRecord) -> str | None:
    waiting = record.status.container_statuses[0].state.waiting
    return waiting.reason if waiting else None


@pytest.mark.parametrize(
    ("policy", "command", "phase"),
    [("Never", "true", "Succeeded"), ("Never", "false", "Failed"), ("OnFailure", "true", "Succeeded")],
)
async def test_how_a_pod_ends_by_its_restart_policy(
    processes: TestNode, policy: str, command: str, phase: str
) -> None:
    await processes.run_pod({}, command=[command], restartPolicy=policy, phase=Phase(phase))


async def test_a_failing_init_container_is_tried_again_or_fails_the_pod(processes: TestNode) -> None:
    flag = runtime_of(processes)._folder / "flag"
    init = {"name": "init", "command": ["test", "-e", str(flag)]}
    failed = await processes.run_pod({}, initContainers=[init], restartPolicy="Never", phase=Phase.FAILED)
    assert failed.status.container_statuses[0].state.waiting is not None
    patient = asyncio.create_task(processes.run_pod({}, initContainers=[init], command=SLEEP))
    await until(lambda: len(processes.kubelet.records) == 2, "the second pod")
    record = list(processes.kubelet.records.values())[1]
    await processes.kubelet.until(lambda: _init_waiting(record) == "CrashLoopBackOff", "the back-off")
    flag.touch()
    await processes.clock.advance(10)
    await patient


def _init_waiting(record: PodRecord) -> str | None:
    statuses = record.status.init_container_statuses
    return statuses[0].state.waiting.reason if statuses and statuses[0].state.waiting else None


async def test_deletion_asks_first_and_kills_after_the_grace(processes: TestNode) -> None:
    stubborn = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"]
    record = await processes.run_pod({}, command=stubborn, terminationGracePeriodSeconds=30)
    await output(processes, record, "up")
    pid = pid_of(processes, record)
    gone = asyncio.create_task(processes.delete_pod(record))
    await processes.clock.until_someone_sleeps()
    await processes.clock.advance(29)
    assert alive(pid)
    while not gone.done():
        await processes.clock.advance(1)
    assert not alive(pid)


async def test_deletion_ends_what_the_process_has_started_elsewhere(processes: TestNode) -> None:
    """A process that left the group of its parent is still in the pod's control group."""
    if runtime_of(processes).without_cgroups:
        return
    escape = ["sh", "-c", "setsid sleep 1000 & echo $!; echo up; exec sleep 1000"]
    record = await processes.run_pod({}, command=escape, terminationGracePeriodSeconds=1)
    await output(processes, record, "up")
    pids = [
        pid for folder in runtime_of(processes).cgroup_folders(record.pod) for pid in cgroups.members(folder)
    ]
    assert len(set(pids)) == 2
    await processes.delete_pod(record)
    await until(lambda: not any(alive(pid) for pid in pids), "every process to end")


async def test_processes_outlive_a_restart_of_the_kubelet(processes: TestNode) -> None:
    record = await processes.run_pod({FAN: 1}, command=SLEEP)
    pid = pid_of(processes, record)
    await processes.kubelet.restart()
    await processes.devices(FAN, 2)
    assert pid_of(processes, record) == pid
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)
    await processes.kubelet.until(lambda: _waiting(record) == "CrashLoopBackOff", "the new kubelet to notice")


async def test_a_command_that_does_not_exist_fails_its_container(processes: TestNode) -> None:
    record = await processes.run_pod(
        {}, command=["no-such-command"], restartPolicy="Never", phase=Phase.FAILED
    )
    terminated = record.status.container_statuses[0].state.terminated
    assert terminated is not None
    assert terminated.exit_code == 127


@pytest.mark.parametrize(
    ("qos", "naming", "path"),
    [
        (QosClass.GUARANTEED, Naming.CGROUPFS, "kubepods/poda-b"),
        (QosClass.BURSTABLE, Naming.CGROUPFS, "kubepods/burstable/poda-b"),
        (QosClass.GUARANTEED, Naming.SYSTEMD, "kubepods.slice/kubepods-poda_b.slice"),
        (
            QosClass.BEST_EFFORT,
            Naming.SYSTEMD,
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice",
        ),
    ],
)
def test_names_of_pod_groups(qos: QosClass, naming: Naming, path: str) -> None:
    assert str(cgroups.pod_path("a-b", qos, naming)) == path
