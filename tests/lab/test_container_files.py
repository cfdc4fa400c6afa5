"""A container that is a process sees the device nodes and mounts that its devices bring, or is told why not."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.support.plugins import FAN, Fans
from tests.support.waiting import until

from colocate.kubelet import Allocation, DeviceNode, Mount
from colocate.lab import container_files
from colocate.lab.container_files import Bind, plan_files, why_no_mounts
from colocate.lab.pod_runtime import ProcessRuntime
from colocate.testing import TestNode, embedded_kubelet


class Given(Fans):
    """Fans that come with this."""

    def __init__(self, given: Allocation) -> None:
        super().__init__("fan-0")
        self._given = given

    async def allocate(self, ids: Sequence[str]) -> Allocation:
        return self._given


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[TestNode]:
    runtime = ProcessRuntime(tmp_path / "pods", mount=tmp_path / "no control groups")
    async with embedded_kubelet(runtime=runtime) as made:
        yield made


@pytest.fixture
async def may_mount() -> None:
    if why := await why_no_mounts():
        pytest.skip(why)


async def said(node: TestNode, given: Allocation, script: str) -> list[str]:
    """What a container with these devices says, up to the word `end`."""
    await node.serve(Given(given))
    await node.devices(FAN, 1)
    record = await node.run_pod({FAN: 1}, command=["sh", "-c", f"{script}; echo end; exec sleep infinity"])
    assert node.allocation(record) == given
    assert isinstance(node.kubelet.runtime, ProcessRuntime)
    log = node.kubelet.runtime.log_file(record.pod, "main")
    await until(lambda: log.exists() and log.read_text().endswith("end\n"), "its last word")
    return log.read_text().splitlines()[:-1]


def not_made(node: TestNode) -> list[str]:
    return [event.message for event in node.kubelet.events if event.reason == "NotMade"]


@pytest.mark.usefixtures("may_mount")
async def test_device_nodes_and_mounts_are_made_for_the_container_alone(
    node: TestNode, tmp_path: Path
) -> None:
    (tmp_path / "firmware").write_text("blades\n")
    (tmp_path / "place").write_text("of the machine\n")
    given = Allocation(
        devices=(
            DeviceNode("/dev/zero", "/dev/colocate-fan/0", "rw"),
            DeviceNode("/dev/null", "/dev/null", "rw"),
        ),
        mounts=(Mount(str(tmp_path / "place"), str(tmp_path / "firmware"), read_only=True),),
    )
    script = (
        "head -c 1 /dev/colocate-fan/0 | od -An -tx1; test -c /dev/null && echo null; "
        f"cat {tmp_path / 'place'}; echo x 2>/dev/null > {tmp_path / 'place'} || echo read-only; "
        "ls /dev/fd/ | head -1"
    )
    assert await said(node, given, script) == [" 00", "null", "blades", "read-only", "0"]
    assert not_made(node) == []
    assert not Path("/dev/colocate-fan").exists(), "the machine's own /dev stays as it is"
    assert (tmp_path / "place").read_text() == "of the machine\n"
    # What is run beside it sees the same.
    (record,) = node.kubelet.records.values()
    runtime = node.kubelet.runtime
    assert isinstance(runtime, ProcessRuntime)
    beside = await runtime.beside(
        record.pod, record.pod.containers[0], ["cat", str(tmp_path / "place")], stdout=asyncio.subprocess.PIPE
    )
    assert (await beside.communicate())[0] == b"blades\n"


async def test_what_cannot_be_made_is_said_and_the_container_starts(
    node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused() -> str:
        return "Operation not permitted"

    monkeypatch.setattr("colocate.lab.pod_runtime.why_no_mounts", refused)
    given = Allocation(
        devices=(
            DeviceNode("/dev/zero", "/dev/colocate-fan", "rw"),
            DeviceNode("/dev/nofan", "/dev/nofan", "rw"),
        ),
        cdi=("example.com/fan=0",),
    )
    assert await said(node, given, "test -e /dev/colocate-fan || echo none") == ["none"]
    first, second, third = not_made(node)
    assert first == (
        "the container has no /dev/colocate-fan of its own: this process may not make mounts (Operation not "
        "permitted); run the lab as root"
    )
    assert "this machine has no /dev/nofan; a real runtime would refuse to start the container" in second
    assert "CDI devices are ignored (example.com/fan=0)" in third


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        (Mount("/colocate-nowhere/x", "/etc/hostname"), "no such path to mount it on"),
        (Mount("/", "/etc"), "is not an absolute path below /"),
        (Mount("relative", "/etc"), "is not an absolute path below /"),
        (Mount("/dev/../etc/passwd", "/etc/hostname"), "is not an absolute path below /"),
    ],
)
def test_a_place_that_cannot_be_is_left_out(mount: Mount, why: str) -> None:
    plan = plan_files(Allocation(mounts=(mount,)))
    assert plan.binds == ()
    assert why in plan.left_out[0]


def test_what_the_machine_has_there_anyway_needs_nothing() -> None:
    assert plan_files(Allocation(devices=(DeviceNode("/dev/null"),))) == container_files.FilesPlan()
    assert plan_files(Allocation(mounts=(Mount("/etc", "/etc", read_only=True),))).binds == (
        Bind("/etc", "/etc", read_only=True),
    )
