"""load-aware: the weighted free percentage of a node, with pods that are not measured yet and this one."""

from colocate.load.demand import Demand
from colocate.load.settings import LoadAwareSettings
from colocate.load.terms import NodeTerms, ScorePart
from colocate.model.load import Amount


class LoadAware:
    def __init__(self, settings: LoadAwareSettings) -> None:
        self._settings = settings

    def score(self, node: NodeTerms, pod: Demand) -> int:
        if not node.known:
            return 0
        cpu, memory = self._free(node, pod)
        settings = self._settings
        weights = settings.cpu_weight + settings.memory_weight + settings.dominant_weight
        if weights <= 0:
            return 0
        weighted = cpu * settings.cpu_weight + memory * settings.memory_weight
        return (weighted + min(cpu, memory) * settings.dominant_weight) // weights

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[ScorePart, ...]:
        cpu, memory = self._free(node, pod)
        used = self._used(node, pod)
        return (
            ScorePart("CPU used", used.cpu, "m"),
            ScorePart("memory used", used.memory / (1 << 20), " MiB"),
            ScorePart("CPU of this pod", pod.estimate.cpu, "m"),
            ScorePart("memory of this pod", pod.estimate.memory / (1 << 20), " MiB"),
            ScorePart("CPU free", cpu, " %"),
            ScorePart("memory free", memory, " %"),
        )

    def _used(self, node: NodeTerms, pod: Demand) -> Amount:
        return node.aware.prod if self._settings.by_prod_usage and pod.prod else node.aware.score

    def _free(self, node: NodeTerms, pod: Demand) -> tuple[int, int]:
        used = self._used(node, pod)
        return (
            _free_percent(used.cpu + pod.estimate.cpu, node.cpu.room),
            _free_percent(used.memory + pod.estimate.memory, node.memory.room),
        )


def _free_percent(used: int, room: int) -> int:
    return (room - used) * 100 // room if used <= room and room else 0
