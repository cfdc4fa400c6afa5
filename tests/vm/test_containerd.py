"""containerd and runc work in a VM: suites that need a real container runtime can lean on them."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import components
from tests.support.waiting import until

pytestmark = [pytest.mark.vm("mini"), pytest.mark.needs("containerd", "ctr", "runc")]

START_SECONDS = 90


@pytest.fixture(scope="module")
def ctr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A command of a containerd that keeps everything in memory."""
    folder = tmp_path_factory.mktemp("containerd")
    socket = folder / "containerd.sock"
    with (folder / "log").open("wb") as log:
        containerd = subprocess.Popen(
            ["containerd", f"--root={folder}/root", f"--state={folder}/state", f"--address={socket}"],
            stderr=log,
        )
    ctr = ["ctr", f"--address={socket}"]

    def answers() -> bool:
        assert containerd.poll() is None, (folder / "log").read_text()
        return subprocess.run([*ctr, "version"], capture_output=True).returncode == 0

    asyncio.run(until(answers, "an answer of containerd", START_SECONDS))
    yield ctr
    containerd.terminate()
    containerd.wait()


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file system with nothing but busybox: there are no images here, and none is needed."""
    folder = tmp_path_factory.mktemp("rootfs")
    (folder / "bin").mkdir()
    busybox = components.find("busybox")
    assert busybox
    shutil.copy(busybox, folder / "bin/busybox")
    return folder


def test_client_and_server_are_the_same_version(ctr: list[str]) -> None:
    said = subprocess.run([*ctr, "version"], capture_output=True, text=True, check=True).stdout
    versions = [line.split()[1] for line in said.splitlines() if line.strip().startswith("Version:")]
    assert len(versions) == 2
    assert versions[0] == versions[1]


def test_a_container_runs_in_a_control_group_with_its_limit(ctr: list[str], rootfs: Path) -> None:
    limit = 64 << 20
    look = "busybox cat /proc/self/cgroup /sys/fs/cgroup/default/first/memory.max"
    done = subprocess.run(
        [
            *[*ctr, "run", "--rm", "--rootfs", "--memory-limit", str(limit)],
            *["--mount", "type=bind,src=/sys/fs/cgroup,dst=/sys/fs/cgroup,options=rbind:ro"],
            *[str(rootfs), "first", "/bin/busybox", "sh", "-c", look],
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0::/default/first", str(limit)]
