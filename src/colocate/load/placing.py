"""The pods on every node: what they add up to, what they are measured to use, what was estimated for them."""

from collections.abc import Iterable, Mapping

from colocate.load.building import NOTHING_PLACED, Placed
from colocate.load.calibration import Calibration
from colocate.load.demand import AS_ESTIMATED, Demand, Ratio, demand
from colocate.load.settings import Settings
from colocate.model.load import NOTHING, Amount, BoundPod, PodFacts, PodUsage

_DEMANDS = 10_000


class Pods:
    """Bound pods and their sums. Sums are of integers: however they came about, they are exact."""

    def __init__(self, settings: Settings, calibration: Calibration) -> None:
        self.calibration = calibration
        self._settings = settings
        self._bound: dict[str, BoundPod] = {}
        self._demands: dict[str, Demand] = {}
        self._corrections: dict[str, Ratio] = {}
        """By which a pod's estimate was corrected when it was bound, where it was."""
        self._usages: dict[str, PodUsage] = {}
        self._placed: dict[str, Placed] = {}
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
        self._demands[uid] = self._demand(bound.pod, ratio)
        self._count(uid, 1)
        return True

    def remove(self, uid: str) -> BoundPod | None:
        if uid not in self._bound:
            return None
        self._count(uid, -1)
        self._demands.pop(uid)
        self._corrections.pop(uid, None)
        self._usages.pop(uid, None)
        return self._bound.pop(uid)

    def measure(self, usages: Mapping[str, PodUsage]) -> None:
        """What pods are measured to use, all of them anew."""
        self._usages = {uid: usage for uid, usage in usages.items() if uid in self._bound}
        self._placed.clear()
        for uid in self._bound:
            self._count(uid, 1)

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
        return self._demands[uid]

    def get(self, uid: str) -> BoundPod | None:
        return self._bound.get(uid)

    def on(self, node: str) -> Placed:
        return self._placed.get(node, NOTHING_PLACED)

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
        alike = PodFacts("", "", pod.shape, priority_class=pod.priority_class, daemon=pod.daemon)
        known = self._alike.get(alike)
        if known is None:
            if len(self._alike) >= _DEMANDS:
                self._alike.clear()
            known = self._alike[alike] = demand(pod, settings.estimate, settings.packing)
        return known

    def _count(self, uid: str, sign: int) -> None:
        bound, demanded = self._bound[uid], self._demands[uid]
        before = self._placed.get(bound.node, NOTHING_PLACED)
        usage = self._usages.get(uid)
        prod = usage.amount if usage is not None and usage.prod and bound.pod.prod else NOTHING
        after = Placed(
            _plus(before.requested, demanded.request, sign),
            _plus(before.limits, demanded.limit, sign),
            _plus(before.estimates, demanded.estimate, sign),
            _plus(before.prod_usage, prod, sign),
        )
        if after == NOTHING_PLACED:
            self._placed.pop(bound.node, None)
        else:
            self._placed[bound.node] = after


def _plus(amount: Amount, other: Amount, sign: int) -> Amount:
    return Amount(amount.cpu + sign * other.cpu, amount.memory + sign * other.memory)
