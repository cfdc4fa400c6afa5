"""The pods on every node: their sums of requests, limits and estimates, and what they are measured to use.

A node's samples are averages: they still show pods that have left, and hardly show pods that have just come. Where
its pods are measured one by one, the node is taken to use what they use now, plus what its samples show besides:
kubelet, daemons, other processes. Pods of one owner are busy at the same time, so their swings add up; swings of
different owners partly cancel out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from colocate.load.demand import AS_ESTIMATED, NO_SWING, Calibration, Demand, OwnerUse, Ratio, demand
from colocate.load.settings import LoadSettings
from colocate.model.load import NOTHING, Amount, BoundPod, NodeLoad, PodFacts, PodUsage

_DEMANDS = 10_000
_STEP = 1000
"""Pods in one step of learning, which takes about a millisecond."""


class PodTotals(msgspec.Struct, frozen=True, gc=False):
    """Sums over the pods on a node."""

    requested: Amount = NOTHING
    limits: Amount = NOTHING
    estimates: Amount = NOTHING
    prod_usage: Amount = NOTHING
    prod_guessed: Amount = NOTHING
    """Estimates of prod pods that are not measured, whether the ledger has them or not."""


NOTHING_PLACED = PodTotals()


class Departed(msgspec.Struct, frozen=True):
    """A pod that has left, while a node's samples still show it."""

    uid: str
    at: float
    since: float
    used: Amount


class PodsMeasured(msgspec.Struct, frozen=True, gc=False):
    """Sums over the measured pods of a node. Whole numbers: their sums do not depend on the order."""

    pods: int = 0
    """How many are measured."""
    used: Amount = NOTHING
    shown: Amount = NOTHING
    """The part of their use, and of departed pods' use, that the node's samples show."""
    swing: Amount = NOTHING
    """The standard deviation of their use."""


NOT_MEASURED_BY_POD = PodsMeasured()


class NodeUse(msgspec.Struct, frozen=True):
    """Sums over a node's measured pods that stay until a pod comes, goes or is measured again."""

    pods: int
    used: Amount
    swing: Amount
    since: float
    """Samples of this time or later show `settled` in full."""
    settled: Amount
    young: tuple[tuple[float, Amount], ...]
    """Pods that samples show in part: when each was bound, and what it uses."""


class Pods:
    """Bound pods, by node. Sums over a node's pods are computed when asked for, and kept."""

    def __init__(self, settings: LoadSettings, calibration: Calibration) -> None:
        self.calibration = calibration
        self._settings = settings
        self._bound: dict[str, BoundPod] = {}
        self._corrections: dict[str, Ratio] = {}
        """By uid, the ratio by which a pod's estimate was corrected when it was bound, unless 1."""
        self._usages: dict[str, PodUsage] = {}
        self._on: dict[str, dict[str, Demand]] = {}
        self._placed: dict[str, PodTotals] = {}
        self._alike: dict[PodFacts, Demand] = {}
        self._in_use: dict[str, NodeUse] = {}
        """By node; dropped when its pods change."""
        self._departed: dict[str, list[Departed]] = {}
        """By node, pods that its samples may still show."""

    def add(self, bound: BoundPod, correction: Ratio | None = None) -> bool:
        """False where nothing is new."""
        uid = bound.pod.uid
        before = self._bound.get(uid)
        if before == bound:
            return False
        if before is not None:
            correction = correction or self._corrections.get(uid, AS_ESTIMATED)
            self.remove(uid)
        ratio = correction or self._ratio(bound.pod)
        if ratio != AS_ESTIMATED:
            self._corrections[uid] = ratio
        self._bound[uid] = bound
        self._on.setdefault(bound.node, {})[uid] = self._demand(bound.pod, ratio)
        self._changed(bound.node)
        return True

    def remove(self, uid: str, now: float | None = None) -> BoundPod | None:
        """With `now`, the pod has left, and is remembered for as long as samples may show it."""
        bound = self._bound.pop(uid, None)
        if bound is None:
            return None
        usage = self._usages.get(uid)
        if usage is not None and now is not None:
            left = Departed(uid, now, bound.bound_at, usage.amount)
            self._departed.setdefault(bound.node, []).append(left)
        on_node = self._on[bound.node]
        del on_node[uid]
        if not on_node:
            del self._on[bound.node]
        self._changed(bound.node)
        self._corrections.pop(uid, None)
        self._usages.pop(uid, None)
        return bound

    def measure(self, usages: Mapping[str, PodUsage]) -> None:
        """Take the measured use of all pods, and learn from it."""
        self.take_usages(usages)
        for _ in self.learning():
            pass

    def take_usages(self, usages: Mapping[str, PodUsage]) -> None:
        """Take the measured use of all pods, and learn nothing. A node's sums are dropped only where they contain a
        usage: that of a prod pod."""
        before = self._usages
        self._in_use.clear()
        self._usages = {uid: usage for uid, usage in usages.items() if uid in self._bound}
        for usages_then in (before, self._usages):
            for uid, usage in usages_then.items():
                if usage.prod:
                    self._placed.pop(self._bound[uid].node, None)

    def learning(self) -> Iterator[None]:
        """Learn from what pods use, in short steps, for later pods of their owners. Pods that samples do not show in
        full yet are left out."""
        uses: dict[str, OwnerUse] = {}
        latest: dict[str, float] = {}
        known, on, window = self._bound, self._on, self._settings.ledger.window
        for number, (uid, usage) in enumerate(list(self._usages.items())):
            if number % _STEP == 0:
                yield
            bound = known.get(uid)
            if bound is None or usage.time < bound.bound_at + window:
                continue
            owner = bound.pod.owner
            use = uses.get(owner)
            if use is None:
                use = uses[owner] = OwnerUse()
            stated, actual = on[bound.node][uid].stated, usage.amount
            use.pods += 1
            use.estimate_cpu += stated.cpu
            use.estimate_memory += stated.memory
            use.cpu += actual.cpu
            use.memory += actual.memory
            if usage.time > latest.get(owner, 0.0):
                latest[owner] = usage.time
        for number, (owner, use) in enumerate(uses.items()):
            if number % _STEP == 0:
                yield
            self.calibration.learn(owner, use, latest[owner])
        self.calibration.learn_overall(uses.values())
        self._in_use.clear()

    def measured(self, node: str, sampled_at: float | None) -> PodsMeasured:
        """What the pods there are measured to use, compared with the node's samples of that time."""
        demands = self._on.get(node)
        if not self._usages or sampled_at is None or demands is None:
            return NOT_MEASURED_BY_POD
        window, use = self._settings.ledger.window, self._in_use.get(node)
        if use is None or sampled_at < use.since:
            use = node_use(demands, self._bound, self._usages, self.calibration, sampled_at, window)
            self._in_use[node] = use
        return measured(use, self._departed.get(node, ()), sampled_at, window)

    def _changed(self, node: str) -> None:
        self._placed.pop(node, None)
        self._in_use.pop(node, None)

    def forget_departed(self, now: float) -> None:
        """Forget departed pods that no sample shows any more."""
        for node, departed in list(self._departed.items()):
            kept = [one for one in departed if one.at > now - 2 * self._settings.ledger.window]
            if kept:
                self._departed[node] = kept
            else:
                del self._departed[node]

    def restore_departed(self, departed: Mapping[str, tuple[Departed, ...]]) -> None:
        self._departed = {node: list(of_node) for node, of_node in departed.items()}

    @property
    def departed(self) -> Mapping[str, tuple[Departed, ...]]:
        return {node: tuple(of_node) for node, of_node in self._departed.items()}

    def demand(self, pod: PodFacts) -> Demand:
        """The pod's demand, corrected by what its owner's pods have used so far."""
        if not self._settings.estimate.calibrate:
            return self._demand(pod, AS_ESTIMATED)
        return self._demand(pod, self._ratio(pod), self.calibration.swing(pod.owner))

    def demand_of(self, uid: str) -> Demand:
        return self._on[self._bound[uid].node][uid]

    def get(self, uid: str) -> BoundPod | None:
        return self._bound.get(uid)

    def on(self, node: str) -> PodTotals:
        """The sums over the pods there."""
        placed = self._placed.get(node)
        if placed is None:
            placed = self._placed[node] = self._sum(self._on[node]) if node in self._on else NOTHING_PLACED
        return placed

    def usage(self, uid: str) -> PodUsage | None:
        return self._usages.get(uid)

    @property
    def bound(self) -> Mapping[str, BoundPod]:
        return self._bound

    @property
    def usages(self) -> Mapping[str, PodUsage]:
        return self._usages

    @property
    def corrections(self) -> Mapping[str, Ratio]:
        return self._corrections

    def _ratio(self, pod: PodFacts) -> Ratio:
        return self.calibration.ratio(pod.owner) if self._settings.estimate.calibrate else AS_ESTIMATED

    def _demand(self, pod: PodFacts, ratio: Ratio, swing: Ratio = NO_SWING) -> Demand:
        settings = self._settings
        if ratio != AS_ESTIMATED or swing != NO_SWING:
            return demand(pod, settings.estimate, settings.packing, ratio, swing)
        # Many pods share few shapes.
        alike = PodFacts(
            "", "", pod.shape, priority_class=pod.priority_class, daemon=pod.daemon, by_class=pod.by_class
        )
        known = self._alike.get(alike)
        if known is None:
            if len(self._alike) >= _DEMANDS:
                self._alike.clear()
            known = self._alike[alike] = demand(pod, settings.estimate, settings.packing)
        return known

    def _sum(self, pods: Mapping[str, Demand]) -> PodTotals:
        cpu = memory = cpu_limits = memory_limits = cpu_estimates = memory_estimates = 0
        prod_cpu = prod_memory = guessed_cpu = guessed_memory = 0
        for uid, asked in pods.items():
            cpu += asked.request.cpu
            memory += asked.request.memory
            cpu_limits += asked.limit.cpu
            memory_limits += asked.limit.memory
            cpu_estimates += asked.estimate.cpu
            memory_estimates += asked.estimate.memory
            if asked.prod:
                usage = self._usages.get(uid)
                if usage is not None and usage.prod:
                    prod_cpu += usage.amount.cpu
                    prod_memory += usage.amount.memory
                else:
                    guessed_cpu += asked.estimate.cpu
                    guessed_memory += asked.estimate.memory
        return PodTotals(
            Amount(cpu, memory),
            Amount(cpu_limits, memory_limits),
            Amount(cpu_estimates, memory_estimates),
            Amount(prod_cpu, prod_memory),
            Amount(guessed_cpu, guessed_memory),
        )


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
    for uid, brought in demands.items():
        on_node = bound[uid]
        owner = on_node.pod.owner
        swing = swing_of(owner)
        if swing is not NO_SWING:
            stated = brought.stated
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
    """`sampled_at` is no older than the samples that `use` was computed for."""
    if not use.pods:
        return NOT_MEASURED_BY_POD
    cpu, memory = use.settled.cpu, use.settled.memory
    for bound_at, amount in use.young:
        share = _shown_share(sampled_at - bound_at, window)
        cpu += int(amount.cpu * share)
        memory += int(amount.memory * share)
    for one in departed:
        share = _shown_share(sampled_at - one.since, window) - _shown_share(sampled_at - one.at, window)
        cpu += int(one.used.cpu * share)
        memory += int(one.used.memory * share)
    return PodsMeasured(use.pods, use.used, Amount(cpu, memory), use.swing)


def percents(load: NodeLoad, capacity: Amount, pods: PodsMeasured) -> tuple[float | None, float | None]:
    """What the node uses now, in percent of its capacity; None where only its samples tell."""
    if not pods.pods:
        return None, None
    return (
        None
        if load.cpu is None
        else _now_percent(load.cpu.percent, capacity.cpu, pods.used.cpu, pods.shown.cpu),
        None
        if load.memory is None
        else _now_percent(load.memory.percent, capacity.memory, pods.used.memory, pods.shown.memory),
    )


def _now_percent(sampled: float, capacity: int, used: int, shown: int) -> float | None:
    if capacity <= 0:
        return None
    besides = max(0.0, sampled * capacity / 100 - shown)
    return (besides + used) * 100 / capacity


def _shown_share(since: float, window: float) -> float:
    """The share of the window that lies after an event `since` seconds before its end."""
    if window <= 0:
        return 1.0 if since >= 0 else 0.0
    return min(max(since / window, 0.0), 1.0)
