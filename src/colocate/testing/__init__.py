"""For authors of device plugins: an embedded kubelet to test against, with no cluster and no waiting.

    from colocate.testing import embedded_kubelet

    async def test_my_plugin():
        async with embedded_kubelet() as node:
            await node.serve(MyPlugin())
            await node.devices("example.com/fan", 2)
            pod = await node.run_pod({"example.com/fan": 1})
            assert node.env(pod)["FANS"] == "fan-0"

For pytest there are the fixtures `embedded_kubelet` (pytest-asyncio, or anyio on asyncio) and `blocking_kubelet`
(tests without async).
"""

from colocate.clock import ManualClock
from colocate.lab.faults import KubeletFaults
from colocate.lab.pod_runtime import ProcessRuntime, SimulatedRuntime
from colocate.lab.pod_worker import PodRecord
from colocate.model.pod import Phase
from colocate.testing.blocking import BlockingNode, blocking_kubelet
from colocate.testing.node import TestNode, embedded_kubelet

__all__ = [
    "BlockingNode",
    "KubeletFaults",
    "ManualClock",
    "Phase",
    "PodRecord",
    "ProcessRuntime",
    "SimulatedRuntime",
    "TestNode",
    "blocking_kubelet",
    "embedded_kubelet",
]
