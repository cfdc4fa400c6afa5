"""Where the records of a node do not agree on who has which GPU: annotations, checkpoint, podresources, driver.

The checkpoint says what a container was started with, which cannot change any more: the other records are compared
with it. Nothing is put right here; `settlement` does that for pods that are about to start.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum

import msgspec

from colocate.errors import visible
from colocate.gpus.claims import claim_of
from colocate.gpus.dialects import Dialect, EnvFact
from colocate.gpus.injection import injected_gpus
from colocate.gpus.pods import GpuPod, asks_of
from colocate.gpus.proof import GpuHolding
from colocate.gpus.read_keys import VISIBLE
from colocate.gpus.settings import GpuSettings
from colocate.gpus.settlement import GpuRecords
from colocate.model.gpu import GpuInventory

ListedIds = Mapping[tuple[str, str, str], AbstractSet[str]]
"""By pod (namespace/name), container and resource: the ids that podresources gives to it."""


class GpuRecordSource(StrEnum):
    """The record that disagrees."""

    ANNOTATION = "annotation"
    CHECKPOINT = "checkpoint"
    PODRESOURCES = "podresources"
    DRIVER = "driver"


class GpuDisagreement(msgspec.Struct, frozen=True, kw_only=True):
    """One record that contradicts another."""

    source: GpuRecordSource
    pod: str
    """namespace/name, or its uid."""
    uid: str
    sentence: str
    remedy: str


def disagreements(
    records: GpuRecords,
    inventory: GpuInventory,
    settings: GpuSettings,
    *,
    listed: ListedIds | None = None,
    running: Mapping[str, AbstractSet[str]] | None = None,
) -> tuple[GpuDisagreement, ...]:
    """All of them. `running` are, by uid, the GPUs on which the driver sees processes of a pod; None: not known.

    Without GPUs in the inventory, nothing is said of GPUs that are not there.
    """
    pods, holdings = records.pods or {}, records.holdings or ()
    found: list[GpuDisagreement] = []
    given: dict[str, set[str]] = {}
    for held in holdings:
        dialect, pod = settings.dialect_of(held.key.resource), pods.get(held.key.uid)
        if dialect is None or (records.pods is not None and (pod is None or pod.is_finished)):
            continue
        gpus = () if held.injected is None else injected_gpus(held.injected, dialect, inventory)
        given.setdefault(held.key.uid, set()).update(gpus)
        found += _of_holding(held, pod, gpus, dialect, inventory, settings, listed)
    for uid, gpus_used in (running or {}).items():
        pod = pods.get(uid)
        name = (
            pod.key if pod is not None else next((each.pod for each in holdings if each.key.uid == uid), "")
        )
        found += _of_driver(uid, name or f"pod {uid}", gpus_used, given.get(uid, set()))
    return tuple(found)


def _of_holding(
    held: GpuHolding,
    pod: GpuPod | None,
    gpus: Sequence[str],
    dialect: Dialect,
    inventory: GpuInventory,
    settings: GpuSettings,
    listed: ListedIds | None,
) -> Iterator[GpuDisagreement]:
    name = visible((pod.key if pod is not None else held.pod) or f"pod {held.key.uid}")
    container = visible(held.key.container)

    def found(source: GpuRecordSource, sentence: str, remedy: str) -> GpuDisagreement:
        return GpuDisagreement(
            source=source,
            pod=name,
            uid=held.key.uid,
            sentence=f"{name}: {sentence}",
            remedy=remedy,
        )

    if not gpus:
        yield found(
            GpuRecordSource.CHECKPOINT,
            f"container {container} holds {len(held.ids)} of {dialect.memory}; the checkpoint names no GPU for it",
            "create the pod again",
        )
    gone = [uuid for uuid in gpus if inventory.gpus and inventory.get(uuid) is None]
    if gone:
        yield found(
            GpuRecordSource.DRIVER,
            f"container {container} was started with {visible(', '.join(gone))}, which the driver does not list",
            "create the pod again; if the GPU was not replaced, see 'colocate gpu status'",
        )
    if pod is not None:
        claim = claim_of(pod, dialect, inventory, settings)
        ask = None if claim is None else claim.ask(held.key.container)
        if claim is not None and ask is not None:
            due = () if claim.wish.problem else claim.gpus(held.key.container)
            if due and gpus and set(due) != set(gpus):
                yield found(
                    GpuRecordSource.ANNOTATION,
                    f"its annotation {claim.wish.keys.gpus} names {', '.join(due)}, and container {container} was "
                    f"started with {visible(', '.join(gpus))}",
                    "create the pod again; this annotation must not change once the pod has started",
                )
        units = ask.units if ask is not None else 0
        if units != len(held.ids):
            yield found(
                GpuRecordSource.CHECKPOINT,
                f"container {container} asks for {units} of {dialect.memory}; the checkpoint says {len(held.ids)}",
                "create the pod again",
            )
    if listed is not None and (pod is not None or held.pod):
        theirs = listed.get((pod.key if pod is not None else held.pod, held.key.container, dialect.memory))
        if theirs is not None and set(theirs) != held.ids:
            yield found(
                GpuRecordSource.PODRESOURCES,
                f"container {container} holds {len(theirs)} of {dialect.memory} by podresources and "
                f"{len(held.ids)} by the checkpoint, and the ids differ",
                "look again in a moment; if it stays, restart the kubelet",
            )


def _of_driver(
    uid: str, name: str, running: AbstractSet[str], given: AbstractSet[str]
) -> Iterator[GpuDisagreement]:
    if others := sorted(running - given):
        has = f"has {', '.join(sorted(given))}" if given else "has none"
        yield GpuDisagreement(
            source=GpuRecordSource.DRIVER,
            pod=visible(name),
            uid=uid,
            sentence=visible(f"{name}: its processes run on {', '.join(others)}, and it {has}"),
            remedy=f"see whether it sets {VISIBLE} itself or is privileged, and which pods it disturbs",
        )


def overriding(pods: Iterable[GpuPod], dialects: Sequence[Dialect]) -> Iterator[GpuDisagreement]:
    """Pods whose own env sets a variable that a container runtime reads GPUs from: it overrides what they got."""
    for pod in pods:
        if pod.is_finished:
            continue
        containers = (*pod.spec.init_containers, *pod.spec.containers)
        names = [each.name for each in containers if any(env.name == VISIBLE for env in each.env)]
        if not names:
            continue
        asks = any(asks_of(pod, dialect) for dialect in dialects)
        effect = (
            "its own value overrides the GPU that it is given"
            if asks
            else "it takes GPUs without booking any"
        )
        shown = ", ".join(names)
        yield GpuDisagreement(
            source=GpuRecordSource.ANNOTATION,
            pod=visible(pod.key),
            uid=pod.uid,
            sentence=visible(f"{pod.key}: the env of container {shown} sets {VISIBLE}: {effect}"),
            remedy=f"remove {VISIBLE} from the pod's env"
            + ("" if asks else f", and ask for {dialects[0].memory}" if dialects else ""),
        )


def other_unit(held: GpuHolding, inventory: GpuInventory, dialect: Dialect) -> bool:
    """Whether a container was given its devices while a device stood for another amount of memory.

    Containers are told in units what their GPU has in all. A driver that reports a little more or less does not make
    another unit.
    """
    if held.injected is None:
        return False
    units = [held.injected.envs.get(name) for name, fact in dialect.envs.items() if fact is EnvFact.UNIT]
    if units and units[0] is not None:
        return units[0] != str(dialect.unit)
    told = [held.injected.envs.get(name, "") for name, fact in dialect.envs.items() if fact is EnvFact.TOTAL]
    gpus = [gpu for uuid in injected_gpus(held.injected, dialect, inventory) if (gpu := inventory.get(uuid))]
    if not gpus or not told or not told[0].isascii() or not told[0].isdigit():
        return False
    expected = dialect.in_units(gpus[0].memory)
    return abs(int(told[0][:12]) - expected) > max(1, expected // 10)
