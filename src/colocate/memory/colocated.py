"""Colocated pods: the order in which they give back, and their limits, reasserted."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from colocate.memory.actions import PodAction, PodRef, RestoreLimit, SetLimit, pod_ref
from colocate.memory.blocks import block_place
from colocate.memory.limits import PAGE, PodLimits, kubelets_own, whole_pages
from colocate.memory.usage import firm
from colocate.model.figures import amount
from colocate.model.memory import Bytes, MemoryControls, PodIdentity, PodMemory, PodUid


class Colocated(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that holds blocks, or has held some and not got back all that was taken: nothing is done to others."""

    pod: PodIdentity
    ids: tuple[str, ...]
    reading: PodMemory | None
    """None where its control group cannot be read."""
    limits: PodLimits | None
    """None where its containers are not known."""
    far: Bytes
    """What it has on far nodes."""
    used: Bytes
    """What it uses of its blocks: what is beyond `besides`."""
    besides: Bytes
    """What it uses of the memory that the scheduler set aside for it besides its blocks: as online work's."""
    presumed: Bytes = 0
    """Its blocks, where it runs and cannot be read."""
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
        """What its blocks would give back: for this alone it is asked to give."""
        return max(0, self.used + self.presumed - self.far)

    @property
    def frees(self) -> Bytes:
        """What its end would give back in all."""
        return max(0, self.used + self.presumed + self.besides - self.far)

    @property
    def gives(self) -> bool:
        """Whether anything may be taken from it: not where it is known to ask for no block, whatever is said."""
        return bool(self.ids) and self.pod.may_hold_blocks

    @property
    def may_be_bound(self) -> bool:
        """Whether what holds the pod's group down holds nobody but containers with blocks.

        What other containers have was set aside for them: they are not to pay for being in the same pod.
        """
        may_run = [each for each in self.pod.containers if not (each.has_ended_by_start and self.pod.started)]
        has_limit = self.limits is not None and self.limits.pod is not None
        return has_limit and all(each.blocks for each in may_run)


def giving_order(pods: Iterable[Colocated], due: Bytes) -> list[Colocated]:
    """Who gives back first: to whom no blocks are sold; then lower priority; then who can be read; then whose blocks
    pay more of what is due; then the youngest."""
    return sorted(
        pods,
        key=lambda each: (
            each.entitled,
            each.pod.priority,
            # What is known to be paid goes before what may be.
            each.reading is None,
            -min(each.near, due),
            -(each.pod.created or 0.0),
            each.uid,
        ),
    )


def droppable(pod: PodMemory, swap: bool, swap_free: Bytes) -> Bytes:
    """What the kernel can take from a pod: cache, and what fits into swap where it may swap."""
    return pod.file + (min(pod.anon, swap_free) if swap and pod.swap_limit != 0 else 0)


def unyielding(pod: PodMemory, swap: bool, swap_free: Bytes) -> Bytes:
    """What it cannot."""
    # The counters are not read at the same instant: what is used is no less than its parts.
    return max(pod.usage, firm(pod) + pod.file) - droppable(pod, swap, swap_free)


def blocks_in_giving_order(pods: Sequence[Colocated]) -> list[str]:
    """Blocks of the pods as ordered, of each the highest first; each once."""
    return list(dict.fromkeys(id for each in pods for id in sorted(each.ids, key=block_place, reverse=True)))


def assert_limits(
    pods: Sequence[Colocated], throttled: Collection[PodUid], controls: MemoryControls, off: bool
) -> list[PodAction]:
    """Reassert the limits of pods that can be read and whose containers are known: a kubelet or systemd may reset
    them.

    A limit is lowered no further than to what the pod uses: nobody is killed because a container was resized. It is
    never raised for a pod to whose namespace no blocks are sold. When colocation is switched off, pods get back what
    the kubelet gave them.
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
    """The limit as wanted, or, where the pod has a larger one and uses more, what it uses: it follows that down."""
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
    # The kubelet limits the swap of containers, not that of pods.
    swaps = limits.swap is not None and controls.swap and reading.swap_limit is not None
    if throttled or (reading.limit == own and not swaps and not limits.containers):
        # What the ladder did to the pod is undone first, in its own order.
        return None
    return RestoreLimit(
        pod=each.ref,
        to=own,
        containers=tuple(limits.containers),
        reason="Memory colocation is switched off on this node, so the pod has the limits of the kubelet.",
    )
