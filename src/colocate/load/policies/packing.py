"""target-load-packing: fill nodes up to a target of CPU, best fit first; beyond it, the emptier the better."""

from colocate.load.demand import Demand
from colocate.load.settings import PackingSettings
from colocate.load.terms import NodeTerms, ScorePart
from colocate.model.go import go_round


class TargetLoadPacking:
    def __init__(self, settings: PackingSettings) -> None:
        self._target = settings.target_percent

    def score(self, node: NodeTerms, pod: Demand) -> int:
        return packed(predicted(node, pod), self._target) if node.cpu.known else 0

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[ScorePart, ...]:
        return (
            ScorePart("CPU", node.cpu.percent, " %"),
            ScorePart("CPU of unseen pods", node.packing_ledger, "m"),
            ScorePart("CPU of this pod", pod.packing_cpu, "m"),
            ScorePart("predicted CPU", predicted(node, pod), " %"),
            ScorePart("target", self._target, " %"),
        )


def predicted(node: NodeTerms, pod: Demand) -> float:
    """The node's CPU in percent with the pods that are not measured yet, and this one."""
    capacity = node.cpu.capacity
    if not capacity:
        return 0.0
    used = node.cpu.percent / 100 * capacity
    return 100 * (used + pod.packing_cpu + node.packing_ledger) / capacity


def packed(predicted: float, target: int) -> int:
    """From the target's own number at an idle node up to 100 at the target, then from it down to 0 at 100."""
    if predicted > 100:
        return 0
    if predicted > target:
        return go_round(target * (100 - predicted) / (100 - target))
    return go_round((100 - target) * predicted / target + target)
