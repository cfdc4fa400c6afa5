"""Tests that make sense on any cluster: `make test-cluster COLOCATE_KUBECONFIG=…`.

Without COLOCATE_KUBECONFIG they run against an embedded cluster in another process. They create their own
namespace, clean up after themselves, and say what they skip for which missing part.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from colocate.lab.cluster import MACHINE
from tests.support import components

IMAGE = os.environ.get("COLOCATE_TEST_IMAGE", "busybox")
"""An image with a shell that the nodes can get; the embedded cluster has no images."""


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_KUBELET_ROOT = "/var/lib/kubelet, or what COLOCATE_KUBELET_ROOT says"
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")


def find_own_node(nodes: list[dict[str, Any]], boot_id: str, named: str = "") -> str:
    """The name of the node that is this machine; skips where it cannot be told."""
    if named:
        return named
    ready = [
        node
        for node in nodes
        if any(
            one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", ())
        )
    ]
    booted = [node for node in ready if node["status"].get("nodeInfo", {}).get("bootID") == boot_id]
    # In a container that shows another boot id, a cluster of one node leaves no doubt either.
    found = booted or (ready if len(nodes) == 1 else [])
    if len(found) != 1:
        names = ", ".join(node["metadata"]["name"] for node in found) or "none"
        pytest.skip(f"needs to know which node is this machine ({names} could be); set COLOCATE_TEST_NODE")
    return str(found[0]["metadata"]["name"])


class Cluster:
    """A cluster and a namespace of the test's own in it, reached by kubectl."""

    def __init__(
        self,
        kubeconfig: str,
        kubectl: Path,
        namespace: str,
        kubelet_root: str,
        is_lab: bool,
        restart: str = "",
    ) -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.kubelet_root = kubelet_root
        """The folder of the kubelet of a node that is this machine; empty where none is."""
        self.is_lab = is_lab
        self._kubectl = kubectl
        self._restart = restart

    async def restart_kubelet(self) -> None:
        """Restart the kubelet of the node that is this machine; skips where nobody says how."""
        if not self._restart:
            pytest.skip("COLOCATE_RESTART_KUBELET names no command that restarts this machine's kubelet")
        process = await asyncio.create_subprocess_shell(self._restart)
        assert await asyncio.wait_for(process.wait(), 120) == 0, self._restart

    async def kubectl(self, *words: str, stdin: str = "", fails: bool = False) -> str:
        """What kubectl prints."""
        process = await asyncio.create_subprocess_exec(
            *[str(self._kubectl), "--namespace", self.namespace, *words],
            env={**os.environ, "KUBECONFIG": self.kubeconfig},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(stdin.encode()), 180)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if fails:
            assert process.returncode != 0, output
            return errors.decode()
        assert process.returncode == 0, f"kubectl {' '.join(words)}: {errors.decode()}{output.decode()}"
        return output.decode()

    async def says(self, *words: str) -> str:
        """The first word that kubectl prints, whether it succeeds or not."""
        process = await asyncio.create_subprocess_exec(
            *[str(self._kubectl), "--namespace", self.namespace, *words],
            env={**os.environ, "KUBECONFIG": self.kubeconfig},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 180)
        return output.decode().split()[0]

    async def get(self, *words: str) -> Any:
        return json.loads(await self.kubectl("get", *words, "-o", "json"))

    async def apply(self, *objects: dict[str, Any]) -> None:
        together = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        await self.kubectl("apply", "-f", "-", stdin=json.dumps(together))

    async def wait(self, what: str, condition: str, timeout: int = 120) -> None:
        """Wait as `kubectl wait` does, but not for a pod whose image cannot be had."""
        waiting = asyncio.create_task(
            self.kubectl("wait", what, f"--for={condition}", f"--timeout={timeout}s")
        )
        try:
            while not (await asyncio.wait([waiting], timeout=2))[0]:
                self.check_images((await self.get("pods"))["items"])
            await waiting
        finally:
            waiting.cancel()

    async def ended(self, pod: str, timeout: int = 120) -> dict[str, Any]:
        """The status of a pod that has ended, well or not."""
        for _ in range(timeout * 4):
            found = await self.get("pod", pod)
            if found["status"].get("phase") in ("Succeeded", "Failed"):
                break
            self.check_images([found])
            await asyncio.sleep(0.25)
        status: dict[str, Any] = found["status"]
        return status

    @staticmethod
    def check_images(pods: list[dict[str, Any]]) -> None:
        """Fail at once where a node cannot get the image of a pod: waiting does not help."""
        for pod in pods:
            for container in pod["status"].get("containerStatuses", ()):
                reason = container.get("state", {}).get("waiting", {}).get("reason", "")
                if reason in _NO_IMAGE:
                    pytest.fail(
                        f"a node cannot get the image {container.get('image') or IMAGE} ({reason}); name one that "
                        "it can get in COLOCATE_TEST_IMAGE"
                    )

    async def own_node(self) -> str:
        """The node that is this machine: by COLOCATE_TEST_NODE, by its boot id, or the only one that is Ready."""
        if not self.kubelet_root:
            pytest.skip(f"needs a node that is this machine, and its kubelet's folder: {_KUBELET_ROOT}")
        # An embedded node shows a boot id of its own: its machine may be a real node as well.
        named = MACHINE if self.is_lab else os.environ.get("COLOCATE_TEST_NODE", "")
        return find_own_node(await self.nodes(), BOOT_ID.read_text().strip(), named)

    def pod(self, name: str, script: str, **spec: Any) -> dict[str, Any]:
        container = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
            "resources": spec.pop("resources", {}),
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
        }

    async def usable_node(self) -> str:
        """A node that takes ordinary pods."""
        for node in await self.nodes():
            ready = [
                one
                for one in node["status"]["conditions"]
                if one["type"] == "Ready" and one["status"] == "True"
            ]
            if ready and not node["spec"].get("taints") and not node["spec"].get("unschedulable"):
                return str(node["metadata"]["name"])
        pytest.skip("needs a node that is Ready and has no taints")

    async def nodes(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self.get("nodes"))["items"]
        return items


@pytest.fixture(scope="session")
def lab_kubeconfig() -> Iterator[tuple[str, str, str]]:
    """The cluster that was given, or an embedded one in another process: its kubeconfig, the folder of the kubelet
    that is this machine, and the command that restarts it."""
    given = os.environ.get("COLOCATE_KUBECONFIG")
    if given:
        usual = "/var/lib/kubelet" if os.access("/var/lib/kubelet/device-plugins", os.W_OK) else ""
        restart = os.environ.get("COLOCATE_RESTART_KUBELET", "")
        yield given, os.environ.get("COLOCATE_KUBELET_ROOT", usual), restart
        return
    with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        # A real kubelet keeps the devices of a plugin that has gone for five minutes.
        hasty = ["--status-sync", "2s", "--plugin-grace", "30s", "--kubelet-version", "1.36"]
        command = [sys.executable, "-m", "colocate.cli.main", "lab", "--nodes", "3", *hasty]
        with subprocess.Popen(
            [*command, "--kubeconfig", str(kubeconfig)], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                said = next((line for line in process.stdout if "COLOCATE_KUBELET_ROOT=" in line), "")
                assert said, "the embedded cluster did not start"
                root = said.strip().partition("COLOCATE_KUBELET_ROOT=")[2]
                yield str(kubeconfig), root, f"kill -HUP {process.pid}"
            finally:
                process.terminate()
                assert process.wait(60) == 0


@pytest.fixture
async def cluster(lab_kubeconfig: tuple[str, str, str]) -> AsyncIterator[Cluster]:
    kubectl = components.find("kubectl")
    assert kubectl is not None
    kubeconfig, kubelet_root, restart = lab_kubeconfig
    namespace = f"colocate-test-{uuid.uuid4().hex[:6]}"
    is_lab = "COLOCATE_KUBECONFIG" not in os.environ
    cluster = Cluster(kubeconfig, Path(kubectl), namespace, kubelet_root, is_lab, restart)
    await cluster.kubectl("create", "namespace", cluster.namespace)
    try:
        yield cluster
    finally:
        with contextlib.suppress(AssertionError):
            await cluster.kubectl("delete", "namespace", cluster.namespace, "--wait=false")
