"""Which rung needs which right, in containers that runc makes as examples/memory has the agent's, on cgroup v2."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from colocate.host.cgroups import Naming
from tests.support.container import Container, Volume, container, image_paths, patched
from tests.support.real_pods import MIB, RealPods, real_pods
from tests.support.rights import documents
from tests.support.waiting import until
from tests.vm import rung_probe
from tests.vm.nodes import far_node
from tests.vm.rung_probe import Tried

pytestmark = [
    pytest.mark.vm("mini"),
    pytest.mark.needs("containerd", "ctr", "runc"),
    pytest.mark.timeout(600),
]

POD = "5b1c0003-4f0e-9d6c-aaaa-000000000003"
DEFAULTS = (
    *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP"),
    *("SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
)
"""The capabilities that containerd gives where nobody says otherwise."""


class Runtime:
    """A containerd, and containers that it runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ctr = ["ctr", f"--address={folder}/containerd.sock"]
        self._count = 0

    def answers(self) -> bool:
        return subprocess.run([*self._ctr, "version"], capture_output=True).returncode == 0

    def run(self, spec: Container, *command: str) -> str:
        """What a command prints in such a container."""
        self._count += 1
        rootfs = self._folder / f"rootfs-{self._count}"
        (rootfs / "etc").mkdir(parents=True)
        volumes = [Volume(path.resolve(), path, read_only=True) for path in image_paths()]
        words = [*self._ctr, "run", "--rm", "--rootfs", "--read-only"]
        words += ["--seccomp"] if spec.seccomp else []
        words += ["--with-ns", "pid:/proc/1/ns/pid"] if spec.host_pid else []
        words += [f"--cap-drop=CAP_{name}" for name in DEFAULTS]
        words += [f"--cap-add=CAP_{name}" for name in spec.capabilities]
        for each in (*volumes, *spec.volumes):
            options = "rbind:ro" if each.read_only else "rbind:rw"
            words += ["--mount", f"type=bind,src={each.source},dst={each.target},options={options}"]
        done = subprocess.run(
            [*words, str(rootfs), f"agent-{self._count}", *command], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    folder = tmp_path_factory.mktemp("runtime")
    with (folder / "log").open("wb") as log:
        containerd = subprocess.Popen(
            [
                "containerd",
                f"--root={folder}/root",
                f"--state={folder}/state",
                f"--address={folder}/containerd.sock",
            ],
            stderr=log,
        )
    made = Runtime(folder)
    asyncio.run(until(made.answers, "an answer of containerd", 90))
    yield made
    containerd.terminate()
    containerd.wait()


@pytest.fixture
async def pods() -> AsyncIterator[RealPods]:
    async with real_pods(Naming.CGROUPFS) as made:
        yield made


def agents_container(folder: Path, *, far_pages: bool = False) -> Container:
    (pod,) = [each for each in documents("memory/daemonset.yaml") if each["kind"] == "DaemonSet"]
    spec = pod["spec"]["template"]["spec"]
    if far_pages:
        (patch,) = documents("memory/patches/far-pages.yaml")
        spec = patched(spec, patch["spec"]["template"]["spec"])
    paths = {each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    empty = {path: folder / path.replace("/", "_") for path in (*paths, "config")}
    for path in empty.values():
        path.mkdir()
    return container(spec, {**empty, "/sys/fs/cgroup": Path("/sys/fs/cgroup")}, {"config": empty["config"]})


async def test_each_rung_works_with_what_the_manifests_give_and_far_pages_with_no_less(
    runtime: Runtime, pods: RealPods, tmp_path: Path
) -> None:
    group = pods.create(POD)
    eater = await pods.run(POD)
    await eater.bulk(64 * MIB)
    far = far_node().id
    near = ",".join(str(number) for number in range(far))
    command = [sys.executable, rung_probe.__file__, str(group.folder), str(pods.parent), near, str(far)]

    async def tried(spec: Container) -> Tried:
        said = await asyncio.to_thread(runtime.run, spec, *command)
        return msgspec.json.decode(said, type=Tried)

    (tmp_path / "plain").mkdir()
    plain = await tried(agents_container(tmp_path / "plain"))
    # Reclaim of anonymous memory without swap finds nothing, which is no refusal.
    assert (plain.limit, plain.throttle, plain.mark, plain.reclaim) == ("", "", "", "")
    assert "hostPID" in plain.far
    assert "CAP_SYS_NICE and CAP_SYS_PTRACE is needed" in plain.told

    (tmp_path / "far").mkdir()
    wide = agents_container(tmp_path / "far", far_pages=True)
    assert not wide.seccomp
    assert (await tried(wide)).far == ""
    filtered = await tried(msgspec.structs.replace(wide, seccomp=True))
    assert filtered.far != ""
    assert "seccompProfile" in filtered.told
    for missing in wide.capabilities:
        fewer = tuple(name for name in wide.capabilities if name != missing)
        lacking = await tried(msgspec.structs.replace(wide, capabilities=fewer))
        assert lacking.far != "", missing
        assert f"CAP_{missing} is needed" in lacking.told
