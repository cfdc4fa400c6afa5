"""What a node's pods use now, each by its own measurement, and how far that will swing.

A node's samples are averages: they still show pods that have left, and hardly show those that have just come. Where
its pods are measured one by one, the node is taken to use what they do, and what its samples show besides: kubelet,
daemons, whatever is no pod. Pods of one owner are busy at the same time, so their swings add up; those of different
owners partly cancel out.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from colocate.load.calibration import NO_SWING, Calibration
from colocate.load.demand import Demand
from colocate.model.load import NOTHING, Amount, BoundPod, NodeLoad, PodUsage


class Departed(msgspec.Struct, frozen=True):
    """A pod that has left, while a node's samples still show it."""

    uid: str
    at: float
    since: float
    used: Amount


class PodsMeasured(msgspec.Struct, frozen=True, gc=False):
    """What the pods of a node add up to. Whole numbers: sums are the same in whatever order they are made."""

    pods: int = 0
    """Measured."""
    used: Amount = NOTHING
    shown: Amount = NOTHING
    """Of that, and of what has left, what the node's samples show."""
    swing: Amount = NOTHING
    """The standard deviation."""


NOT_MEASURED_BY_POD = PodsMeasured()


class NodeUse(msgspec.Struct, frozen=True):
    """The same before a node's samples are looked at; it holds until a pod comes, goes or is measured again."""

    pods: int
    used: Amount
    swing: Amount
    since: float
    """Samples of this time, and younger ones, show all of it but the young pods."""
    settled: Amount
    young: tuple[tuple[float, Amount], ...]
    """When each was bound, and what it uses."""


def node_use(
    demands: Mapping[str, Demand],
    bound: Mapping[str, BoundPod],
    usages: Mapping[str, PodUsage],
    calibration: Calibration,
    sampled_at: float,
    window: float,
) -> NodeUse:
    """`sampled_at` is when the node's samples were taken, which average the `window` before."""
    count = cpu = memory = settled_cpu = settled_memory = 0
    swings: dict[str, tuple[int, int]] = {}
    young: list[tuple[float, Amount]] = []
    begins = sampled_at - window
    swing_of, usage_of = calibration.swing, usages.get
    for uid, demand in demands.items():
        on_node = bound[uid]
        owner = on_node.pod.owner
        swing = swing_of(owner)
        if swing is not NO_SWING:
            stated = demand.stated
            of_cpu, of_memory = swings.get(owner, (0, 0))
            swings[owner] = (
                of_cpu + int(stated.cpu * swing.cpu),
                of_memory + int(stated.memory * swing.memory),
            )
        usage = usage_of(uid)
        if usage is None:
            continue
        amount = usage.amount
        count += 1
        cpu += amount.cpu
        memory += amount.memory
        if on_node.bound_at <= begins:
            settled_cpu += amount.cpu
            settled_memory += amount.memory
        else:
            young.append((on_node.bound_at, amount))
    return NodeUse(
        count,
        Amount(cpu, memory),
        Amount(
            math.isqrt(sum(of_cpu**2 for of_cpu, _ in swings.values())),
            math.isqrt(sum(of_memory**2 for _, of_memory in swings.values())),
        ),
        sampled_at,
        Amount(settled_cpu, settled_memory),
        tuple(young),
    )


def measured(use: NodeUse, departed: Sequence[Departed], sampled_at: float, window: float) -> PodsMeasured:
    """Next to samples of that time, no older than those by which `use` was worked out."""
    if not use.pods:
        return NOT_MEASURED_BY_POD
    cpu, memory = use.settled.cpu, use.settled.memory
    for bound_at, amount in use.young:
        share = _share(sampled_at - bound_at, window)
        cpu += int(amount.cpu * share)
        memory += int(amount.memory * share)
    for one in departed:
        share = _share(sampled_at - one.since, window) - _share(sampled_at - one.at, window)
        cpu += int(one.used.cpu * share)
        memory += int(one.used.memory * share)
    return PodsMeasured(use.pods, use.used, Amount(cpu, memory), use.swing)


def percents(load: NodeLoad, capacity: Amount, pods: PodsMeasured) -> tuple[float | None, float | None]:
    """What the node uses now, in percent of its capacity; None where that is not known better than by its samples."""
    if not pods.pods:
        return None, None
    return (
        None if load.cpu is None else _percent(load.cpu.percent, capacity.cpu, pods.used.cpu, pods.shown.cpu),
        None
        if load.memory is None
        else _percent(load.memory.percent, capacity.memory, pods.used.memory, pods.shown.memory),
    )


def _percent(sampled: float, capacity: int, used: int, shown: int) -> float | None:
    if capacity <= 0:
        return None
    besides = max(0.0, sampled * capacity / 100 - shown)
    return (besides + used) * 100 / capacity


def _share(since: float, window: float) -> float:
    """Of the window, how much lies after what was so many seconds before its end."""
    if window <= 0:
        return 1.0 if since >= 0 else 0.0
    return min(max(since / window, 0.0), 1.0)
