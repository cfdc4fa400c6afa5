"""The pods on every node: what they add up to, what they are measured to use, what was estimated for them."""

from collections.abc import Iterable, Mapping

from colocate.load.demand import AS_ESTIMATED, Calibration, Demand, Ratio, demand
from colocate.load.settings import LoadSettings
from colocate.load.terms import NOTHING_PLACED, PodTotals
from colocate.model.load import Amount, BoundPod, PodFacts, PodUsage

_DEMANDS = 10_000


class Pods:
    """Bound pods, by node. What a node's pods add up to is worked out when it is asked for, and kept."""

    def __init__(self, settings: LoadSettings, calibration: Calibration) -> None:
        self.calibration = calibration
        self._settings = settings
        self._bound: dict[str, BoundPod] = {}
        self._corrections: dict[str, Ratio] = {}
        """By which a pod's estimate was corrected when it was bound, where it was."""
        self._usages: dict[str, PodUsage] = {}
        self._on: dict[str, dict[str, Demand]] = {}
        self._placed: dict[str, PodTotals] = {}
        self._alike: dict[PodFacts, Demand] = {}

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
        self._placed.pop(bound.node, None)
        return True

    def remove(self, uid: str) -> BoundPod | None:
        bound = self._bound.pop(uid, None)
        if bound is None:
            return None
        on_node = self._on[bound.node]
        del on_node[uid]
        if not on_node:
            del self._on[bound.node]
        self._placed.pop(bound.node, None)
        self._corrections.pop(uid, None)
        self._usages.pop(uid, None)
        return bound

    def measure(self, usages: Mapping[str, PodUsage]) -> None:
        """What pods are measured to use, all of them anew. What a node's pods add up to is worked out again only
        where a usage counts, or did: that of a prod pod."""
        before = self._usages
        self._usages = {uid: usage for uid, usage in usages.items() if uid in self._bound}
        for measured in (before, self._usages):
            for uid, usage in measured.items():
                if usage.prod:
                    self._placed.pop(self._bound[uid].node, None)

    def learn(self, uids: Iterable[str]) -> None:
        """Compare what these pods use with what was estimated, for those of their owners to come."""
        for uid in uids:
            usage = self._usages.get(uid)
            if usage is not None:
                pod = self._bound[uid].pod
                estimate = self._demand(pod, AS_ESTIMATED).estimate
                self.calibration.learn(pod.owner, estimate, usage.amount)

    def demand(self, pod: PodFacts) -> Demand:
        """What a pod brings, by what its owner's pods have used so far."""
        return self._demand(pod, self._ratio(pod))

    def demand_of(self, uid: str) -> Demand:
        return self._on[self._bound[uid].node][uid]

    def get(self, uid: str) -> BoundPod | None:
        return self._bound.get(uid)

    def on(self, node: str) -> PodTotals:
        """What the pods there add up to."""
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

    def _demand(self, pod: PodFacts, ratio: Ratio) -> Demand:
        settings = self._settings
        if ratio != AS_ESTIMATED:
            return demand(pod, settings.estimate, settings.packing, ratio)
        # Shapes are few where pods are many.
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
