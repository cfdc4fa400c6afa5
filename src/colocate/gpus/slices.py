"""A GPU's memory as devices that a kubelet can count: which ids there are, and whether one message takes them all.

An id names its GPU and the slice of it, `1f3a-2s`: the first characters of the UUID, as many as tell the GPUs of a
node apart, and a number. It depends on UUID, memory and unit alone, so it is the same after every restart, and a GPU
in the place of another has other ids. Which GPU a container gets is not said by ids: the book decides that.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from colocate.model.device import list_bytes
from colocate.model.gpu import Gpu, Mebibytes

_SHORTEST = 4
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Slices(msgspec.Struct, frozen=True):
    """The slices of every GPU of a node in one unit."""

    unit: Mebibytes
    ids: Mapping[str, Sequence[str]]
    """By UUID, in order."""
    keys: Mapping[str, str]
    """What ids begin with, and the UUID that it stands for."""

    def gpu_of(self, id: str) -> str | None:
        """The UUID of the GPU that an id names; None where it is none of these."""
        key, _, number = id.partition("-")
        uuid, place = self.keys.get(key), number_of(number)
        if uuid is None or place is None or place >= len(self.ids[uuid]):
            return None
        return uuid if self.ids[uuid][place] == id else None


def slices_of(gpus: Sequence[Gpu], unit: Mebibytes) -> Slices:
    """All ids. What is left of a GPU beyond whole units is not given out."""
    keys = short_keys([gpu.uuid for gpu in gpus])
    return Slices(
        unit,
        {gpu.uuid: [f"{keys[gpu.uuid]}-{text_of(n)}" for n in range(gpu.memory // unit)] for gpu in gpus},
        {key: uuid for uuid, key in keys.items()},
    )


def short_keys(uuids: Sequence[str]) -> Mapping[str, str]:
    """By UUID, a beginning of it without `GPU-`, no longer than needed, that no other UUID has."""
    plain = {uuid: _plain(uuid) for uuid in uuids}
    keys: dict[str, str] = {}
    for uuid, text in plain.items():
        others = [other for each, other in plain.items() if each != uuid]
        length = _SHORTEST
        while length < len(text) and any(other.startswith(text[:length]) for other in others):
            length += 1
        keys[uuid] = text[:length]
    # Two that differ in odd characters alone are told apart by their order.
    repeated = Counter(keys.values())
    return {
        uuid: f"{key}.{place}" if repeated[key] > 1 else key
        for place, (uuid, key) in enumerate(sorted(keys.items()))
    }


def smallest_unit(gpus: Sequence[Gpu], limit: int) -> Mebibytes:
    """The smallest unit with which a message of `limit` bytes has room for all slices."""
    low, high = 1, max((gpu.memory for gpu in gpus), default=1) or 1
    while low < high:
        middle = (low + high) // 2
        if message_bytes(gpus, middle) <= limit:
            high = middle
        else:
            low = middle + 1
    return low


def message_bytes(gpus: Iterable[Gpu], unit: Mebibytes) -> int:
    """Bytes of the whole list when every device is Unhealthy, the longest word; by arithmetic, for it may be huge."""
    gpus = list(gpus)
    keys = short_keys([gpu.uuid for gpu in gpus])
    total = 0
    for gpu in gpus:
        count, width, first = gpu.memory // unit, 1, 0
        while first < count:
            last = min(count, len(_DIGITS) ** width)
            total += list_bytes(len(keys[gpu.uuid]) + 1 + width, gpu.numa) * (last - first)
            first, width = last, width + 1
    return total


def text_of(number: int) -> str:
    """A number in 36 digits."""
    text = _DIGITS[number % 36]
    while number := number // 36:
        text = _DIGITS[number % 36] + text
    return text


def number_of(text: str) -> int | None:
    """The other way round; None where it is no such number."""
    if not text or len(text) > 8 or any(digit not in _DIGITS for digit in text):
        return None
    return int(text, 36)


def _plain(uuid: str) -> str:
    """Letters and digits alone: an id must have no blank, no comma, and a dash where the number begins."""
    text = uuid.removeprefix("GPU-").lower()
    return "".join(c for c in text if c.isascii() and c.isalnum()) or "gpu"


def slice_order(id: str) -> tuple[int, str]:
    """The order of the ids of one GPU: by number."""
    return len(id), id
