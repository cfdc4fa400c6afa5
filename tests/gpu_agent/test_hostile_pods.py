"""Tenants who fill the API with large pods: the agent's memory stays below the limit of its DaemonSet."""

import asyncio
from pathlib import Path

import pytest
import yaml

from colocate.model import quantity
from tests.gpu_agent.lab import T4, GpuLab, gpu_lab
from tests.gpu_agent.test_gpu_agent import started

MIRROR = "kubernetes.io/config.mirror"
DAEMON_SET = Path(__file__).parents[2] / "examples/gpus/daemonset.yaml"
PODS = 850
LONG = 250 << 10
"""Characters; the API allows 256 KiB for all annotations of a pod together."""


def memory_limit() -> int:
    documents = yaml.safe_load_all(DAEMON_SET.read_text())
    daemon_set = next(each for each in documents if each["kind"] == "DaemonSet")
    container = daemon_set["spec"]["template"]["spec"]["containers"][0]
    return quantity.whole(container["resources"]["limits"]["memory"])


def most_memory(lab: GpuLab) -> int:
    """Bytes that the agent had resident at most."""
    assert lab.agent is not None
    status = Path(f"/proc/{lab.agent.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.parametrize("key", ["example.com/anything", "doslab.io/gpu-uuid"])
async def test_850_pods_with_all_the_annotations_that_the_api_allows_fit_below_the_daemonsets_limit(
    key: str,
) -> None:
    async with gpu_lab() as lab:
        for number in range(PODS):
            # The kubelet runs no mirror, and it does not end: nothing but the agent's own bounds is in the way.
            lab.create_pod(
                f"large-{number}", 0, annotations={MIRROR: "none", key: f"{number} " * (LONG // 5)}
            )
            await asyncio.sleep(0)
        for life in ("first", "second"):
            await started(lab)
            lab.create_pod(life, 60, annotations={"doslab.io/gpu-uuid": T4})
            await lab.until_phase(life)
            assert most_memory(lab) < memory_limit() * 3 // 4
            assert await lab.stop_agent() == 0
