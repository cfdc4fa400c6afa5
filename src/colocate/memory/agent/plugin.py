"""The device plugin of memory blocks. How many blocks there are is decided elsewhere.

Allocate has ids but no pod. It refuses where every pod that it can be for may use no blocks. Where that is not
certain, PreStartContainer decides, which knows the pod.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from colocate.aio import Watched
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.kubelet.plugin import DevicePlugin, Refused
from colocate.memory import MemorySettings, block_place, pod_ref
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.prestart import PreStart
from colocate.memory.agent.roster import roster
from colocate.model.device import Allocation, Device, Health
from colocate.model.memory import PodIdentity, PodUid

IDS = "colocate.dev/memory-blocks"
BYTES = "colocate.dev/memory-bytes"
"""Annotations for runtimes."""
IDS_VARIABLE = "COLOCATION_MEMORY_BLOCKS"
BYTES_VARIABLE = "COLOCATION_MEMORY_BYTES"
"""Variables for shells: dash and busybox drop a variable named after the resource, which has a slash and a dot."""

REFUSED = "ColocationMemoryRefused"
_PROMISE = 60.0
"""Seconds for which blocks that a container got count as held before the kubelet reports them."""


class MemoryPlugin(DevicePlugin):
    """Serves the blocks of one node."""

    def __init__(
        self,
        settings: Callable[[], MemorySettings],
        cluster: ClusterView,
        prestart: PreStart,
        holders: Callable[[], Mapping[PodUid, Sequence[str]]],
        clock: Clock,
    ) -> None:
        """`settings` returns the current settings; name and size of blocks never change. `holders` returns which pod
        holds which blocks."""
        self.resource = settings().resource
        self.used = Watched()
        """Counts allocations and starts of containers."""
        self._settings = settings
        self._cluster = cluster
        self._prestart = prestart
        self._holders = holders
        self._clock = clock
        self._listed: list[Device] | None = None
        self._closed = ""
        self._changes = Watched()
        self._promised: dict[str, float] = {}

    def publish(self, devices: Sequence[Device], closed: str = "") -> None:
        """Offer these blocks from now on; with a reason in `closed`, none is given out."""
        self._closed = closed
        listed = list(devices)
        if self._listed != listed:
            self._listed = listed
            reached("memory.published")
            self._changes.changed()

    def suspend(self, why: str) -> None:
        """Offer only blocks that pods hold, and give out none, until the next `publish`."""
        kept = {*self._promised, *self._held()}
        listed = [device if device.id in kept else device.unhealthy() for device in self._listed or ()]
        if self._listed is not None:
            self.publish(listed, why)

    def promised(self, held: Iterable[str]) -> tuple[str, ...]:
        """Blocks that were given to a container and that no pod is known to hold yet."""
        seen, now = set(held), self._clock.monotonic()
        self._promised = {
            id: since for id, since in self._promised.items() if id not in seen and now - since < _PROMISE
        }
        return tuple(sorted(self._promised, key=block_place))

    async def devices(self) -> AsyncIterator[list[Device]]:
        while True:
            seen = self._changes.count
            if self._listed is not None:
                yield self._listed
            await self._changes.beyond(seen)

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Prefer the lowest numbers, since the highest are withdrawn first."""
        rest = sorted(set(available) - set(must_include), key=block_place)
        return [*must_include, *rest][:size]

    async def allocate(self, ids: Sequence[str]) -> Allocation:
        in_order = sorted(ids, key=block_place)
        if self._closed:
            raise Refused(
                f"the agent gives out no block of {self.resource} now: {self._closed}; repair that and create "
                "the pod again"
            )
        healthy = {device.id for device in self._listed or () if device.health is Health.HEALTHY}
        if gone := [id for id in in_order if id not in healthy]:
            raise Refused(
                f"{gone[0]} of {self.resource} was withdrawn while the pod was starting, because online work "
                "needs its memory; create the pod again"
            )
        self._check_namespace(len(in_order))
        self._promised |= dict.fromkeys(in_order, self._clock.monotonic())
        self.used.changed()
        named, size = ",".join(in_order), str(len(in_order) * self._settings().block_size)
        return Allocation(
            envs={self.resource: named, IDS_VARIABLE: named, BYTES_VARIABLE: size},
            annotations={IDS: named, BYTES: size},
        )

    async def prestart(self, ids: Sequence[str]) -> None:
        try:
            await self._prestart.hold(ids, self._why_not_allowed)
        finally:
            self.used.changed()

    def _check_namespace(self, count: int) -> None:
        candidates = [pod for pod in self._waiting() if any(c.blocks == count for c in pod.containers)]
        reasons = [self._why_not_allowed(pod) for pod in candidates]
        if reasons and all(reasons):
            for pod, reason in zip(candidates, reasons, strict=True):
                self._cluster.tell_pod(pod_ref(pod), REFUSED, reason, warning=True)
            raise Refused(reasons[0])

    def _waiting(self) -> list[PodIdentity]:
        """The pods of this node that hold no block yet, without mirrors, whose identity nothing proves."""
        holders = self._holders()
        waiting = roster(self._cluster.pods, {}, frozenset()).identities(self.resource)
        return [pod for pod in waiting if pod.uid not in holders]

    def _held(self) -> set[str]:
        return {id for ids in self._holders().values() for id in ids}

    def _why_not_allowed(self, pod: PodIdentity) -> str:
        """Why a pod may use no blocks; empty where it may."""
        settings = self._settings()
        if settings.sells_to(pod.namespace):
            return ""
        allowed = ", ".join(sorted(settings.namespaces))
        return (
            f"{pod.key} may not use {self.resource}: this node offers it only to namespace {allowed}; "
            "run the pod there, or have its namespace added to memory.namespaces of the agent"
        )
