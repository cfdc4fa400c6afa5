"""How a node tells schedulers which CCXs have room: an annotation of the node, which no tenant may write.

A strict container that no CCX has room for does not start; a scheduler that knows sends it elsewhere. What comes from
the API is still bounded and checked: a node may be compromised.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence

import msgspec

from colocate.cpus.allocator import CpuAllocator
from colocate.cpus.assignment import MilliCpu
from colocate.cpus.explanation import cpus_text
from colocate.cpus.pools import PoolKind

_LONGEST = 16 << 10
_MOST_CCXS = 4096
_MOST_CPU: MilliCpu = 16_384_000
_MOST_NAMESPACES = 200
_STEP: MilliCpu = 500
"""Room is told in steps of half a CPU, rounded down: small containers that come and go are no news."""


class FreeCcxs(msgspec.Struct, frozen=True):
    """What a node has announced."""

    free: tuple[MilliCpu, ...] = ()
    """The room of each CCX, the largest first."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may wish for strict placement."""
    default: tuple[str, ...] = ()
    """Those of `namespaces` whose pods are strict unless they wish for something else."""


class _Announced(msgspec.Struct, frozen=True, omit_defaults=True):
    free: dict[str, int] = {}
    """How many CCXs have so much room, in thousandths of a CPU."""
    strict: tuple[str, ...] = ()
    default: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(_Announced)


def announcement_of(allocator: CpuAllocator, default: Container[str] = ()) -> str:
    """What the annotation says; `default` are the namespaces whose pods are strict unless they say otherwise."""
    now = allocator.occupancy()
    most = _MOST_CPU if allocator.sets.reserved else max(0, len(now.shared) - 1) * 1000
    rooms = [
        min(most, max(0, now.free[pool.index])) // _STEP * _STEP
        for pool in allocator.tree.kind(PoolKind.CCX)[:_MOST_CCXS]
    ]
    free = {str(room): count for room, count in sorted(Counter(rooms).items(), reverse=True)}
    strict = tuple(sorted(allocator.settings.wish_namespaces))[:_MOST_NAMESPACES]
    return msgspec.json.encode(
        _Announced(free, strict, tuple(name for name in strict if name in default))
    ).decode()


def announced_ccxs(text: str) -> FreeCcxs:
    """What the annotation says; ValueError says what is wrong with it."""
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters; at most {_LONGEST} are read")
    try:
        said = _decoder.decode(text)
        rooms = {int(room): count for room, count in said.free.items() if room.isascii() and room.isdigit()}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {error}") from None
    if len(rooms) < len(said.free) or any(room > _MOST_CPU or count < 0 for room, count in rooms.items()):
        raise ValueError("it names an impossible room")
    if sum(rooms.values()) > _MOST_CCXS:
        raise ValueError(f"it names more than {_MOST_CCXS} CCXs")
    free = tuple(room for room, count in sorted(rooms.items(), reverse=True) for _ in range(count))
    return FreeCcxs(free, said.strict, said.default)


def why_not_strict(ccxs: FreeCcxs, together: Mapping[str, MilliCpu], alone: Mapping[str, MilliCpu]) -> str:
    """Why a node has no room for strict containers, of which some run together and some alone; nothing where it has.

    The largest goes first, each into the fullest CCX that has room, as they would be placed.
    """
    for name, cpu in alone.items():
        if not _taken(list(ccxs.free), cpu):
            return _no_room(name, cpu, ccxs.free)
    left = list(ccxs.free)
    for name, cpu in sorted(together.items(), key=lambda one: (-one[1], one[0])):
        if not _taken(left, cpu):
            return _no_room(name, cpu, left)
    return ""


def _taken(left: list[MilliCpu], cpu: MilliCpu) -> bool:
    fitting = [room for room in left if room >= cpu]
    if not fitting:
        return False
    left[left.index(min(fitting))] -= cpu
    return True


def _no_room(name: str, cpu: MilliCpu, left: Sequence[MilliCpu]) -> str:
    most = cpus_text(max(left, default=0))
    return f"container {name} wants {cpus_text(cpu)} on one CCX, and no CCX of the node has more than {most} free"
