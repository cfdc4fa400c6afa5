"""The agent in a container as examples/memory/daemonset.yaml describes it: all works, and nothing else is there."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from colocate.agent.configuration import build
from colocate.lab.cluster import MACHINE
from colocate.memory.agent.control import REPORT, SWITCH, AskReport, Switch
from colocate.memory.agent.report import MemoryReport
from colocate.wire import control_socket as control
from tests.memory_agent.lab import NAMESPACE, RESOURCE, MemoryLab, memory_lab
from tests.support.container import Container, Volume, container, why_not
from tests.support.real_pods import missing
from tests.support.rights import EXAMPLES, account_token, apply, documents
from tests.support.waiting import until

THREE_BLOCKS = 1_610_612_736
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECRET = "the password of another pod"


def daemon_set() -> dict[str, Any]:
    (found,) = [each for each in documents("memory/daemonset.yaml") if each["kind"] == "DaemonSet"]
    return dict(found["spec"]["template"]["spec"])


def config_map() -> str:
    (found,) = [each for each in documents("memory/daemonset.yaml") if each["kind"] == "ConfigMap"]
    return str(found["data"]["agent.yaml"])


class Node:
    """A node of the embedded cluster with the folders that the manifest mounts, and a container on it."""

    def __init__(self, lab: MemoryLab) -> None:
        self.lab = lab
        self.run = lab.root / "run"
        self.state = lab.root / "var"
        self._config = lab.root / "config"
        self._account = lab.root / "account"
        for folder in (self.run, self.state, self._config, self._account):
            folder.mkdir()
        (self._config / "agent.yaml").write_text(config_map())
        server = lab.cluster.server
        apply(server, "memory/rbac.yaml", "memory/namespace.yaml")
        (self._account / "token").write_text(account_token(server, "colocate-agent"))
        (self._account / "ca.crt").write_bytes(server.authority.certificate)
        (self._account / "namespace").write_text("kube-system")
        kept = lab.cluster.kubelet.paths.root / "pods" / "database" / "volumes" / "secret"
        kept.mkdir(parents=True)
        (kept / "password").write_text(SECRET)

    def container(self) -> Container:
        paths = self.lab.cluster.kubelet.paths
        made = container(
            daemon_set(),
            {
                "/var/lib/kubelet/device-plugins": paths.device_plugins,
                "/var/lib/kubelet/pod-resources": paths.pod_resources_socket.parent,
                "/sys/fs/cgroup": Path("/sys/fs/cgroup"),
                "/var/lib/colocate": self.state,
                "/run/colocate": self.run,
            },
            {"config": self._config},
        )
        # What the kubelet adds by itself.
        mounted = Volume(self._account, ACCOUNT, read_only=True)
        return msgspec.structs.replace(made, volumes=(*made.volumes, mounted))

    @asynccontextmanager
    async def running(self, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A command in the container; ended as a kubelet would."""
        host, _, port = self.lab.cluster.server.url.removeprefix("https://").partition(":")
        environ = {
            "NODE_NAME": MACHINE,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            # Other tests have pods on this machine, too, and this one has little time.
            "COLOCATE_MEMORY_CGROUP_ROOT": str(self.lab.runtime.cgroup_root),
            "COLOCATE_MEMORY_REFRESH": "1s",
        }
        root = self.lab.root / f"rootfs-{len(list(self.lab.root.glob('rootfs-*')))}"
        process = await self.container().start(root, command, environ, self.lab.root / "agent.log")
        try:
            yield process
        finally:
            if process.returncode is None:
                for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 60)

    async def report(self) -> MemoryReport:
        return await control.ask(self.run / "agent.sock", REPORT, AskReport())


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    if why := why_not():
        missing(why)
    async with memory_lab() as lab:
        yield Node(lab)


async def test_the_agent_sells_limits_and_gives_back_with_no_more_than_the_manifest_allows() -> None:
    async with node() as made:
        lab = made.lab
        agent = [sys.executable, "-m", "colocate.cli.main", "agent", "--config", "/etc/colocate/agent.yaml"]
        async with made.running(*agent) as process:
            try:
                await until(lambda: len(lab.healthy()) >= 3 or process.returncode is not None, "blocks")
                assert process.returncode is None, lab.log()
                lab.cluster.kubelet.sync_status()
                lab.create_pod("test-pod", 3)
                await lab.until_running("test-pod")
                await until(lambda: len(lab.said("test-pod")) == 1, "its first words")
                assert lab.said("test-pod") == [f"limit {THREE_BLOCKS}"]
                assert lab.limit("test-pod") == THREE_BLOCKS
                # A limit that another process set is put right: every turn writes control groups.
                group = lab.group("test-pod")
                group.write(
                    "memory.max" if group.version == 2 else "memory.limit_in_bytes", str(THREE_BLOCKS // 2)
                )
                await until(lambda: lab.limit("test-pod") == THREE_BLOCKS, "the limit to be asserted")
                report = await made.report()
                assert report.silent == ()
                assert report.without_eviction == ()
                assert [pod.pod for pod in report.pods] == [f"{NAMESPACE}/test-pod"]
                await control.ask(made.run / "agent.sock", SWITCH, Switch(off=True))
                await until(lambda: lab.limit("test-pod") is None, "the limit to be given back")
                await until(lambda: not lab.healthy(), "blocks to be withdrawn")
                assert any(made.state.iterdir())
            except AssertionError as error:
                raise AssertionError(f"{error}\n{lab.log()}") from error
        assert process.returncode == 0, lab.log()


ATTACK = r"""
echo "kubelet $(ls -m /var/lib/kubelet)"
cat /var/lib/kubelet/pods/*/volumes/secret/password 2>/dev/null
touch /usr/bin/x 2>/dev/null && echo "wrote the image"
touch /etc/colocate/x 2>/dev/null && echo "wrote the configuration"
touch /var/lib/kubelet/pod-resources/x 2>/dev/null && echo "wrote beside podresources"
mkdir /tmp/x 2>/dev/null && echo "made a folder"
mount -t tmpfs none /run/colocate 2>/dev/null && echo "mounted"
mknod /run/colocate/disk b 8 0 2>/dev/null && echo "made a device"
chroot /run/colocate / 2>/dev/null && echo "left its root"
chown 1:1 /run/colocate 2>/dev/null && echo "gave a file away"
ls -d /proc/[0-9]* | wc -l
grep CapBnd /proc/self/status
"""


async def test_a_process_in_the_agents_container_finds_no_secret_and_no_way_out() -> None:
    async with node() as made:
        async with made.running("/bin/sh", "-c", ATTACK) as process:
            await asyncio.wait_for(process.wait(), 60)
        kubelet, processes, bounds = made.lab.log().splitlines()
        assert kubelet == "kubelet device-plugins, pod-resources"
        assert int(processes) < 10, "it sees its own processes alone"
        assert int(bounds.split()[1], 16) == 0


def test_the_example_has_a_configuration_that_an_agent_takes_and_mounts_all_that_it_names() -> None:
    config = build(config_map().encode(), "agent.yaml").config
    assert config.memory.enabled
    assert (config.memory.resource, config.memory.namespaces) == (RESOURCE, (NAMESPACE,))
    mounted = {each["mountPath"] for each in daemon_set()["containers"][0]["volumeMounts"]}
    paths = config.kubelet.settings().paths
    assert {
        *(str(paths.device_plugins), str(paths.pod_resources_socket.parent), "/sys/fs/cgroup"),
        *(str(config.memory.state_folder), str(config.control.socket.parent)),
    } <= mounted
    hosts = {each["hostPath"]["path"] for each in daemon_set()["volumes"] if "hostPath" in each}
    assert str(paths.root) not in hosts


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda file: file.name)
def test_no_image_of_an_example_changes_under_its_user(file: Path) -> None:
    """Neither `latest`, nor no tag, which is the same."""

    def images(value: object) -> list[str]:
        if isinstance(value, list):
            return [image for each in value for image in images(each)]
        if not isinstance(value, dict):
            return []
        own = [value["image"]] if isinstance(value.get("image"), str) and "name" in value else []
        return own + [image for each in value.values() for image in images(each)]

    for image in images(list(yaml.safe_load_all(file.read_text()))):
        name, _, tag = image.rpartition("/")[2].partition("@" if "@" in image else ":")
        assert name
        assert tag not in ("", "latest"), image
