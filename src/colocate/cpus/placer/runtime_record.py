"""What a runtime has, as it was told, while nobody can decide: the book is brought in line with it later. Pure.

Its steps have the names of the book's. Nobody is placed here, and nobody is refused.
"""

from collections.abc import Sequence

import msgspec

from colocate.cpus import ContainerKey
from colocate.cpus.placer.requests import merged
from colocate.model.container import ContainerPhase, RuntimeContainer, RuntimeResources, RuntimeSandbox


class RuntimeRecord:
    """Sandboxes and containers."""

    def __init__(
        self, sandboxes: Sequence[RuntimeSandbox] = (), containers: Sequence[RuntimeContainer] = ()
    ) -> None:
        self._sandboxes = {each.id: each for each in sandboxes}
        self._containers = {each.id: each for each in containers}
        self._begun: dict[ContainerKey, RuntimeContainer] = {}

    def found(self) -> tuple[list[RuntimeSandbox], list[RuntimeContainer]]:
        """All that is there."""
        return list(self._sandboxes.values()), list(self._containers.values())

    def running(self) -> list[tuple[RuntimeSandbox, RuntimeContainer]]:
        """Containers that have not ended, as far as was told."""
        return [
            (self._sandboxes[each.sandbox_id], each)
            for each in self._containers.values()
            if each.sandbox_id in self._sandboxes and not each.has_ended
        ]

    def sandbox_of(self, container_id: str) -> RuntimeSandbox | None:
        found = self._containers.get(container_id)
        return None if found is None else self._sandboxes.get(found.sandbox_id)

    def begun(self) -> list[tuple[RuntimeSandbox, RuntimeContainer]]:
        """Containers that the runtime is making, and whose ids it is still to tell."""
        return [(self._sandboxes[key[0]], each) for key, each in self._begun.items()]

    def create(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> None:
        self._sandboxes[sandbox.id] = sandbox
        if container.id:
            self._containers[container.id] = container
        else:
            self._begun[sandbox.id, container.name] = container

    def created(self, key: ContainerKey, container_id: str) -> None:
        if container := self._begun.pop(key, None):
            self._containers[container_id] = msgspec.structs.replace(
                container, id=container_id, phase=ContainerPhase.CREATED
            )

    def not_created(self, key: ContainerKey, _: object = None) -> None:
        self._begun.pop(key, None)

    def lose_sight(self, key: ContainerKey) -> None:
        self._begun.pop(key, None)

    def update(self, container_id: str, resources: RuntimeResources) -> None:
        if found := self._containers.get(container_id):
            self._note(found, resources=merged(found.resources, resources))

    def started(self, container_id: str) -> None:
        if found := self._containers.get(container_id):
            self._note(found, phase=ContainerPhase.RUNNING)

    def stopped(self, container_id: str) -> None:
        if found := self._containers.get(container_id):
            self._note(found, phase=ContainerPhase.EXITED)

    def removed(self, container_id: str) -> None:
        self._containers.pop(container_id, None)

    def end_sandbox(self, sandbox_id: str) -> None:
        self._sandboxes.pop(sandbox_id, None)
        for own in [own for own, each in self._containers.items() if each.sandbox_id == sandbox_id]:
            del self._containers[own]
        for key in [key for key in self._begun if key[0] == sandbox_id]:
            del self._begun[key]

    def _note(self, found: RuntimeContainer, **changes: object) -> None:
        self._containers[found.id] = msgspec.structs.replace(found, **changes)
