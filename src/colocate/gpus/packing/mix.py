"""What kinds of pods come, and how often: what a policy that looks ahead expects.

Told beforehand, as a replay may be (the statistics of the pod list, never its order), or learned from pods as they
are seen, which is all that a scheduler has.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from colocate.gpus.packing.fleet import Flags, Fleet, Floats, Ints, PackRequest
from colocate.model.gpu import CORES

POPULAR = 0.95
"""The part of all pods whose kinds are expected: the most popular ones. Rare kinds cost time and tell little."""
_MOST_KINDS = 128


class Mix(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Kinds of pods with GPUs, in order of popularity, as arrays."""

    kinds: Sequence[PackRequest] = ()
    weights: Floats = np.zeros(0)
    """How likely each is among all expected pods, those without a GPU included."""
    cpu: Floats = np.zeros(0)
    memory: Floats = np.zeros(0)
    gpus: Ints = np.zeros(0, np.int64)
    gpu_memory: Floats = np.zeros(0)
    gpu_cores: Floats = np.zeros(0)

    @property
    def has_cores(self) -> bool:
        return bool(self.gpu_cores.any())

    @property
    def has_models(self) -> bool:
        return any(kind.models for kind in self.kinds)

    def only(self, chosen: Flags) -> "Mix":
        """These kinds alone, as likely as before."""
        kinds = [kind for kind, is_chosen in zip(self.kinds, chosen, strict=True) if is_chosen]
        return Mix(
            kinds,
            self.weights[chosen],
            self.cpu[chosen],
            self.memory[chosen],
            self.gpus[chosen],
            self.gpu_memory[chosen],
            self.gpu_cores[chosen],
        )

    def suits(self, fleet: Fleet) -> Flags:
        """By model and kind: whether a GPU of the model will do."""
        return np.stack([fleet.suits(kind.models) for kind in self.kinds], axis=1)

    @property
    def cores_part(self) -> Floats:
        return self.gpu_cores / CORES


def mix_of(counts: Mapping[PackRequest, int], popular: float = POPULAR) -> Mix:
    """The most popular kinds that make up this part of all pods."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], _order(item[0])))
    total, reached, expected = sum(counts.values()), 0, []
    for kind, count in ranked[:_MOST_KINDS]:
        expected.append((kind, count))
        reached += count
        if reached >= popular * total:
            break
    seen = sum(count for _, count in expected)
    chosen = [(kind, count) for kind, count in expected if kind.gpus > 0]
    if not chosen:
        return Mix()
    kinds = [kind for kind, _ in chosen]
    return Mix(
        kinds,
        np.array([count / seen for _, count in chosen]),
        np.array([float(kind.cpu) for kind in kinds]),
        np.array([float(kind.memory) for kind in kinds]),
        np.array([kind.gpus for kind in kinds], np.int64),
        np.array([float(kind.gpu_memory) for kind in kinds]),
        np.array([float(kind.gpu_cores) for kind in kinds]),
    )


def _order(kind: PackRequest) -> tuple[object, ...]:
    return msgspec.structs.astuple(kind)


class LearnedMix:
    """A mix of the pods seen so far. It is computed again when a fifth more were seen, and no more often, since that
    voids what policies have remembered."""

    _FIRST = 20
    _MOST_SEEN = 20_000
    """Beyond this, what was seen long ago counts half."""
    _MOST_COUNTED = 2_000
    """Kinds that are counted: a tenant may make up as many as he likes."""

    def __init__(self, seen: Iterable[PackRequest] = ()) -> None:
        self.latest = Mix()
        self._counts: dict[PackRequest, int] = {}
        self._seen = 0
        self._next = self._FIRST
        for request in seen:
            self.see(request)

    def see(self, request: PackRequest) -> bool:
        """A pod has come; whether the mix is another now."""
        self._counts[request] = self._counts.get(request, 0) + 1
        self._seen += 1
        if self._seen < self._next and len(self._counts) <= self._MOST_COUNTED:
            return False
        if self._seen >= self._MOST_SEEN or len(self._counts) > self._MOST_COUNTED:
            self._counts = {kind: count // 2 for kind, count in self._counts.items() if count > 1}
            self._seen = sum(self._counts.values())
        self.latest = mix_of(self._counts)
        self._next = max(self._FIRST, self._seen + self._seen // 5)
        return True
