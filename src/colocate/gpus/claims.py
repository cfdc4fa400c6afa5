"""Pods of a node that ask for GPUs in one dialect, with what they ask for and what they wish: who may be served.

Made anew from the API's words for every decision; nothing is kept.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from colocate.gpus.dialects import Dialect
from colocate.gpus.pods import GpuAsk, GpuAsks, GpuPod, asks_of
from colocate.gpus.settings import GpuSettings, Unassumed
from colocate.gpus.wishes import GpuWish, gpus_for, wish_of
from colocate.model.gpu import GpuInventory

_NEVER = 1 << 64
_NANOSECONDS = 1_000_000_000

DueGpus = Mapping[str, tuple[tuple[str, ...], ...]]
"""By uid, the GPUs by asking container where they are others than the annotations say yet."""


class GpuClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that asks for GPUs."""

    pod: GpuPod
    dialect: Dialect
    asks: GpuAsks
    wish: GpuWish

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def problem(self) -> str:
        """Why it cannot be served, whatever is free; empty where it can."""
        return self.asks.problem or self.wish.problem

    def ask(self, container: str) -> GpuAsk | None:
        return next((each for each in self.asks.containers if each.container == container), None)

    def gpus(self, container: str) -> tuple[str, ...]:
        """The GPUs that this container is due; nothing where nobody has chosen any."""
        return gpus_for(self.wish, self.asks.containers, container)

    @property
    def all_gpus(self) -> tuple[tuple[str, ...], ...]:
        """By asking container."""
        return tuple(self.gpus(each.container) for each in self.asks.containers)

    @property
    def rank(self) -> tuple[int, float]:
        """Who is served first where requests are equal: those that a scheduler of ours has booked, by its time.

        Others by theirs, but not before they were created: a tenant who writes an early time gains nothing by it. One
        that nobody booked counts from its creation; a booking without a time that can be read comes last.
        """
        time = self.wish.assume_time
        if self.wish.sealed:
            return 0, time or 0
        created = int(self.pod.created * _NANOSECONDS)
        if time is None:
            return 1, _NEVER if self.wish.is_booked else created
        return 1, max(time, created)


def claims_of(
    pods: Iterable[GpuPod],
    dialect: Dialect,
    inventory: GpuInventory,
    settings: GpuSettings,
    due: DueGpus | None = None,
) -> Mapping[str, GpuClaim]:
    """By uid, in the order in which they are served; of equals, as given. Pods that are ending are none."""
    claims = [
        claim
        for pod in pods
        if not pod.is_ending
        if (claim := claim_of(pod, dialect, inventory, settings, (due or {}).get(pod.uid))) is not None
    ]
    return {claim.uid: claim for claim in sorted(claims, key=lambda claim: claim.rank)}


def claim_of(
    pod: GpuPod,
    dialect: Dialect,
    inventory: GpuInventory,
    settings: GpuSettings,
    due: Sequence[Sequence[str]] | None = None,
) -> GpuClaim | None:
    """None where the pod asks for nothing in this dialect."""
    asks = asks_of(pod, dialect)
    if not asks:
        return None
    wish = wish_of(pod, dialect, asks.containers, inventory, settings.key)
    if due is not None:
        wish = msgspec.structs.replace(wish, gpus=tuple(tuple(each) for each in due), problem="")
    if not wish.problem and settings.unassumed is Unassumed.REFUSE:
        wish = msgspec.structs.replace(wish, problem=_unbooked(wish, dialect))
    return GpuClaim(pod=pod, dialect=dialect, asks=asks, wish=wish)


def _unbooked(wish: GpuWish, dialect: Dialect) -> str:
    missing = [
        key
        for key, there in (
            (wish.keys.assume_time, wish.assume_time is not None),
            (wish.keys.gpus, wish.is_booked),
        )
        if not there
    ]
    if not missing:
        return ""
    scheduler = f"schedulerName: {dialect.scheduler}" if dialect.scheduler else "its scheduler"
    return (
        f"it has no usable annotation {' and '.join(missing)}, which the GPU scheduler writes when it books; "
        f"see that the pod asks for {scheduler}, that this scheduler runs, and create the pod anew"
    )
