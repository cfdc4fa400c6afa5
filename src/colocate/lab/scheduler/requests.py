"""Sums the requests of pods, and keeps the running total of a node. Pure; totals are never recomputed.

CPU is in thousandths, everything else in whole units, both rounded up.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

import msgspec

from colocate.model import quantity
from colocate.model.pod import peak

Quantities: TypeAlias = dict[str, str | int | float]
Amounts: TypeAlias = dict[str, int]

CPU = "cpu"
MEMORY = "memory"
ASSUMED: Mapping[str, int] = {CPU: 100, MEMORY: 200 * 1024**2}
"""Assumed requests of containers without any, for scoring nodes; never for filtering."""
_POD_LEVEL = (CPU, MEMORY)


class RequestedResources(msgspec.Struct, frozen=True):
    requests: Quantities = {}


class ScheduledContainer(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of a container that count here."""

    resources: RequestedResources = RequestedResources()
    restart_policy: str | None = None

    @property
    def is_sidecar(self) -> bool:
        """Whether it is an init container that keeps running beside the others."""
        return self.restart_policy == "Always"


class PodRequests(msgspec.Struct, frozen=True):
    """The requests of a whole pod."""

    amounts: Amounts = {}
    """Amounts by resource, without zeros."""
    scored_cpu: int = ASSUMED[CPU]
    scored_memory: int = ASSUMED[MEMORY]
    """The memory for scoring, with the assumed requests."""

    @property
    def is_best_effort(self) -> bool:
        return not self.amounts.get(CPU) and not self.amounts.get(MEMORY)


@lru_cache(maxsize=4096)
def _amount(name: str, text: str | int | float) -> int:
    # Cached: a cluster repeats the same few quantities.
    return quantity.milli(text) if name == CPU else quantity.whole(text)


def amounts_of(quantities: Quantities) -> Amounts:
    """Quantities as integers. ValueError where one is invalid."""
    return {name: _amount(name, text) for name, text in quantities.items()}


def pod_requests(
    containers: Iterable[ScheduledContainer],
    init_containers: Iterable[ScheduledContainer] = (),
    overhead: Quantities | None = None,
    pod_level: Quantities | None = None,
) -> PodRequests:
    """The peak requests of a pod: all containers and sidecars, or the largest init step before them.

    Pod-level CPU and memory replace the sum over the containers.
    """
    containers, init_containers = tuple(containers), tuple(init_containers)
    needed = _peak(containers, init_containers, {})
    scored = _peak(containers, init_containers, ASSUMED)
    whole = {name: amount for name, amount in amounts_of(pod_level or {}).items() if name in _POD_LEVEL}
    extra = amounts_of(overhead or {})
    for total in (needed, scored):
        total.update(whole)
        _add(total, extra)
    needed = {name: amount for name, amount in needed.items() if amount}
    return PodRequests(needed, scored.get(CPU, 0), scored.get(MEMORY, 0))


def _peak(
    containers: tuple[ScheduledContainer, ...],
    init_containers: tuple[ScheduledContainer, ...],
    assumed: Mapping[str, int],
) -> Amounts:
    running = [_requests(container, assumed) for container in containers]
    init = [(_requests(container, assumed), container.is_sidecar) for container in init_containers]
    names = dict.fromkeys(name for wanted in (*running, *(each for each, _ in init)) for name in wanted)
    return {
        name: peak(
            (wanted.get(name, 0) for wanted in running),
            ((wanted.get(name, 0), is_sidecar) for wanted, is_sidecar in init),
        )
        for name in names
    }


def _requests(container: ScheduledContainer, assumed: Mapping[str, int]) -> Amounts:
    return {**assumed, **amounts_of(container.resources.requests)}


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


class Account:
    """The requests of the pods of one node. Adding and removing a pod costs the same on a full node."""

    __slots__ = ("_entered", "requested", "scored_cpu", "scored_memory")

    def __init__(self) -> None:
        self._entered: dict[str, PodRequests] = {}
        self.requested: Amounts = {}
        self.scored_cpu = 0
        self.scored_memory = 0

    @property
    def pods(self) -> int:
        return len(self._entered)

    def __contains__(self, uid: str) -> bool:
        return uid in self._entered

    def enter(self, uid: str, wanted: PodRequests) -> None:
        """Add a pod's requests; a pod that is already there is not counted twice."""
        self.leave(uid)
        self._entered[uid] = wanted
        _add(self.requested, wanted.amounts)
        self.scored_cpu += wanted.scored_cpu
        self.scored_memory += wanted.scored_memory

    def leave(self, uid: str) -> bool:
        """Remove a pod's requests; returns whether it was there."""
        held = self._entered.pop(uid, None)
        if held is None:
            return False
        for name, amount in held.amounts.items():
            self.requested[name] -= amount
            if not self.requested[name]:
                del self.requested[name]
        self.scored_cpu -= held.scored_cpu
        self.scored_memory -= held.scored_memory
        return True

    def copy(self) -> "Account":
        """A copy for trial changes."""
        other = Account()
        other._entered = dict(self._entered)
        other.requested = dict(self.requested)
        other.scored_cpu, other.scored_memory = self.scored_cpu, self.scored_memory
        return other
