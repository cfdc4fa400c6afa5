"""From a pod of the API to what packing asks: how many GPUs, how much of each, and which container gets which.

Containers of one pod share GPUs where that fits: one list of GPUs serves them all, and a container that asks for
fewer takes the first of it. Else each gets GPUs of its own.
"""

from collections.abc import Sequence

import msgspec

from colocate.gpus.book import ContainerBooking, PodBooking
from colocate.gpus.dialects import Dialect
from colocate.gpus.packing.fleet import PackRequest
from colocate.gpus.pods import MOST_GPUS, GpuAsk, GpuPod, asks_of
from colocate.gpus.read_keys import LONGEST_MODELS, MODELS
from colocate.model.gpu import CORES
from colocate.model.pod import peak

_MOST_MODELS = 16


class GpuDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod asks for."""

    dialect: Dialect
    asks: tuple[GpuAsk, ...]
    together: PackRequest
    """All containers on the same GPUs."""
    apart: PackRequest | None = None
    """Each container on GPUs of its own, each as large as the largest needs; None where there is but one."""

    @property
    def ways(self) -> tuple[PackRequest, ...]:
        return (self.together,) if self.apart is None else (self.together, self.apart)

    def given(self, way: PackRequest, gpus: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """By asking container, its part of the GPUs that the pod gets."""
        if way == self.together:
            return tuple(tuple(gpus[: ask.count]) for ask in self.asks)
        lists, start = [], 0
        for ask in self.asks:
            if ask.init and not ask.sidecar:
                lists.append(tuple(gpus[: ask.count]))
                continue
            lists.append(tuple(gpus[start : start + ask.count]))
            start += ask.count
        return tuple(lists)

    def booking(self, pod: GpuPod, given: Sequence[Sequence[str]]) -> PodBooking:
        """What the book says of a pod that gets these GPUs, by asking container."""
        return booking_of(pod, self.asks, given)


def booking_of(pod: GpuPod, asks: Sequence[GpuAsk], given: Sequence[Sequence[str]]) -> PodBooking:
    """What the book says of a pod that asks so and gets these GPUs, by asking container."""
    return PodBooking(
        uid=pod.uid,
        key=pod.key,
        containers=tuple(
            ContainerBooking(
                container=ask.container,
                gpus=tuple(gpus),
                memory=ask.memory,
                cores=ask.cores,
                init=ask.init,
                sidecar=ask.sidecar,
            )
            for ask, gpus in zip(asks, given, strict=True)
        ),
    )


def demand_of(pod: GpuPod, dialects: Sequence[Dialect], cpu: int = 0, memory: int = 0) -> GpuDemand | None:
    """What a pod asks for beside CPU and memory; None where it asks for no GPU. ValueError says what is wrong."""
    asking = [(dialect, asks) for dialect in dialects if (asks := asks_of(pod, dialect))]
    if not asking:
        return None
    (dialect, asks), *others = asking
    if asks.problem:
        raise ValueError(asks.problem)
    if others:
        raise ValueError(f"it asks for {dialect.memory} and {others[0][0].memory}; ask for one of them")
    containers = asks.containers
    words = _models(pod)
    together = PackRequest(
        cpu,
        memory,
        max(ask.count for ask in containers),
        _peak(containers, "memory"),
        _peak(containers, "cores"),
        words,
    )
    apart = None
    running = [ask for ask in containers if not ask.init or ask.sidecar]
    if len(containers) > 1 and running:
        apart = PackRequest(
            cpu,
            memory,
            max(sum(ask.count for ask in running), *(ask.count for ask in containers)),
            max(ask.memory for ask in containers),
            max(ask.cores for ask in containers),
            words,
        )
    most = max(way.gpus for way in (together, apart) if way is not None)
    if most > MOST_GPUS:
        raise ValueError(f"it asks for {most} GPUs; no node has more than {MOST_GPUS}")
    if together.gpu_cores > CORES and apart is not None:
        # Together they need more than any GPU has.
        together, apart = apart, None
    return GpuDemand(dialect=dialect, asks=containers, together=together, apart=apart)


def _peak(asks: Sequence[GpuAsk], what: str) -> int:
    return peak(
        (getattr(ask, what) for ask in asks if not ask.init),
        [(getattr(ask, what), ask.sidecar) for ask in asks if ask.init],
    )


def _models(pod: GpuPod) -> tuple[str, ...]:
    text = pod.annotations.get(MODELS, "")
    words = tuple(sorted({word.strip() for word in text[: LONGEST_MODELS + 1].split("|")} - {""}))
    if len(text) > LONGEST_MODELS or len(words) > _MOST_MODELS:
        raise ValueError(f"its annotation {MODELS} names too many models; name at most {_MOST_MODELS}")
    return words
