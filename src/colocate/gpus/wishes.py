"""What a pod's annotations say: which GPUs, since when, and whether a scheduler of ours has said so.

An annotation is a wish: anybody who may write a pod may write it. A scheduler of ours seals what it writes with a key
that it shares with the agents alone, over the pod's uid and all that it books; without the key, a tenant can neither
make a seal, nor copy one from another pod, nor change what was booked. The time of a booking is its number: of two
seals of one pod, the one with the higher number is true. Without a key, all are wishes.
"""

import hmac
from collections.abc import Mapping, Sequence

import msgspec

from colocate.errors import visible
from colocate.gpus.dialects import AnnotationKeys, Dialect, EnvFact, GpuName
from colocate.gpus.pods import MOST_GPUS, GpuAsk, GpuAsks, GpuPod, asks_of
from colocate.gpus.read_keys import LONGEST_LIST, SEAL
from colocate.model.gpu import GpuInventory, Mebibytes

_LONGEST_SEAL = 128
_LATEST = 1 << 63
"""The first nanosecond that is no time."""


class GpuWish(msgspec.Struct, frozen=True, kw_only=True):
    """What the annotations of one pod say in one dialect."""

    keys: AnnotationKeys
    """The set of annotations that the pod speaks."""
    gpus: tuple[tuple[str, ...], ...] = ()
    """UUIDs by asking container, or one list for all of them; nothing where none is named."""
    assume_time: int | None = None
    """Nanoseconds since the epoch; None where there is none, or none that can be read."""
    assigned: bool = False
    sealed: bool = False
    """Whether a scheduler of ours has booked just this."""
    sealed_unit: Mebibytes | None = None
    """MiB in one device, as the scheduler that sealed it counts; None where nothing is sealed."""
    problem: str = ""
    """Why it cannot be granted, with what to do about it; empty where it may be."""

    @property
    def is_booked(self) -> bool:
        """Whether any GPU is named."""
        return bool(self.gpus)

    @property
    def number(self) -> int:
        """Number of its seal: the higher, the newer; 0 where it has none."""
        return self.assume_time or 0 if self.sealed else 0


def wish_of(
    pod: GpuPod,
    dialect: Dialect,
    asks: Sequence[GpuAsk],
    inventory: GpuInventory,
    keys: Sequence[bytes] = (),
) -> GpuWish:
    """Read a pod's annotations; nothing in them is believed beyond the seal."""
    annotations = pod.annotations
    spoken = dialect.keys_of(annotations)
    wish = GpuWish(
        keys=spoken,
        assume_time=_time(annotations.get(spoken.assume_time, "")),
        assigned=annotations.get(spoken.assigned) == "true",
    )
    named = annotations.get(spoken.gpus, "").strip()
    if not named:
        return wish
    try:
        gpus = _lists(named, spoken, inventory)
        _check_counts(gpus, asks, spoken)
    except ValueError as error:
        return msgspec.structs.replace(wish, problem=str(error))
    wish = msgspec.structs.replace(wish, gpus=gpus)
    unit = _sealed_unit(pod, wish, dialect, asks, keys)
    return msgspec.structs.replace(wish, sealed=unit is not None, sealed_unit=unit)


def named_count(pod: GpuPod, dialect: Dialect) -> int:
    """How many GPUs the annotations of a pod name for one container; 0 where they name none, or too many."""
    named = pod.annotations.get(dialect.keys_of(pod.annotations).gpus, "")
    if not named.strip() or len(named) > LONGEST_LIST:
        return 0
    count = max(len(part.split(",")) for part in named.split(";"))
    return count if count <= MOST_GPUS else 0


def booked_wish(
    pod: GpuPod, dialect: Dialect, inventory: GpuInventory, keys: Sequence[bytes]
) -> tuple[GpuAsks, GpuWish]:
    """What a pod asks for, and what its annotations say. Where they are sealed for another number of GPUs than it
    wishes by now, as they were sealed: a booking is not changed by what its tenant writes later."""
    asks = asks_of(pod, dialect)
    wish = wish_of(pod, dialect, asks.containers, inventory, keys)
    if wish.sealed or not keys or SEAL not in pod.annotations or not (count := named_count(pod, dialect)):
        return asks, wish
    before = asks_of(pod, dialect, count)
    sealed = wish_of(pod, dialect, before.containers, inventory, keys)
    return (before, sealed) if sealed.sealed else (asks, wish)


def gpus_for(wish: GpuWish, asks: Sequence[GpuAsk], container: str) -> tuple[str, ...]:
    """The GPUs that the wish gives to one container: as many as it asks for; nothing where it names none."""
    given = zip(asks, all_gpus_for(wish, asks), strict=True)
    return next((gpus for ask, gpus in given if ask.container == container), ())


def all_gpus_for(wish: GpuWish, asks: Sequence[GpuAsk]) -> tuple[tuple[str, ...], ...]:
    """The GPUs that the wish gives to every asking container, in the order of `asks`; all at once, for a tenant
    chooses how many containers ask."""
    if not wish.gpus:
        return ((),) * len(asks)
    named = wish.gpus if len(wish.gpus) > 1 else wish.gpus * len(asks)
    return tuple(gpus[: ask.count] for ask, gpus in zip(asks, named, strict=True))


def annotations_for(
    dialect: Dialect,
    keys: AnnotationKeys,
    asks: Sequence[GpuAsk],
    gpus: Sequence[Sequence[str]],
    inventory: GpuInventory,
    *,
    assume_time: int,
    assigned: bool = False,
) -> Mapping[str, str]:
    """What a scheduler writes into a pod: `gpus` by asking container, in the order of `asks`."""
    written = {
        keys.gpus: _written(gpus, keys, inventory),
        keys.assume_time: str(assume_time),
        keys.assigned: "true" if assigned else "false",
    }
    gpu = inventory.get(gpus[0][0]) if gpus and gpus[0] else None
    for name, fact in keys.facts.items():
        if fact is EnvFact.POD:
            written[name] = str(sum(ask.units for ask in asks))
        elif fact is EnvFact.TOTAL and gpu is not None:
            written[name] = str(dialect.in_units(gpu.memory))
    return written


def seal(
    uid: str,
    dialect: Dialect,
    asks: Sequence[GpuAsk],
    gpus: Sequence[Sequence[str]],
    number: int,
    key: bytes,
) -> str:
    """The seal over a booking; `gpus` by asking container, in the order of `asks`. It begins with the unit."""
    return f"{dialect.unit}:{_digest(uid, dialect.memory, dialect.unit, asks, gpus, number, key)}"


def _digest(
    uid: str,
    resource: str,
    unit: Mebibytes,
    asks: Sequence[GpuAsk],
    gpus: Sequence[Sequence[str]],
    number: int,
    key: bytes,
) -> str:
    parts = [uid, str(number), resource, str(unit)]
    for ask, given in zip(asks, gpus, strict=True):
        parts += [ask.container, str(ask.units), str(ask.cores), str(ask.count), *given]
    # Lengths before the parts: two bookings never make one text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hmac.digest(key, text.encode(), "sha256").hex()


def _sealed_unit(
    pod: GpuPod, wish: GpuWish, dialect: Dialect, asks: Sequence[GpuAsk], keys: Sequence[bytes]
) -> Mebibytes | None:
    """The unit in which the pod's booking was sealed; None where its seal is not that of its booking."""
    if not keys or wish.assume_time is None or not wish.gpus:
        return None
    told, _, mark = pod.annotations.get(SEAL, "")[:_LONGEST_SEAL].partition(":")
    if not told.isascii() or not told.isdigit() or len(told) > 9:
        return None
    gpus = all_gpus_for(wish, asks)
    for key in keys:
        expected = _digest(pod.uid, dialect.memory, int(told), asks, gpus, wish.assume_time, key)
        if hmac.compare_digest(expected.encode(), mark.encode()):
            return int(told)
    return None


def _time(text: str) -> int | None:
    """ASCII digits alone: int() reads much that is no time."""
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        return None
    time = int(text)
    return time if time < _LATEST else None


def _lists(named: str, keys: AnnotationKeys, inventory: GpuInventory) -> tuple[tuple[str, ...], ...]:
    if len(named) > LONGEST_LIST:
        raise ValueError(
            f"its annotation {keys.gpus} has more than {LONGEST_LIST} characters; name the GPUs of this node"
        )
    lists = tuple(
        tuple(_uuid(word.strip(), keys, inventory) for word in part.split(",")) for part in named.split(";")
    )
    for each in lists:
        if len(set(each)) < len(each):
            raise ValueError(f"its annotation {keys.gpus} names a GPU twice; name each once")
    return lists


def _uuid(word: str, keys: AnnotationKeys, inventory: GpuInventory) -> str:
    if keys.named_by is GpuName.UUID:
        gpu = inventory.get(word)
    else:
        gpu = inventory.at(int(word)) if word.isascii() and word.isdigit() and len(word) < 6 else None
    if gpu is None:
        raise ValueError(
            f"its annotation {keys.gpus} names the GPU {visible(word)[:80] or '(nothing)'}, which is not on this "
            "node: it was replaced, or the annotation is wrong; create the pod again without the annotation, so that "
            "a scheduler chooses again"
        )
    return gpu.uuid


def _check_counts(gpus: Sequence[Sequence[str]], asks: Sequence[GpuAsk], keys: AnnotationKeys) -> None:
    if len(gpus) not in (1, len(asks)):
        raise ValueError(
            f"its annotation {keys.gpus} has {len(gpus)} lists of GPUs for {len(asks)} containers that ask for one; "
            "write one list, or one for each container"
        )
    for place, ask in enumerate(asks):
        named = gpus[place] if len(gpus) > 1 else gpus[0]
        if len(named) < ask.count:
            raise ValueError(
                f"container {visible(ask.container)} asks for {ask.count} GPUs and its annotation {keys.gpus} names "
                f"{len(named)}; name as many as it asks for"
            )


def _written(gpus: Sequence[Sequence[str]], keys: AnnotationKeys, inventory: GpuInventory) -> str:
    lists = [tuple(each) for each in gpus]
    longest = max(lists, key=len, default=())
    if all(each == longest[: len(each)] for each in lists):
        lists = [longest]  # One list says it for all.
    return ";".join(",".join(_name(uuid, keys, inventory) for uuid in each) for each in lists)


def _name(uuid: str, keys: AnnotationKeys, inventory: GpuInventory) -> str:
    if keys.named_by is GpuName.UUID:
        return uuid
    gpu = inventory.get(uuid)
    return str(gpu.index) if gpu is not None else ""
