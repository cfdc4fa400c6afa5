"""A `ContainerEvents` that answers by what a test says, and remembers what it was told."""

from collections.abc import Sequence

from colocate.model.container import CpuPin, RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.runtime.events import PinWriter, Placing


class ScriptedEvents:
    """Every event in the order in which it came, in short words."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self.sandboxes: list[RuntimeSandbox] = []
        self.containers: list[RuntimeContainer] = []
        self.resources: list[RuntimeResources] = []
        self.listed: tuple[Sequence[RuntimeSandbox], Sequence[RuntimeContainer]] = ((), ())
        self.writer: PinWriter | None = None
        self.corrections: Sequence[CpuPin] = ()
        self.placing: Placing | Exception = Placing()

    def said(self, *words: str) -> int:
        """How often it was told so."""
        return sum(told[: len(words)] == words for told in self.told)

    async def synchronize(
        self,
        sandboxes: Sequence[RuntimeSandbox],
        containers: Sequence[RuntimeContainer],
        writer: PinWriter,
    ) -> Sequence[CpuPin]:
        self.told.append(("synchronize",))
        self.listed = (sandboxes, containers)
        self.writer = writer
        return self.corrections

    async def detached(self, writer: PinWriter) -> None:
        self.told.append(("detached",))

    async def create(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        self.told.append(("create", container.name))
        self.sandboxes.append(sandbox)
        self.containers.append(container)
        return self._answer()

    async def created(self, sandbox_id: str, name: str, attempt: int, container_id: str) -> None:
        self.told.append(("created", name, container_id))

    async def not_created(self, sandbox_id: str, name: str, attempt: int) -> None:
        self.told.append(("not_created", name))

    async def found(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        self.told.append(("found", container.name, container.id))
        self.containers.append(container)
        return self._answer()

    async def update(self, container_id: str, resources: RuntimeResources) -> Placing:
        self.told.append(("update", container_id))
        self.resources.append(resources)
        return self._answer()

    async def started(self, container_id: str) -> None:
        self.told.append(("started", container_id))

    async def stopped(self, container_id: str) -> None:
        self.told.append(("stopped", container_id))

    async def removed(self, container_id: str) -> None:
        self.told.append(("removed", container_id))

    async def sandbox_stopped(self, sandbox_id: str) -> None:
        self.told.append(("sandbox_stopped", sandbox_id))

    async def sandbox_removed(self, sandbox_id: str) -> None:
        self.told.append(("sandbox_removed", sandbox_id))

    def _answer(self) -> Placing:
        if isinstance(self.placing, Exception):
            raise self.placing
        return self.placing
