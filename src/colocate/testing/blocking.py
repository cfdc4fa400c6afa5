"""A node under test for tests without async: the calls of `TestNode`, each of which returns when it is done.

The kubelet and the plugins run in an event loop of their own, in a thread beside the test.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from colocate.kubelet import Allocation, DevicePlugin, Plugins
from colocate.lab.faults import KubeletFaults
from colocate.lab.pod_worker import PodRecord
from colocate.model.pod import Phase
from colocate.testing.node import TestNode, embedded_kubelet

Answer = TypeVar("Answer")


class BlockingNode:
    """The calls by which a test acts on a node; `TestNode` explains each in more detail."""

    node: TestNode
    """The node, for everything that has no call here: `node.call(node.node.kubelet.stop())`."""

    def __init__(self, node: TestNode, loop: asyncio.AbstractEventLoop) -> None:
        self.node = node
        self._loop = loop

    def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run any coroutine of the node: `node.call(node.node.kubelet.stop())`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def faults(self) -> KubeletFaults:
        """The kubelet's faults, which a test switches on and off."""
        return self.node.faults

    def serve(self, *plugins: DevicePlugin, **settings: Any) -> Plugins:
        """Serve plugins in the background; `settings` as in kubelet.Settings."""
        return self.call(self.node.serve(*plugins, **settings))

    def stop(self, group: Plugins) -> None:
        """Stop plugins as SIGTERM would; time passes meanwhile."""
        self.call(self.node.stop(group))

    def kill(self, group: Plugins) -> None:
        """Kill plugins, whatever they are doing."""
        self.call(self.node.kill(group))

    def restart(self) -> None:
        """Restart the kubelet; pods keep running."""
        self.call(self.node.kubelet.restart())

    def advance(self, seconds: float) -> None:
        """Let time pass, for the plugin and for the kubelet."""
        self.call(self.node.clock.advance(seconds))

    def devices(self, resource: str, healthy: int, *, timeout: float | None = None) -> None:
        """Wait until the kubelet has `healthy` healthy devices of a resource."""
        self.call(self.node.devices(resource, healthy, timeout=timeout))

    def run_pod(self, resources: Mapping[str, int], **options: Any) -> PodRecord:
        """Put a pod with one container on the node; `options` as in `TestNode.run_pod`."""
        return self.call(self.node.run_pod(resources, **options))

    def until_phase(self, record: PodRecord, phase: Phase, *, timeout: float | None = None) -> None:
        """Wait until a pod has reached a phase."""
        self.call(self.node.until_phase(record, phase, timeout=timeout))

    def delete_pod(self, record: PodRecord) -> None:
        """Delete a pod and wait until it is gone."""
        self.call(self.node.delete_pod(record))

    def env(self, record: PodRecord, container: str = "main") -> dict[str, str]:
        """The variables that plugins have injected into a container."""
        return self.node.env(record, container)

    def allocation(self, record: PodRecord, container: str = "main") -> Allocation:
        """All that plugins have injected into a container."""
        return self.node.allocation(record, container)

    def held(self, record: PodRecord) -> set[str]:
        """The ids that a pod holds, of any resource."""
        return self.node.held(record)


@contextmanager
def blocking_kubelet(**options: Any) -> Iterator[BlockingNode]:
    """A running embedded kubelet for a test without async; `options` as in `embedded_kubelet`."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        context = embedded_kubelet(**options)
        node = loop.run_until_complete(context.__aenter__())
        thread = threading.Thread(target=loop.run_forever, name="embedded kubelet", daemon=True)
        thread.start()
        try:
            yield BlockingNode(node, loop)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(context.__aexit__(None, None, None))
