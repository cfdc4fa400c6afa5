"""For authors of device plugins: an embedded kubelet to test against, with no cluster and no waiting.

    from colocate.testing import embedded_kubelet

    async def test_my_plugin():
        async with embedded_kubelet() as node:
            await node.serve(MyPlugin())
            await node.devices("example.com/fan", 2)
            pod = await node.run_pod({"example.com/fan": 1})
            assert node.env(pod)["FANS"] == "fan-0"

With pytest-asyncio the same is there as the fixture `embedded_kubelet`.
"""

from colocate.clock import ManualClock
from colocate.testing.node import TestNode, embedded_kubelet

__all__ = ["ManualClock", "TestNode", "embedded_kubelet"]
