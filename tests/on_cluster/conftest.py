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

from tests.support import components

IMAGE = os.environ.get("COLOCATE_TEST_IMAGE", "busybox")
"""An image with a shell that the nodes can get; the embedded cluster has no images."""


class Cluster:
    """A cluster and a namespace of the test's own in it, reached by kubectl."""

    def __init__(
        self, kubeconfig: str, kubectl: Path, namespace: str, kubelet_root: str, is_lab: bool
    ) -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.kubelet_root = kubelet_root
        """The folder of the kubelet of a node that is this machine; empty where none is."""
        self.is_lab = is_lab
        self._kubectl = kubectl

    async def kubectl(self, *words: str, stdin: str = "", fails: bool = False) -> str:
        """What kubectl prints."""
        process = await asyncio.create_subprocess_exec(
            *[str(self._kubectl), "--namespace", self.namespace, *words],
            env={**os.environ, "KUBECONFIG": self.kubeconfig},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await asyncio.wait_for(process.communicate(stdin.encode()), 180)
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
        await self.kubectl("wait", what, f"--for={condition}", f"--timeout={timeout}s")

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
def lab_kubeconfig() -> Iterator[tuple[str, str]]:
    """The cluster that was given, or an embedded one in another process."""
    given = os.environ.get("COLOCATE_KUBECONFIG")
    if given:
        yield given, os.environ.get("COLOCATE_KUBELET_ROOT", "")
        return
    with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        # A real kubelet keeps the devices of a plugin that has gone for five minutes.
        hasty = ["--status-sync", "2s", "--plugin-grace", "30s"]
        command = [sys.executable, "-m", "colocate.cli.main", "lab", "--nodes", "3", *hasty]
        with subprocess.Popen(
            [*command, "--kubeconfig", str(kubeconfig)], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                said = next((line for line in process.stdout if "COLOCATE_KUBELET_ROOT=" in line), "")
                assert said, "the embedded cluster did not start"
                yield str(kubeconfig), said.strip().partition("COLOCATE_KUBELET_ROOT=")[2]
            finally:
                process.terminate()
                assert process.wait(60) == 0


@pytest.fixture
async def cluster(lab_kubeconfig: tuple[str, str]) -> AsyncIterator[Cluster]:
    kubectl = components.find("kubectl")
    assert kubectl is not None
    kubeconfig, kubelet_root = lab_kubeconfig
    namespace = f"colocate-test-{uuid.uuid4().hex[:6]}"
    is_lab = "COLOCATE_KUBECONFIG" not in os.environ
    cluster = Cluster(kubeconfig, Path(kubectl), namespace, kubelet_root, is_lab)
    await cluster.kubectl("create", "namespace", cluster.namespace)
    try:
        yield cluster
    finally:
        with contextlib.suppress(AssertionError):
            await cluster.kubectl("delete", "namespace", cluster.namespace, "--wait=false")
