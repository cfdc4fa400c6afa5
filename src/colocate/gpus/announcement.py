"""What an agent tells schedulers of its node: its GPUs, the units that it counts in, and who has or will have what.

It is one annotation of the node, which no tenant may write, and one write: a reader sees every pod once, also in the
middle of a swap. What comes from the API is still bounded and checked: a compromised node must not harm others by
what it says.
"""

import base64
import hashlib
from collections.abc import Collection, Mapping, Sequence

import msgspec

from colocate.gpus.book import GpuRoom
from colocate.model.gpu import Gpu, GpuInventory, Mebibytes

ANNOUNCED = "colocate.dev/gpus"
"""The node's annotation."""

_LONGEST = 64 << 10
"""Characters: a dozen GPUs, and some five hundred pods of a hundred characters each."""
_MOST_GPUS = 64
_MOST_PODS = 1024
MOST_ABSENT = 256
"""Pods that an agent names as absent, the oldest: where it names so many, there may be more."""
_MOST_UNNAMED = 2048
"""Pods that are summed up and can still be told by their short names."""
_SHORT = 12
"""Characters of a short name."""
_MOST_UNITS = 16
_MOST_MEMORY: Mebibytes = 1 << 24
_MOST_CORES = 1 << 20
_LATEST = 1 << 63
_LONGEST_NAME = 128


class AnnouncedPod(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod has or will have."""

    rooms: Mapping[str, GpuRoom] = {}
    """By GPU's UUID, the most that it takes at one time; nothing where it gets none."""
    number: int = 0
    """Number of the newest seal that the agent knows for the pod; 0 where there is none."""
    settled: bool = False
    """Whether the pod keeps its GPUs for good: it is no longer swapped with another pod."""
    due: Mapping[str, tuple[tuple[str, ...], ...]] = {}
    """By resource, its GPUs by asking container, where they are others than the scheduler has booked."""


class GpuAnnouncement(msgspec.Struct, frozen=True, kw_only=True):
    """All that an agent says of its node."""

    inventory: GpuInventory = GpuInventory()
    units: Mapping[str, Mebibytes] = {}
    """MiB in one device, by resource that is served."""
    pods: Mapping[str, AnnouncedPod] | None = None
    """By uid; None where the agent does not say who has what, as older ones do not."""
    absent: frozenset[str] = frozenset()
    """Pods that are bound to the node, ask for GPUs, and that its kubelet does not run."""
    rest: Mapping[str, GpuRoom] = {}
    """By UUID, the sum of what pods have that the bound on its size left unnamed."""
    unnamed: frozenset[str] = frozenset()
    """Short names (`short_name`) of the pods in `rest`: only that sum counts for them."""


class _Said(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


class _SaidGpu(_Said, frozen=True, omit_defaults=True):
    uuid: str
    memory: int
    index: int = 0
    model: str = ""
    healthy: bool = True
    mig: bool = False
    numa: int | None = None


_SaidRooms = dict[str, tuple[int, int]]
"""By the GPU's place in the list, memory and cores."""


class _SaidPod(_Said, frozen=True, omit_defaults=True):
    gpus: _SaidRooms = {}
    n: int = 0
    settled: bool = False
    due: dict[str, tuple[tuple[int, ...], ...]] = {}


class _SaidNode(_Said, frozen=True, omit_defaults=True):
    gpus: tuple[_SaidGpu, ...]
    units: dict[str, int] = {}
    pods: dict[str, _SaidPod] | None = None
    absent: tuple[str, ...] = ()
    rest: _SaidRooms = {}
    unnamed: str = ""


_decoder = msgspec.json.Decoder(_SaidNode | tuple[_SaidGpu, ...])


def short_name(uid: str) -> str:
    """Tells a pod that an announcement only sums up: 72 bits of a hash of its uid."""
    return base64.urlsafe_b64encode(hashlib.sha256(uid.encode()).digest()[:9]).decode()


def announcement_of(
    inventory: GpuInventory,
    units: Mapping[str, Mebibytes] | None = None,
    pods: Mapping[str, AnnouncedPod] | None = None,
    absent: Sequence[str] = (),
    rest: Mapping[str, GpuRoom] | None = None,
    unnamed: Collection[str] = (),
) -> str:
    """The text of the annotation; equal facts give equal text. Without `pods`, it does not say which pod has what.

    Where not all pods fit in, settled ones are summed up; of absent ones, only the first are named.
    """
    gpus = tuple(
        _SaidGpu(
            gpu.uuid,
            gpu.memory,
            gpu.index,
            gpu.model[:_LONGEST_NAME],
            healthy=gpu.healthy,
            mig=gpu.mig,
            numa=gpu.numa,
        )
        for gpu in inventory.gpus[:_MOST_GPUS]
    )
    places = {gpu.uuid: place for place, gpu in enumerate(gpus)}
    said = _SaidNode(
        gpus,
        units=dict(sorted((units or {}).items())[:_MOST_UNITS]),
        pods=None if pods is None else {},
        absent=tuple(absent[:MOST_ABSENT]),
        rest=_said_rooms(rest or {}, places),
        unnamed="".join(sorted(unnamed)[:_MOST_UNNAMED]),
    )
    if pods:
        said = _with_pods(said, pods, places)
    return msgspec.json.encode(said).decode()


def _with_pods(said: _SaidNode, pods: Mapping[str, AnnouncedPod], places: Mapping[str, int]) -> _SaidNode:
    """Those that may still be swapped are named first, short ones before long ones, which take no room from them."""
    entries = {uid: _said_pod(pod, places) for uid, pod in pods.items()}
    lengths = {uid: len(msgspec.json.encode({uid: entry})) for uid, entry in entries.items()}
    room = _LONGEST - len(msgspec.json.encode(said)) - len(places) * 40 - 64  # What `rest` may need.
    if sum(lengths.values()) > room or len(entries) > _MOST_PODS:
        room -= _SHORT * min(len(entries), _MOST_UNNAMED)
    named: dict[str, _SaidPod] = {}
    rest = dict(said.rest)
    unnamed: list[str] = []
    for uid in sorted(entries, key=lambda uid: (entries[uid].settled, lengths[uid], uid)):
        entry = entries[uid]
        if lengths[uid] <= room and len(named) < _MOST_PODS:
            named[uid] = entry
            room -= lengths[uid]
            continue
        unnamed.append(short_name(uid))
        for place, (memory, cores) in entry.gpus.items():
            before = rest.get(place, (0, 0))
            rest[place] = before[0] + memory, before[1] + cores
    left = _MOST_UNNAMED - len(said.unnamed) // _SHORT
    short = said.unnamed + "".join(sorted(unnamed)[:left])
    return msgspec.structs.replace(said, pods=named, rest=rest, unnamed=short)


def _said_pod(pod: AnnouncedPod, places: Mapping[str, int]) -> _SaidPod:
    """Leave out GPUs that are no longer on the node, which no other pod can get, and what a settled pod is due, which
    it has already."""
    due = {
        resource: tuple(tuple(places[uuid] for uuid in each) for each in gpus)
        for resource, gpus in sorted(pod.due.items())
        if not pod.settled and all(uuid in places for each in gpus for uuid in each)
    }
    return _SaidPod(_said_rooms(pod.rooms, places), pod.number, pod.settled, due)


def _said_rooms(rooms: Mapping[str, GpuRoom], places: Mapping[str, int]) -> _SaidRooms:
    return {
        str(places[uuid]): (room.memory, room.cores) for uuid, room in sorted(rooms.items()) if uuid in places
    }


def announced(annotations: Mapping[str, str]) -> GpuAnnouncement | None:
    """What the annotations of a node say; None where they say nothing of GPUs. ValueError says what is wrong."""
    text = annotations.get(ANNOUNCED)
    if text is None:
        return None
    if len(text) > _LONGEST:
        raise ValueError(
            f"its annotation {ANNOUNCED} has more than {_LONGEST} characters; that many are read"
        )
    try:
        said = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"its annotation {ANNOUNCED} cannot be read: {error}") from None
    if not isinstance(said, _SaidNode):
        said = _SaidNode(said)
    if len(said.gpus) > _MOST_GPUS:
        raise ValueError(
            f"its annotation {ANNOUNCED} names {len(said.gpus)} GPUs; at most {_MOST_GPUS} are read"
        )
    if len({gpu.uuid for gpu in said.gpus}) < len(said.gpus):
        raise ValueError(f"its annotation {ANNOUNCED} names a GPU twice")
    inventory = GpuInventory(tuple(map(_checked_gpu, said.gpus)))
    return GpuAnnouncement(
        inventory=inventory,
        units=_checked_units(said.units),
        pods=None if said.pods is None else _checked_pods(said.pods, inventory),
        absent=_checked_absent(said.absent),
        rest=_checked_rooms(said.rest, inventory),
        unnamed=frozenset(
            said.unnamed[start : start + _SHORT] for start in range(0, len(said.unnamed), _SHORT)
        ),
    )


def _checked_gpu(gpu: _SaidGpu) -> Gpu:
    if not gpu.uuid or len(gpu.uuid) > _LONGEST_NAME or not _is_plain(gpu.uuid):
        raise ValueError(f"its annotation {ANNOUNCED} has a GPU without a usable UUID")
    if not 0 < gpu.memory <= _MOST_MEMORY or not 0 <= gpu.index < 1 << 16:
        raise ValueError(f"its annotation {ANNOUNCED} gives GPU {gpu.uuid} an impossible memory or index")
    return Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        memory=gpu.memory,
        model=gpu.model[:_LONGEST_NAME] if gpu.model.isprintable() else "",
        numa=gpu.numa,
        mig=gpu.mig,
        healthy=gpu.healthy,
        trouble="" if gpu.healthy else "its agent says so",
    )


def _checked_units(units: Mapping[str, int]) -> Mapping[str, Mebibytes]:
    if len(units) > _MOST_UNITS or not all(
        _is_name(resource) and 0 < unit <= _MOST_MEMORY for resource, unit in units.items()
    ):
        raise ValueError(f"its annotation {ANNOUNCED} gives impossible units of memory")
    return units


def _checked_pods(pods: Mapping[str, _SaidPod], inventory: GpuInventory) -> Mapping[str, AnnouncedPod]:
    if len(pods) > _MOST_PODS:
        raise ValueError(f"its annotation {ANNOUNCED} names {len(pods)} pods; at most {_MOST_PODS} are read")
    checked: dict[str, AnnouncedPod] = {}
    for uid, said in pods.items():
        if not _is_name(uid) or not 0 <= said.n < _LATEST or len(said.due) > _MOST_UNITS:
            raise ValueError(f"its annotation {ANNOUNCED} has a pod without a usable uid or number")
        due = {
            resource: tuple(tuple(_gpu_at(place, inventory) for place in each) for each in gpus)
            for resource, gpus in said.due.items()
        }
        rooms = _checked_rooms(said.gpus, inventory)
        checked[uid] = AnnouncedPod(rooms=rooms, number=said.n, settled=said.settled, due=due)
    return checked


def _checked_absent(absent: Collection[str]) -> frozenset[str]:
    if len(absent) > MOST_ABSENT or not all(map(_is_name, absent)):
        raise ValueError(f"its annotation {ANNOUNCED} names impossible or too many absent pods")
    return frozenset(absent)


def _checked_rooms(rooms: _SaidRooms, inventory: GpuInventory) -> Mapping[str, GpuRoom]:
    checked: dict[str, GpuRoom] = {}
    for place, (memory, cores) in rooms.items():
        number = int(place) if place.isascii() and place.isdigit() and len(place) < 4 else -1
        if not 0 <= memory <= _MOST_MEMORY * _MOST_PODS or not 0 <= cores <= _MOST_CORES:
            raise ValueError(f"its annotation {ANNOUNCED} gives a pod an impossible part of a GPU")
        checked[_gpu_at(number, inventory)] = GpuRoom(memory, cores)
    return checked


def _gpu_at(place: int, inventory: GpuInventory) -> str:
    if not 0 <= place < len(inventory.gpus):
        raise ValueError(f"its annotation {ANNOUNCED} gives a pod a GPU that it does not name")
    return inventory.gpus[place].uuid


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_NAME and _is_plain(name)


def _is_plain(name: str) -> bool:
    """Whether lists of such names can be read again."""
    return name.isascii() and name.isprintable() and not set(name) & set(",; ")
