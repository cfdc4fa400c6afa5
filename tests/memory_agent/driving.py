"""A memory part whose turns a test takes one by one, on a small machine, in an embedded cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from colocate.clock import ManualClock
from colocate.cluster import connection
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Flags
from colocate.kubelet import Plugins, Settings
from colocate.lab.cluster import MACHINE
from colocate.memory.actions import Action
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.part import MemoryPart
from colocate.memory.agent.store import MemoryStore
from colocate.memory.decision import MemoryDecision
from colocate.memory.forecast import Instant
from colocate.memory.settings import MemorySettings
from colocate.model.values import Size
from tests.memory_agent.lab import RESOURCE, MemoryLab, memory_lab
from tests.memory_agent.small_machine import SmallMachine
from tests.support.waiting import until

MIB = 1 << 20
BLOCK = 16 * MIB
SETTINGS = MemorySettings(resource=RESOURCE, block_size=Size(BLOCK), forecast=Instant())


class Driven:
    """The part under test, and its time."""

    def __init__(self, lab: MemoryLab, settings: MemorySettings = SETTINGS, **options: Any) -> None:
        self.lab = lab
        self.clock: ManualClock = options.pop("clock", None) or ManualClock()
        sdk = Settings(paths=lab.cluster.kubelet.paths, **options.pop("sdk", {}))
        self.small = SmallMachine(lab.runtime.cgroup_root)
        found = connection.find(Flags(kubeconfig=lab.root / "kubeconfig"))
        client = Client(found, self.clock, ClientSettings(attempts=1))
        self.cluster = ClusterView(client, MACHINE)
        self.store = MemoryStore(lab.root / "state")
        self.part = MemoryPart(
            settings,
            store=self.store,
            machine=options.pop("machine", None) or self.small.machine(),
            cluster=self.cluster,
            paths=lab.cluster.kubelet.paths,
            clock=self.clock,
            random=lambda: 0.5,
            **options,
        )
        self._plugins = Plugins(self.part.plugin, settings=sdk)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """The cluster is followed, and no more; at the end all is closed."""
        following = asyncio.create_task(self.cluster.run())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await self.part.executor.close()
            await self.cluster.client.close()
            self.store.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Driven"]:
        """The plugin is served and the cluster followed; turns are the test's."""
        async with self.following():
            serving = asyncio.create_task(self._plugins.run())
            try:
                await until(lambda: self.cluster.is_synced, "the API's first lists")
                yield self
            finally:
                self._plugins.stop()
                await serving

    async def turn(self, seconds: float = 10.0) -> MemoryDecision:
        """Let time pass and look; long deeds that this begins are waited for."""
        answered = self.cluster.answers
        await self.clock.advance(seconds)
        if answered:
            # A watch ends by this clock, and the next one begins by the network's: how many turns that takes is
            # nothing that a test is about.
            await self.until_the_api_answers()
        decision = await self.part.turn()
        await self._jobs_done()
        return decision

    async def turns(self, most: int, seconds: float = 10.0) -> list[Action]:
        """Several; all actions on pods, in order."""
        actions: list[Action] = []
        for _ in range(most):
            actions += (await self.turn(seconds)).plan.actions
        return actions

    async def listed(self, decision: MemoryDecision) -> None:
        """Wait until the kubelet has the list of this decision."""
        healthy = sorted(decision.state.blocks.healthy())
        await until(lambda: self.lab.healthy() == healthy, f"the kubelet to have {healthy}")

    async def run_pod(self, name: str, blocks: int) -> None:
        """Create a pod, and wait until it runs and the watch has heard of it."""
        self.lab.create_pod(name, blocks)
        await self.lab.until_running(name)
        await self.until_known(name)

    async def until_known(self, *names: str) -> None:
        """Wait until the watch has heard of pods, and of nothing but that they run."""

        def known() -> bool:
            phases = {pod.metadata.name: pod.status.phase for pod in self.cluster.pods}
            return all(phases.get(name) == "Running" for name in names)

        await until(known, f"the watch to show {names}")

    async def until_the_api_answers(self) -> None:
        """Let time pass until the watches of the cluster have tried again. In small steps, or what was asked would
        time out by this clock before its answer can come."""
        async with asyncio.timeout(60):
            while not self.cluster.answers:
                await self.clock.advance(1)
                await asyncio.sleep(0.005)

    async def _jobs_done(self) -> None:
        async with asyncio.timeout(60):
            while self.part.executor.is_busy:
                await self.clock.advance(0.05)
                await asyncio.sleep(0.002)


@asynccontextmanager
async def driven(settings: MemorySettings = SETTINGS, **options: Any) -> AsyncIterator[Driven]:
    async with memory_lab() as lab, Driven(lab, settings, **options).running() as part:
        yield part
