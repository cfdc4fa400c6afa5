"""What a way in (CRI proxy or NRI plugin) tells of containers, and what it is answered.

Whoever decides implements `ContainerEvents`; a way in is a `PinWriter`, which can change containers that run already.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from colocate.errors import UserError
from colocate.model.container import CpuPin, RuntimeContainer, RuntimeResources, RuntimeSandbox


class PlacementRefused(UserError):
    """A strict wish that cannot be had: the container must not be created, and this sentence says why."""


class Placing(msgspec.Struct, frozen=True):
    """The answer to one event."""

    own: CpuPin | None = None
    """For the container of the event; None passes the request on as it came."""
    others: tuple[CpuPin, ...] = ()
    """Containers that run already and must change first: these are never delayed."""


class PinWriter(Protocol):
    """Changes containers that run already."""

    async def write(self, pins: Sequence[CpuPin]) -> Sequence[str]:
        """Write these, and return the ids of containers that could not be changed.

        Never awaited within an event, nor under a lock that an event needs: NRI writes between events only.
        """


class ContainerEvents(Protocol):
    """Is told of every event in the order in which the runtime sees them. Only `create` and `update` may refuse."""

    async def synchronize(
        self,
        sandboxes: Sequence[RuntimeSandbox],
        containers: Sequence[RuntimeContainer],
        writer: PinWriter,
    ) -> Sequence[CpuPin]:
        """A way in has connected: all that the runtime has. Returns what must be corrected; `writer` is kept.

        NRI leaves out containers that have ended, even where their sandbox is ready and may start them again.
        """

    async def detached(self, writer: PinWriter) -> None:
        """The connection of this way in is gone. The writer may be one whose `synchronize` has failed."""

    async def create(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        """A container is about to be created. PlacementRefused where it must not be.

        Where it has an id already (NRI), `created` does not follow; if it could not be made, `removed` does.
        """

    async def created(self, sandbox_id: str, name: str, attempt: int, container_id: str) -> None:
        """The runtime has made it, under this id."""

    async def not_created(self, sandbox_id: str, name: str, attempt: int) -> None:
        """The runtime could not make it."""

    async def found(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        """A container is there that was made without a decision and that no `synchronize` told of. Never refused."""

    async def update(self, container_id: str, resources: RuntimeResources) -> Placing:
        """The kubelet changes a container in place."""

    async def started(self, container_id: str) -> None: ...

    async def stopped(self, container_id: str) -> None:
        """It has ended; it may start again in its sandbox."""

    async def removed(self, container_id: str) -> None: ...

    async def sandbox_stopped(self, sandbox_id: str) -> None: ...

    async def sandbox_removed(self, sandbox_id: str) -> None: ...
