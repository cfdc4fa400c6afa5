"""Whoever is told of containers, in a test: notes what it hears, and answers what the test has put down."""

import asyncio
from collections.abc import Sequence
from typing import Any

from colocate.model.container import CpuPin, RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.runtime.events import PinWriter, Placing


class NotedEvents:
    """A `ContainerEvents` without a mind."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.corrections: Sequence[CpuPin] = ()
        self.placing = Placing()
        self.error: Exception | None = None
        self.free = asyncio.Event()
        """Cleared, every event waits."""
        self.free.set()
        self.writer: PinWriter | None = None
        self.sandboxes: Sequence[RuntimeSandbox] = ()
        self.containers: Sequence[RuntimeContainer] = ()

    async def _hear(self, *event: object) -> None:
        await self.free.wait()
        self.heard.append(event)
        if self.error is not None:
            raise self.error

    async def synchronize(
        self, sandboxes: Sequence[RuntimeSandbox], containers: Sequence[RuntimeContainer], writer: PinWriter
    ) -> Sequence[CpuPin]:
        await self._hear("synchronize", len(sandboxes), len(containers))
        self.sandboxes, self.containers, self.writer = sandboxes, containers, writer
        return self.corrections

    async def detached(self, writer: PinWriter) -> None:
        if writer is self.writer:
            self.writer = None
        self.heard.append(("detached",))

    async def create(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        await self._hear("create", sandbox, container)
        return self.placing

    async def created(self, sandbox_id: str, name: str, attempt: int, container_id: str) -> None:
        await self._hear("created", sandbox_id, name, attempt, container_id)

    async def not_created(self, sandbox_id: str, name: str, attempt: int) -> None:
        await self._hear("not_created", sandbox_id, name, attempt)

    async def found(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        await self._hear("found", sandbox, container)
        return self.placing

    async def update(self, container_id: str, resources: RuntimeResources) -> Placing:
        await self._hear("update", container_id, resources)
        return self.placing

    async def started(self, container_id: str) -> None:
        await self._hear("started", container_id)

    async def stopped(self, container_id: str) -> None:
        await self._hear("stopped", container_id)

    async def removed(self, container_id: str) -> None:
        await self._hear("removed", container_id)

    async def sandbox_stopped(self, sandbox_id: str) -> None:
        await self._hear("sandbox_stopped", sandbox_id)

    async def sandbox_removed(self, sandbox_id: str) -> None:
        await self._hear("sandbox_removed", sandbox_id)
