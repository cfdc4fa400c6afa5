"""What the agent tells schedulers of its pods: worked out by the allocator, written by `node_counts`.

An annotation of a pod that was swapped is written only after this: should the agent be killed between two of them,
its next life finds here what both are due.
"""

from collections.abc import Mapping

from colocate.aio import Watched
from colocate.gpus import AnnouncedPod, Dues, GpuAnnouncement, recalled


class NodeStanding:
    """Who has and will have what of one node's GPUs, as it was settled last."""

    def __init__(self) -> None:
        self.changed = Watched()
        self.pods: Mapping[str, AnnouncedPod] | None = None
        """By uid; None while nothing has been settled yet: what is announced stays then."""
        self.absent: tuple[str, ...] = ()
        """Pods that the kubelet does not run, the oldest first; without mirrors, which never count."""
        self._told: Mapping[str, AnnouncedPod] | None = None
        self._recalled = Watched()

    def take(self, pods: Mapping[str, AnnouncedPod], absent: tuple[str, ...] = ()) -> None:
        """Replace the state by what was settled now."""
        if (pods, absent) != (self.pods, self.absent):
            self.pods, self.absent = pods, absent
            self.changed.changed()

    def tell(self, pods: Mapping[str, AnnouncedPod] | None) -> None:
        """Note what was written to the node."""
        self._told = pods

    def recall(self, last: GpuAnnouncement | None) -> None:
        """What the node says of an earlier life; None where it says nothing."""
        self._told = last.pods if last is not None else None
        self._recalled.changed()

    async def recalled(self) -> Dues:
        """What pods are due by the earlier life, once the node was read."""
        await self._recalled.beyond(0)
        return recalled(self._told or {})

    def is_told(self, uid: str) -> bool:
        """Whether what the pod is due is written."""
        now, told = (self.pods or {}).get(uid), (self._told or {}).get(uid)
        return now is None or not now.due or (told is not None and told.due == now.due)
