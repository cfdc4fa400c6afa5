"""A `ContainerEvents` for tests: records every event, and answers as the test says."""

import asyncio
from collections.abc import Sequence
from typing import Any

from colocate.model.container import CpuPin, RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.runtime.events import PinWriter, Placing


class NotedEvents:
    """Every event in the order in which it came."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.corrections: Sequence[CpuPin] = ()
        self.placing: Placing | Exception = Placing()
        """The answer to `create`, `found` and `update`; an exception is raised."""
        self.error: Exception | None = None
        """Raised by every event but `detached`."""
        self.free = asyncio.Event()
        """While it is cleared, every event waits."""
        self.free.set()
        self.writer: PinWriter | None = None
        self.sandboxes: Sequence[RuntimeSandbox] = ()
        """The sandboxes of the last `synchronize`."""
        self.containers: Sequence[RuntimeContainer] = ()
        """The containers of the last `synchronize`."""

    @property
    def told(self) -> list[tuple[str, ...]]:
        """The events in short: names and ids of containers, ids of sandboxes."""
        return [_short(event) for event in self.heard]

    def said(self, *words: str) -> int:
        """How many events begin with these words."""
        return sum(told[: len(words)] == words for told in self.told)

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        """The arguments of all events of this kind."""
        return [event[1:] for event in self.heard if event[0] == kind]

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
        return self._answer()

    async def created(self, sandbox_id: str, name: str, attempt: int, container_id: str) -> None:
        await self._hear("created", sandbox_id, name, attempt, container_id)

    async def not_created(self, sandbox_id: str, name: str, attempt: int) -> None:
        await self._hear("not_created", sandbox_id, name, attempt)

    async def found(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        await self._hear("found", sandbox, container)
        return self._answer()

    async def update(self, container_id: str, resources: RuntimeResources) -> Placing:
        await self._hear("update", container_id, resources)
        return self._answer()

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

    def _answer(self) -> Placing:
        if isinstance(self.placing, Exception):
            raise self.placing
        return self.placing


def _short(event: tuple[Any, ...]) -> tuple[str, ...]:
    match event:
        case ("create", _, container):
            return ("create", container.name)
        case ("found", _, container):
            return ("found", container.name, container.id)
        case ("created", _, name, _, container_id):
            return ("created", name, container_id)
        case ("not_created", _, name, _):
            return ("not_created", name)
        case ("synchronize", _, _):
            return ("synchronize",)
        case _:
            return event[:2]
