"""Colocated pods: the order in which they give memory back, and the actions that keep their limits set."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from colocate.memory.actions import PodAction, PodRef, RestoreLimit, SetLimit, pod_ref
from colocate.memory.blocks import block_place
from colocate.memory.limits import PAGE, PodLimits, kubelets_own, whole_pages
from colocate.memory.usage import firm
from colocate.model.figures import amount
from colocate.model.memory import Bytes, MemoryControls, PodIdentity, PodMemory, PodUid


class Colocated(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that holds blocks, or held some and must still get back what was taken. No other pod is touched."""

    pod: PodIdentity
    ids: tuple[str, ...]
    reading: PodMemory | None
    """None where its control group cannot be read."""
    limits: PodLimits | None
    """None where its containers are unknown."""
    far: Bytes
    """Its memory on far nodes."""
    used: Bytes
    """What it uses of its blocks, that is, beyond `besides`."""
    besides: Bytes
    """What it uses of memory that it requested besides its blocks; counts as online work's."""
    presumed: Bytes = 0
    """The size of its blocks, where it runs and cannot be read; else 0."""
    entitled: bool = True
    """Whether blocks are sold to its namespace."""

    @property
    def uid(self) -> PodUid:
        return self.pod.uid

    @property
    def ref(self) -> PodRef:
        return pod_ref(self.pod)

    @property
    def near(self) -> Bytes:
        """What its blocks can give back; the pod is asked for no more than this."""
        return max(0, self.used + self.presumed - self.far)

    @property
    def frees(self) -> Bytes:
        """What its end would free in all."""
        return max(0, self.used + self.presumed + self.besides - self.far)

    @property
    def gives(self) -> bool:
        """Whether memory may be taken from it: never where it is known to request no block."""
        return bool(self.ids) and self.pod.may_hold_blocks

    @property
    def may_be_bound(self) -> bool:
        """Whether a limit on the pod's group restricts only containers with blocks.

        Memory of its other containers was reserved by the scheduler: they must not suffer from being in the same pod.
        """
        may_run = [each for each in self.pod.containers if not (each.has_ended_by_start and self.pod.started)]
        has_limit = self.limits is not None and self.limits.pod is not None
        return has_limit and all(each.blocks for each in may_run)


def giving_order(pods: Iterable[Colocated], due: Bytes) -> list[Colocated]:
    """Sorts pods by who gives back first: pods of namespaces that may use no blocks; lower priority; pods that can be
    read; pods whose blocks pay more of what is due; younger pods."""
    return sorted(
        pods,
        key=lambda each: (
            each.entitled,
            each.pod.priority,
            # Memory that is known to come back goes before memory that may.
            each.reading is None,
            -min(each.near, due),
            -(each.pod.created or 0.0),
            each.uid,
        ),
    )


def droppable(pod: PodMemory, swap: bool, swap_free: Bytes) -> Bytes:
    """What the kernel can take from a pod: page cache, and what fits into swap where it may swap."""
    return pod.file + (min(pod.anon, swap_free) if swap and pod.swap_limit != 0 else 0)


def unyielding(pod: PodMemory, swap: bool, swap_free: Bytes) -> Bytes:
    """What the kernel cannot take from a pod."""
    # The counters are not read at the same instant: the usage may be less than the sum of its parts.
    return max(pod.usage, firm(pod) + pod.file) - droppable(pod, swap, swap_free)


def blocks_in_giving_order(pods: Sequence[Colocated]) -> list[str]:
    """The blocks of the pods in their order, of each pod the highest number first, without duplicates."""
    return list(dict.fromkeys(id for each in pods for id in sorted(each.ids, key=block_place, reverse=True)))


def assert_limits(
    pods: Sequence[Colocated], throttled: Collection[PodUid], controls: MemoryControls, off: bool
) -> list[PodAction]:
    """Set the limits of pods again, since a kubelet or systemd may reset them. Only for pods that can be read and
    whose containers are known.

    A limit is never lowered below what the pod uses, so that no resize of a container kills it. It is never raised
    for a pod of a namespace that may use no blocks. When colocation is switched off, pods get the kubelet's limits.
    """
    actions = []
    for each in pods:
        if each.reading is None or each.limits is None:
            continue
        action = (
            _restore(each, each.reading, each.limits, each.uid in throttled, controls)
            if off
            else _assert(each, each.reading, each.limits, controls)
        )
        if action is not None:
            actions.append(action)
    return actions


def _assert(
    each: Colocated, reading: PodMemory, limits: PodLimits, controls: MemoryControls
) -> PodAction | None:
    found = "none" if reading.limit is None else amount(reading.limit)
    swaps = limits.swap is not None and controls.swap and reading.swap_limit != limits.swap
    limit = _no_lower_than_use(limits.pod, reading)
    if not each.entitled and limit is not None and reading.limit is not None:
        limit = min(limit, reading.limit)
    is_set = limit is None or reading.limit == limit
    if is_set and not swaps and not limits.containers:
        return None
    return SetLimit(
        pod=each.ref,
        limit=limit,
        swap=limits.swap,
        containers=limits.containers,
        reason=" ".join((*limits.reasons, f"Found: {found}.", *_why_no_lower(limit, limits.pod))),
    )


def _no_lower_than_use(wanted: Bytes | None, reading: PodMemory) -> Bytes | None:
    """The wanted limit; where the pod has a larger one and uses more than wanted, what it uses."""
    if wanted is None or reading.limit is None or reading.limit <= wanted:
        return wanted
    return min(reading.limit, max(wanted, whole_pages(reading.working_set + PAGE - 1)))


def _why_no_lower(limit: Bytes | None, wanted: Bytes | None) -> tuple[str, ...]:
    if limit is None or wanted is None or limit == wanted:
        return ()
    return (f"The pod uses more than that, so its limit is {amount(limit)} until it uses less.",)


def _restore(
    each: Colocated, reading: PodMemory, limits: PodLimits, throttled: bool, controls: MemoryControls
) -> PodAction | None:
    own = reading.limit if limits.pod is None else kubelets_own(each.pod)
    # The kubelet limits the swap of containers, not of pods.
    swaps = limits.swap is not None and controls.swap and reading.swap_limit is not None
    if throttled or (reading.limit == own and not swaps and not limits.containers):
        # The ladder first undoes what it did to the pod.
        return None
    return RestoreLimit(
        pod=each.ref,
        to=own,
        containers=tuple(limits.containers),
        reason="Memory colocation is switched off on this node, so the pod has the limits of the kubelet.",
    )
