"""What pods are measured to use, from the answers for CPU and memory. Pure."""

from collections.abc import Mapping

from colocate.cluster.usage.answers import Vector
from colocate.cluster.usage.claims import Sample
from colocate.cluster.usage.node_series import Counts, Joined, fault_of
from colocate.model.load import Amount, PodUsage

_GREATEST = 1e15
"""A petabyte."""


def join_pods(answer: Vector, now: float) -> Joined:
    """The samples of an answer, by namespace/name; of two for one pod the higher."""
    samples: dict[str, Sample] = {}
    count = dict.fromkeys(Counts.__struct_fields__, 0)
    for series in answer:
        count["series"] += 1
        if series is None:
            count["malformed"] += 1
            continue
        namespace, pod = series.labels.get("namespace"), series.labels.get("pod")
        if not namespace or not pod:
            count["unknown"] += 1
        elif fault := fault_of(series.value, _GREATEST):
            count[fault] += 1
        else:
            key = f"{namespace}/{pod}"
            known = samples.get(key)
            count["duplicate"] += known is not None
            samples[key] = Sample(max(0.0, series.value, known.value if known else 0.0), now)
    count["joined"] = len(samples)
    return Joined(samples=samples, counts=Counts(**count))


def pod_usages(cpu: Mapping[str, Sample], memory: Mapping[str, Sample]) -> dict[str, PodUsage]:
    """The use of pods of which both are known: half of it would be taken for the whole."""
    return {
        key: PodUsage(
            Amount(round(sample.value), round(memory[key].value)), min(sample.time, memory[key].time)
        )
        for key, sample in cpu.items()
        if key in memory
    }
