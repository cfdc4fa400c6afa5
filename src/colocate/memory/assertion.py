"""Reassert the memory limits of colocated pods: a kubelet or systemd may reset them.

A limit is lowered no further than to what the pod uses: nobody is killed because a container was resized. It is
never raised for a pod to whose namespace no blocks are sold. When colocation is switched off, pods get back what the
kubelet gave them.
"""

from collections.abc import Sequence

from colocate.memory.actions import PodAction, RestoreLimit, SetLimit
from colocate.memory.colocated import Colocated
from colocate.memory.ladder import Ladder
from colocate.memory.limits import PAGE, PodLimits, kubelets_own, whole_pages
from colocate.model.figures import amount
from colocate.model.memory import Bytes, MemoryControls, PodMemory


def assert_limits(
    pods: Sequence[Colocated], ladder: Ladder, controls: MemoryControls, off: bool
) -> list[PodAction]:
    """What is to be set, of pods that can be read and whose containers are known."""
    actions = []
    for each in pods:
        if each.reading is None or each.limits is None:
            continue
        action = (
            _restore(each, each.reading, each.limits, ladder, controls)
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
    each: Colocated, reading: PodMemory, limits: PodLimits, ladder: Ladder, controls: MemoryControls
) -> PodAction | None:
    own = reading.limit if limits.pod is None else kubelets_own(each.pod)
    # The kubelet limits the swap of containers, not that of pods.
    swaps = limits.swap is not None and controls.swap and reading.swap_limit is not None
    if each.uid in ladder.throttled or (reading.limit == own and not swaps and not limits.containers):
        # What the ladder did to the pod is undone first, in its own order.
        return None
    return RestoreLimit(
        pod=each.ref,
        to=own,
        containers=tuple(limits.containers),
        reason="Memory colocation is switched off on this node, so the pod has the limits of the kubelet.",
    )
