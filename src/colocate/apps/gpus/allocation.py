"""What the device plugin of GPU memory asks, and who answers: which pod a container is of, and which GPU it gets.

The plugin knows ids, units and the kubelet; who answers knows pods, annotations and the book. Neither knows the
other's half.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from colocate.aio import Watched
from colocate.gpus import GpuBook
from colocate.model.device import Allocation
from colocate.model.gpu import GpuInventory


class GpuAllocation(Protocol):
    """Answers the device plugins of all dialects of one node. `Refused` carries the sentence for the pod's event."""

    changed: Watched
    """Counts changes of the book: health and free count of devices may be others now."""

    @property
    def book(self) -> GpuBook:
        """Who has what now."""

    async def allocate(self, resource: str, ids: Sequence[str]) -> Allocation:
        """What the container that is given these devices is started with."""

    async def prestart(self, resource: str, ids: Sequence[str]) -> None:
        """Return where the container that holds these devices was given its own GPU; Refused where not."""

    def unhealthy(self, resource: str) -> AbstractSet[str]:
        """The devices to be marked Unhealthy, so that what the kubelet counts as free is what the book has free."""

    def take_inventory(self, inventory: GpuInventory) -> None:
        """The GPUs as they are from now on: new ones, sick ones, ones that are well again."""
