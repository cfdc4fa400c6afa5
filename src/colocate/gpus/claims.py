"""Pods of a node that ask for GPUs in one dialect, with what they ask for and what they wish: who may be served.

Made from the API's objects for every decision; nothing is kept.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from colocate.gpus.dialects import Dialect
from colocate.gpus.pods import GpuAsk, GpuAsks, GpuPod, asks_of
from colocate.gpus.read_keys import SEAL
from colocate.gpus.settings import GpuSettings, Unassumed
from colocate.gpus.wishes import GpuWish, all_gpus_for, booked_wish, gpus_for
from colocate.model.gpu import GpuInventory

_NEVER = 1 << 64
_NANOSECONDS = 1_000_000_000


class DueGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that a scheduler of ours or a swap has given to a pod, whatever its annotations say later."""

    gpus: tuple[tuple[str, ...], ...]
    """UUIDs by asking container."""
    number: int = 0
    """Number of the seal; 0 where it has none."""

    @property
    def sealed(self) -> bool:
        return self.number > 0

    def suits(self, asks: Sequence[GpuAsk], inventory: GpuInventory) -> bool:
        """Whether it still matches the requests, and all its GPUs are still on the node."""
        return len(self.gpus) == len(asks) and all(
            len(given) == ask.count and all(inventory.get(uuid) is not None for uuid in given)
            for given, ask in zip(self.gpus, asks, strict=True)
        )


Dues = Mapping[tuple[str, str], DueGpus]
"""By uid and resource."""


class GpuClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that asks for GPUs."""

    pod: GpuPod
    dialect: Dialect
    asks: GpuAsks
    wish: GpuWish
    due: DueGpus | None = None
    """What counts in place of its annotations."""

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def problem(self) -> str:
        """Why the pod cannot be served, however much is free; empty where it can."""
        return self.asks.problem or self.wish.problem

    def ask(self, container: str) -> GpuAsk | None:
        return next((each for each in self.asks.containers if each.container == container), None)

    def gpus(self, container: str) -> tuple[str, ...]:
        """The GPUs that this container is due; empty where none were chosen."""
        return gpus_for(self.wish, self.asks.containers, container)

    @property
    def all_gpus(self) -> tuple[tuple[str, ...], ...]:
        """By asking container."""
        return all_gpus_for(self.wish, self.asks.containers)

    @property
    def rank(self) -> tuple[int, float]:
        """The order among equal requests: first pods that a scheduler of ours has booked, by the time of the booking.

        Other bookings count from their own time, but not before the pod was created: a tenant who writes an early
        time gains nothing. A pod without a booking counts from its creation; a booking without a readable time comes
        last.
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
    dues: Dues | None = None,
) -> Mapping[str, GpuClaim]:
    """By uid, in the order in which they are served; of equals, as given. Neither pods that end nor mirrors."""
    claims = [
        claim
        for pod in pods
        if not pod.is_ending and not pod.is_mirror
        if (claim := claim_of(pod, dialect, inventory, settings, dues)) is not None
    ]
    return {claim.uid: claim for claim in sorted(claims, key=lambda claim: claim.rank)}


def claim_of(
    pod: GpuPod,
    dialect: Dialect,
    inventory: GpuInventory,
    settings: GpuSettings,
    dues: Dues | None = None,
) -> GpuClaim | None:
    """None where the pod asks for nothing in this dialect."""
    due = (dues or {}).get((pod.uid, dialect.memory))
    asks, wish = booked_wish(pod, dialect, inventory, settings.keys)
    if not asks:
        return None
    if due is not None and not due.suits(asks.containers, inventory):
        before = asks_of(pod, dialect, max(map(len, due.gpus), default=0) or None)
        asks = before if due.suits(before.containers, inventory) else asks
    # Of two seals the newer one counts, also over a booking that was known before.
    if due is not None and (not due.suits(asks.containers, inventory) or wish.number > due.number > 0):
        due = None
    if due is not None:
        wish = msgspec.structs.replace(
            wish,
            gpus=due.gpus,
            sealed=due.sealed,
            assume_time=due.number or wish.assume_time,
            problem="",
        )
    if not wish.problem and wish.sealed_unit not in (None, dialect.unit):
        wish = msgspec.structs.replace(wish, problem=_other_unit(wish, dialect))
    if not wish.problem and settings.unassumed is Unassumed.REFUSE:
        wish = msgspec.structs.replace(wish, problem=_unbooked(wish, dialect, sealed=bool(settings.keys)))
    return GpuClaim(pod=pod, dialect=dialect, asks=asks, wish=wish, due=due)


def _other_unit(wish: GpuWish, dialect: Dialect) -> str:
    return (
        f"its scheduler has booked {dialect.memory} in units of {wish.sealed_unit} MiB, and this node counts it in "
        f"{dialect.unit} MiB; set the unit of gpus.dialects[{dialect.name}] alike in the agents and the scheduler, "
        "and create the pod again"
    )


def _unbooked(wish: GpuWish, dialect: Dialect, *, sealed: bool) -> str:
    """Why it counts as not booked; with `sealed`, the seal of a scheduler of ours is what counts."""
    missing = [
        key
        for key, there in (
            (wish.keys.assume_time, wish.assume_time is not None),
            (wish.keys.gpus, wish.is_booked),
        )
        if not there
    ]
    if not missing and sealed and not wish.sealed:
        missing = [SEAL]
    if not missing:
        return ""
    scheduler = f"schedulerName: {dialect.scheduler}" if dialect.scheduler else "its scheduler"
    return (
        f"it has no usable annotation {' and '.join(missing)}, which the GPU scheduler writes when it books; "
        f"see that the pod asks for {scheduler}, that this scheduler runs, and create the pod again"
    )
