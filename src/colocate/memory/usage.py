"""Measures what uses a node's memory: the system, online pods, colocated pods.

Online is everything but colocated pods, of any QoS class. It is the node's use less the use of colocated pods, so
nothing counts twice, and what runs outside pods counts as well. What a colocated pod uses of memory that it requested
besides its blocks is online, too. Pods that cannot be read count by their request. Far NUMA nodes are left out: a
debt can move there.

There are two views of which page cache counts as use (`PageCache`); each applies to the node and its pods alike.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec

from colocate.model.figures import amount, count, some
from colocate.model.memory import Bytes, NodeMemory, NumaMemory, PodIdentity, PodMemory, PodUid
from colocate.model.pod import QosClass


class UsageView(StrEnum):
    """Whose way of counting memory in use."""

    KERNEL = "MemAvailable"
    KUBELET = "the kubelet's working set"


class OnlinePod(msgspec.Struct, frozen=True):
    """What an online pod uses and requests."""

    uid: PodUid
    qos: QosClass
    used: Bytes | None
    """None where it could not be read."""
    request: Bytes


class MemoryUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What uses the node's memory."""

    capacity: Bytes
    """Near memory, plus what colocated pods have on far nodes."""
    near: Bytes
    system: Bytes
    """Memory in use outside pods."""
    online_pods: tuple[OnlinePod, ...]
    colocated: Mapping[PodUid, Bytes]
    """What each colocated pod uses of its blocks: its working set, in both views, less `besides`."""
    besides: Mapping[PodUid, Bytes] = {}
    """What each colocated pod uses of memory that it requested besides; counts among the online pods, too."""
    far: Mapping[PodUid, Bytes]
    """What each colocated pod has on far nodes."""
    view: UsageView
    reasons: tuple[str, ...]

    @property
    def online(self) -> Bytes:
        """What the system and online pods use."""
        return self.system + sum(counted(pod) for pod in self.online_pods)

    @property
    def colocated_total(self) -> Bytes:
        return sum(self.colocated.values())


def counted(pod: OnlinePod) -> Bytes:
    """A pod's use, or its request where the use is unknown."""
    return pod.request if pod.used is None else pod.used


def far_ids(node: NodeMemory, configured: tuple[int, ...] | None) -> frozenset[int]:
    """The far NUMA nodes that have memory: as configured, or those without CPUs; never all of them."""
    # A node whose memory was removed may stay in the list with no memory.
    nodes = [each for each in node.numa if each.total]
    wanted = [
        each.id for each in nodes if (each.id in configured if configured is not None else not each.has_cpus)
    ]
    return frozenset(wanted) if len(wanted) < len(nodes) else frozenset()


def measure(
    node: NodeMemory,
    readings: Sequence[PodMemory],
    pods: Sequence[PodIdentity],
    colocated: Mapping[PodUid, Bytes],
    far: frozenset[int],
    views: Sequence[UsageView],
) -> MemoryUsage:
    """The usage by the view that finds most in use online.

    `colocated` has, for each colocated pod, what the scheduler reserved for it besides its blocks.
    """
    measured = [_by(view, node, readings, pods, colocated, far) for view in views]
    return max(measured, key=lambda usage: usage.online)


def _by(
    view: UsageView,
    node: NodeMemory,
    readings: Sequence[PodMemory],
    pods: Sequence[PodIdentity],
    colocated: Mapping[PodUid, Bytes],
    far: frozenset[int],
) -> MemoryUsage:
    far_nodes = [each for each in node.numa if each.id in far]
    node_use, far_use, pod_use = _COUNTING[view]
    near = max(0, node.total - sum(each.total for each in far_nodes))
    far_taken = sum(far_use(each) for each in far_nodes)
    used = min(near, max(0, node_use(node) - far_taken))
    lent = {reading.uid: _on_far(reading, far, far_taken) for reading in readings}
    taken = {reading.uid: max(0, pod_use(reading) - lent[reading.uid]) for reading in readings}
    named = {pod.uid: pod for pod in pods}
    online_pods = [
        # Where the request is unknown, as of a static pod, the use counts as the request.
        OnlinePod(
            each.uid,
            each.qos,
            taken[each.uid],
            named[each.uid].request if each.uid in named else taken[each.uid],
        )
        for each in readings
        if each.uid not in colocated
    ]
    unread = [pod for pod in pods if pod.uid not in taken and pod.uid not in colocated]
    online_pods += [OnlinePod(pod.uid, pod.qos, None, pod.request) for pod in unread]
    sold = [reading for reading in readings if reading.uid in colocated]
    besides = {each.uid: min(each.working_set, colocated[each.uid]) for each in sold}
    online_pods += [
        OnlinePod(each.uid, each.qos, besides[each.uid], colocated[each.uid])
        for each in sold
        if colocated[each.uid]
    ]
    far_of_sold = {each.uid: min(lent[each.uid], each.working_set) for each in sold if each.numa is not None}
    system = max(0, used - sum(taken.values()))
    return MemoryUsage(
        capacity=near + sum(far_of_sold.values()),
        near=near,
        system=system,
        online_pods=tuple(online_pods),
        colocated={each.uid: each.working_set - besides[each.uid] for each in sold},
        besides=besides,
        far=far_of_sold,
        view=view,
        reasons=_reasons(view, node, near, system, online_pods, unread, sold, besides, far_of_sold),
    )


def _reasons(
    view: UsageView,
    node: NodeMemory,
    near: Bytes,
    system: Bytes,
    online_pods: Sequence[OnlinePod],
    unread: Sequence[PodIdentity],
    sold: Sequence[PodMemory],
    besides: Mapping[PodUid, Bytes],
    far_of_sold: Mapping[PodUid, Bytes],
) -> tuple[str, ...]:
    by_class = [
        f"{count(len(group), f'{qos} pod')} {amount(sum(counted(pod) for pod in group))}"
        for qos in QosClass
        if (group := [pod for pod in online_pods if pod.qos is qos])
    ]
    reasons = [
        f"According to {view}, {amount(system)} of {amount(near)} is used outside pods"
        + (f", and online pods use: {', '.join(by_class)}." if by_class else "; there are no online pods."),
    ]
    if near < node.total:
        reasons.append(
            f"Far NUMA nodes have {amount(node.total - near)} more, which the node does not offer."
        )
    if unread:
        names = some([pod.key for pod in unread])
        asked = amount(sum(pod.request for pod in unread))
        reasons.append(f"These pods cannot be read and count by their requests ({asked}): {names}.")
    if sold:
        total, away = sum(each.working_set for each in sold), sum(far_of_sold.values())
        there = f", {amount(away)} of it on far nodes" if away else ""
        reasons.append(
            f"{count(len(sold), 'colocated pod')} use{'s' * (len(sold) == 1)} {amount(total)}{there}."
        )
    if requested := sum(besides.values()):
        reasons.append(
            f"Of that, {amount(requested)} is memory requested besides blocks; it counts as online."
        )
    return tuple(reasons)


def firm(pod: PodMemory) -> Bytes:
    """A pod's memory that is not page cache: only its end or swap frees it."""
    return pod.anon + pod.shmem


def _on_far(pod: PodMemory, far: frozenset[int], far_taken: Bytes) -> Bytes:
    """A pod's memory on far nodes. Where unknown, the most that it can be, which deducts least from online use."""
    if pod.numa is None:
        return min(pod.working_set, far_taken)
    return sum(size for id, size in pod.numa.items() if id in far)


_Counting = tuple[Callable[[NodeMemory], Bytes], Callable[[NumaMemory], Bytes], Callable[[PodMemory], Bytes]]
_COUNTING: Mapping[UsageView, _Counting] = {
    UsageView.KERNEL: (
        lambda node: node.total - node.available,
        lambda numa: max(0, numa.total - numa.free - numa.file),
        firm,
    ),
    UsageView.KUBELET: (
        lambda node: node.working_set,
        lambda numa: max(0, numa.total - numa.free - numa.inactive_file),
        lambda pod: pod.working_set,
    ),
}
