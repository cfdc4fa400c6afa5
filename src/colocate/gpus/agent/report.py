"""The GPUs of a node and who has what of them, as one value: what `colocate gpu` prints and programs read. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from colocate.gpus import (
    Dialect,
    GpuBook,
    GpuDisagreement,
    HealthSettings,
    PodBooking,
    device_cost,
    message_bytes,
    recovers_in,
    short_keys,
    smallest_unit,
)
from colocate.gpus.agent.monitor import KnownGpu
from colocate.kubelet import MESSAGE_LIMIT
from colocate.model.device_cost import DeviceCost
from colocate.model.gpu import Cores, Mebibytes
from colocate.model.memory import Bytes


class GpuShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod has of a GPU."""

    pod: str
    """namespace/name, or its uid where its name is unknown."""
    uid: str
    containers: tuple[str, ...]
    memory: Mebibytes
    """The most at one time."""
    cores: Cores
    used: Bytes | None = None
    """Memory that its processes use, as the driver says; None where it does not say."""


class GpuStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    uuid: str
    key: str
    """What the ids of its slices begin with."""
    index: int | None
    """None for one that is not there any more."""
    model: str
    memory: Mebibytes
    numa: int | None
    mig: bool
    healthy: bool
    trouble: str
    recovers_in: float
    """Seconds until it is healthy, if nothing else happens; 0 where it is, or where it does not answer."""
    used: Bytes | None
    """Memory that all processes use, as the driver says."""
    booked: Mebibytes
    booked_cores: Cores
    shares: tuple[GpuShare, ...]


class GpuDialectStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that is served."""

    name: str
    resource: str
    unit: Mebibytes
    devices: int
    message: Bytes
    """The size of the list of devices at its longest."""
    least_unit: Mebibytes
    """The smallest unit with which one message still has room for all devices."""
    drains: bool = False
    """Whether nothing new is offered under this name."""


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of a node, for people and programs."""

    node: str
    at: float
    """Seconds since the epoch."""
    mock: bool
    dialects: tuple[GpuDialectStatus, ...]
    gpus: tuple[GpuStatus, ...]
    running: Mapping[str, tuple[str, ...]] = {}
    """By uid, the GPUs on which the driver sees processes of a pod; of GPUs whose processes are not known, none."""
    mismatches: tuple[GpuDisagreement, ...] = ()
    """Where annotations, checkpoint and driver do not agree on who has which GPU."""
    notes: tuple[str, ...] = ()
    """What could not be asked or done."""
    cost: DeviceCost = DeviceCost()
    """What all devices of this agent cost a kubelet from 1.36 on."""


def gpu_report(
    node: str,
    at: float,
    gpus: Mapping[str, KnownGpu],
    book: GpuBook,
    dialects: Sequence[Dialect],
    *,
    health: HealthSettings,
    now: float,
    used: Mapping[str, Mapping[str, Bytes]],
    mock: bool,
    notes: Sequence[str] = (),
    mismatches: tuple[GpuDisagreement, ...] = (),
    cost: DeviceCost | None = None,
) -> GpuReport:
    """`used` is, by GPU and pod's uid, what processes have, where that is known; `now` is of the clock of faults."""
    shared = book.inventory.shared
    keys = short_keys([gpu.uuid for gpu in shared])
    here = [_status(known, book, keys, used.get(uuid), health, now) for uuid, known in gpus.items()]
    gone = [_gone(uuid, book) for uuid in sorted(book.used) if uuid not in gpus]
    return GpuReport(
        node=node,
        at=at,
        mock=mock,
        dialects=tuple(
            GpuDialectStatus(
                name=dialect.name,
                resource=dialect.memory,
                unit=dialect.unit,
                devices=sum(gpu.memory // dialect.unit for gpu in shared),
                message=message_bytes(shared, dialect.unit),
                least_unit=smallest_unit(shared, MESSAGE_LIMIT),
                drains=dialect.drains,
            )
            for dialect in dialects
        ),
        gpus=(*here, *gone),
        running=_running(used),
        mismatches=mismatches,
        notes=tuple(notes),
        cost=cost or device_cost(shared, dialects),
    )


def _running(used: Mapping[str, Mapping[str, Bytes]]) -> Mapping[str, tuple[str, ...]]:
    uids = sorted({uid for by_pod in used.values() for uid in by_pod})
    return {uid: tuple(gpu for gpu, by_pod in used.items() if uid in by_pod) for uid in uids}


def _status(
    known: KnownGpu,
    book: GpuBook,
    keys: Mapping[str, str],
    used: Mapping[str, Bytes] | None,
    health: HealthSettings,
    now: float,
) -> GpuStatus:
    fact, reading = known.fact, known.reading
    answers = not reading.problem
    booked = book.used.get(fact.uuid)
    return GpuStatus(
        uuid=fact.uuid,
        key=keys.get(fact.uuid, ""),
        index=fact.index,
        model=fact.model,
        memory=fact.memory,
        numa=fact.numa,
        mig=fact.mig,
        healthy=fact.healthy,
        trouble=fact.trouble,
        recovers_in=recovers_in(known.health, now, health) if answers else 0.0,
        used=reading.used,
        booked=booked.memory if booked else 0,
        booked_cores=booked.cores if booked else 0,
        shares=_shares(fact.uuid, book, used),
    )


def _gone(uuid: str, book: GpuBook) -> GpuStatus:
    booked = book.used[uuid]
    return GpuStatus(
        uuid=uuid,
        key="",
        index=None,
        model="",
        memory=0,
        numa=None,
        mig=False,
        healthy=False,
        trouble="it is not there any more",
        recovers_in=0.0,
        used=None,
        booked=booked.memory,
        booked_cores=booked.cores,
        shares=_shares(uuid, book, None),
    )


def _shares(uuid: str, book: GpuBook, used: Mapping[str, Bytes] | None) -> tuple[GpuShare, ...]:
    shares = (_share(uuid, pod, used) for pod in book.holders(uuid))
    return tuple(sorted(shares, key=lambda share: share.pod))


def _share(uuid: str, pod: PodBooking, used: Mapping[str, Bytes] | None) -> GpuShare:
    need = pod.needs()[uuid]
    return GpuShare(
        pod=pod.key or f"pod {pod.uid}",
        uid=pod.uid,
        containers=tuple(each.container for each in pod.containers if uuid in each.gpus),
        memory=need.memory,
        cores=need.cores,
        used=None if used is None else used.get(pod.uid, 0),
    )
