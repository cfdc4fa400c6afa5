"""What a pod's annotations say: which GPUs, since when, and whether a scheduler of ours has said so.

An annotation is a wish: anybody who may write a pod may write it. A scheduler of ours seals what it writes with a key
that it shares with the agents alone, over the pod's uid and all that it books; who has not the key cannot, nor copy a
seal from another pod, nor change what was booked. Without a key, all are wishes.
"""

import hmac
from collections.abc import Mapping, Sequence

import msgspec

from colocate.errors import visible
from colocate.gpus.dialects import AnnotationKeys, Dialect, EnvFact, GpuName
from colocate.gpus.pods import GpuAsk, GpuPod
from colocate.model.gpu import GpuInventory

SEAL = "colocate.dev/gpu-seal"
"""The annotation with the seal of a scheduler of ours."""

_LONGEST = 4096
"""Characters of an annotation that are looked at; the UUIDs of a hundred GPUs."""
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
    problem: str = ""
    """Why it cannot be granted, with what to do about it; empty where it may be."""

    @property
    def is_booked(self) -> bool:
        """Whether a scheduler has said a GPU at all."""
        return bool(self.gpus)


def wish_of(
    pod: GpuPod,
    dialect: Dialect,
    asks: Sequence[GpuAsk],
    inventory: GpuInventory,
    key: bytes | None = None,
) -> GpuWish:
    """Read a pod's annotations; nothing in them is believed beyond the seal."""
    annotations = pod.annotations
    keys = dialect.keys_of(annotations)
    wish = GpuWish(
        keys=keys,
        assume_time=_time(annotations.get(keys.assume_time, "")),
        assigned=annotations.get(keys.assigned) == "true",
    )
    named = annotations.get(keys.gpus, "").strip()
    if not named:
        return wish
    try:
        gpus = _lists(named, keys, inventory)
        _check_counts(gpus, asks, keys)
    except ValueError as error:
        return msgspec.structs.replace(wish, problem=str(error))
    wish = msgspec.structs.replace(wish, gpus=gpus)
    return msgspec.structs.replace(wish, sealed=key is not None and is_sealed(pod, wish, asks, key))


def gpus_for(wish: GpuWish, asks: Sequence[GpuAsk], container: str) -> tuple[str, ...]:
    """The GPUs that the wish gives to one container: as many as it asks for; nothing where it names none."""
    if not wish.gpus:
        return ()
    place = next(index for index, ask in enumerate(asks) if ask.container == container)
    named = wish.gpus[place] if len(wish.gpus) > 1 else wish.gpus[0]
    return named[: asks[place].count]


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
    uid: str, asks: Sequence[GpuAsk], gpus: Sequence[Sequence[str]], assume_time: int, key: bytes
) -> str:
    """The seal over a booking; `gpus` by asking container, in the order of `asks`."""
    parts = [uid, str(assume_time)]
    for ask, given in zip(asks, gpus, strict=True):
        parts += [ask.container, *map(str, ask.shape), *given]
    # Lengths before the parts: two bookings never make one text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hmac.digest(key, text.encode(), "sha256").hex()


def is_sealed(pod: GpuPod, wish: GpuWish, asks: Sequence[GpuAsk], key: bytes) -> bool:
    """Whether the pod's seal is that of its booking."""
    if wish.assume_time is None or not wish.gpus:
        return False
    gpus = [gpus_for(wish, asks, ask.container) for ask in asks]
    expected = seal(pod.uid, asks, gpus, wish.assume_time, key)
    return hmac.compare_digest(expected.encode(), pod.annotations.get(SEAL, "").encode())


def _time(text: str) -> int | None:
    """ASCII digits alone: int() reads much that is no time."""
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        return None
    time = int(text)
    return time if time < _LATEST else None


def _lists(named: str, keys: AnnotationKeys, inventory: GpuInventory) -> tuple[tuple[str, ...], ...]:
    if len(named) > _LONGEST:
        raise ValueError(
            f"its annotation {keys.gpus} has {len(named)} characters; name the GPUs of this node"
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
            "node: it was replaced, or the annotation is wrong; create the pod anew without the annotation, so that "
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
