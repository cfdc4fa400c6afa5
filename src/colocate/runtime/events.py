"""The interface between a runtime's edge (CRI proxy or NRI plugin) and the placer.

The placer implements `ContainerEvents`; the edge calls it, and is the `PinWriter` that changes running containers.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from colocate.errors import UserError
from colocate.model.container import CpuPin, RuntimeContainer, RuntimeResources, RuntimeSandbox


class PlacementRefused(UserError):
    """A strict wish cannot be met: the container must not be created, and the message says why."""


class Placing(msgspec.Struct, frozen=True):
    """The answer to one event."""

    own: CpuPin | None = None
    """The pin of the event's container; None passes the request unchanged."""
    others: tuple[CpuPin, ...] = ()
    """Pins of running containers that lose CPUs: they must be written before the event's container starts."""


class PinWriter(Protocol):
    """Changes running containers."""

    async def write(self, pins: Sequence[CpuPin]) -> Sequence[str]:
        """Write pins; returns the ids of containers that could not be changed.

        Never await it within an event or under a lock that an event needs: NRI writes only between events.
        """


class ContainerEvents(Protocol):
    """Receives every event of a runtime, in order. Only `create` and `update` may refuse."""

    async def synchronize(
        self,
        sandboxes: Sequence[RuntimeSandbox],
        containers: Sequence[RuntimeContainer],
        writer: PinWriter,
    ) -> Sequence[CpuPin]:
        """A runtime has connected, and has these. Returns the pins to correct; `writer` is used until `detached`.

        NRI leaves out containers that have ended, even if their sandbox is ready and may start them again.
        """

    async def detached(self, writer: PinWriter) -> None:
        """The connection of this writer has ended; its `synchronize` may have failed."""

    async def create(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        """A container is about to be created; PlacementRefused if it must not be.

        If it already has an id (NRI), `created` does not follow; if the runtime cannot create it, `removed` does.
        """

    async def created(self, sandbox_id: str, name: str, attempt: int, container_id: str) -> None:
        """The runtime has created it with this id."""

    async def not_created(self, sandbox_id: str, name: str, attempt: int) -> None:
        """The runtime could not create it."""

    async def found(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        """A container exists that was created without a decision and was in no `synchronize`. Never refuses."""

    async def update(self, container_id: str, resources: RuntimeResources) -> Placing:
        """The kubelet resizes a container in place."""

    async def started(self, container_id: str) -> None: ...

    async def stopped(self, container_id: str) -> None:
        """It has ended, and may start again in its sandbox."""

    async def removed(self, container_id: str) -> None: ...

    async def sandbox_stopped(self, sandbox_id: str) -> None: ...

    async def sandbox_removed(self, sandbox_id: str) -> None: ...
