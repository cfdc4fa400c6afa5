"""Why a container has its CPUs, in plain sentences. Words alone: nothing is decided here."""

from colocate.cpus.assignment import CpuRequest, MilliCpu
from colocate.cpus.exclusive import Taste, spread_of
from colocate.cpus.pools import PoolKind, PoolTree
from colocate.cpus.shared import PoolRung, SharedChoice
from colocate.model.cpuset import CpuSet

_MOST_NAMED = 8
"""So many pools are named one by one in a sentence."""

_A = {
    PoolRung.CCX: "a CCX",
    PoolRung.NUMA: "a NUMA node",
    PoolRung.NUMA_CCX: "a NUMA node and a CCX",
    PoolRung.NUMA_NUMA: "two NUMA nodes",
    PoolRung.SOCKET: "a socket",
    PoolRung.MACHINE: "the whole machine",
}


def cpus_text(cpu: MilliCpu) -> str:
    """`1 CPU`, `6 CPUs`, `16.5 CPUs`."""
    return f"{number_text(cpu)} CPU{'' if cpu == 1000 else 's'}"


def number_text(cpu: MilliCpu) -> str:
    return f"{cpu / 1000:.3f}".rstrip("0").rstrip(".")


def shared_reasons(
    tree: PoolTree, request: CpuRequest, choice: SharedChoice, taste: Taste
) -> tuple[str, ...]:
    """Why these pools."""
    asked = f"It asks for {cpus_text(request.cpu)}"
    if choice.short:
        roomiest = choice.passed[-1][1]
        return (
            f"{asked}, more than is free anywhere: the whole machine has {cpus_text(roomiest)} free. It shares all "
            f"of it and is {cpus_text(choice.short)} short.",
        )
    sentences = []
    if choice.passed:
        rung, most = choice.passed[-1]
        where = " beside its devices" if choice.beside else ""
        sentences.append(
            f"{asked}. No {_none(rung)} has that much free{where} (at most {number_text(most)}), so it gets "
            f"{_A[choice.rung]}."
        )
    else:
        sentences.append(
            f"{asked}; {_A[choice.rung]} has room for {'it' if request.cpu <= 1000 else 'them'}."
        )
    sentences.append(_parts(tree, choice))
    sentences.append(_decided(choice, taste))
    return tuple(sentences)


def burst_reason(request: CpuRequest, choice: SharedChoice, level: str) -> str:
    """Why a container has more than its request needs."""
    limit = "it has no limit" if request.limit is None else f"its limit is {cpus_text(request.limit)}"
    return f"It may spread to {_A[choice.rung]}, because {limit} and burst is {level}."


def exclusive_reasons(
    tree: PoolTree, cpus: CpuSet, taste: Taste, *, free_choice: bool = True
) -> tuple[str, ...]:
    """Why these CPUs; without a free choice the fewest places may not have been to be had."""
    sockets, nodes, l3s, split = spread_of(tree, cpus)
    cells = [tree.pools[cell.pool] for cell in tree.cells if cell.mask & cpus.mask]
    places = _listed([pool.title for pool in cells[:_MOST_NAMED]]) + (
        f" and {len(cells) - _MOST_NAMED} more" if len(cells) > _MOST_NAMED else ""
    )
    homes = sorted({node for pool in cells for node in pool.nodes})
    shown = _listed([f"NUMA node {node}" for node in homes[:_MOST_NAMED]])
    sentences = [
        f"It gets {cpus_text(len(cpus) * 1000)} of its own: {cpus}.",
        f"They are on {places}, on {shown}."
        if l3s <= _MOST_NAMED
        else f"They are on {l3s} CCXs of {nodes} NUMA nodes.",
    ]
    ways = [_count(sockets, "socket"), _count(nodes, "NUMA node"), _count(l3s, "L3 cache")]
    cores = (
        "no core is split" if not split else f"{_count(split, 'core')} {'is' if split == 1 else 'are'} split"
    )
    # Room for its memory and its devices go before L3s.
    fewest = free_choice and not taste.beside and not taste.avoided
    held = ", the fewest that can hold them now, and" if fewest else ";"
    sentences.append(f"That touches {_listed(ways)}{held} {cores}.")
    own = [pool.title for pool in cells if pool.cpus <= cpus]
    if own and len(own) < len(cells) <= _MOST_NAMED:
        are, they = ("is", "it is") if len(own) == 1 else ("are", "they are")
        sentences.append(f"{_listed(own)} {are} its own alone, so {they} whole again when it ends.")
    if taste.beside and set(homes) <= taste.beside:
        sentences.append("They are beside its devices.")
    elif taste.beside:
        sentences.append(
            f"Its devices are on {_listed([f'NUMA node {node}' for node in sorted(taste.beside)])}, where there was "
            "no room for all of it."
        )
    return tuple(sentences)


def _parts(tree: PoolTree, choice: SharedChoice) -> str:
    if len(choice.parts) == 1:
        pool, _ = choice.parts[0]
        where = (
            f" on NUMA node {min(pool.nodes)}" if pool.kind is PoolKind.CCX and len(pool.nodes) == 1 else ""
        )
        return f"It shares {pool.title}{where}: CPUs {pool.cpus}."
    (first, own), (second, rest) = choice.parts
    distance = min(tree.distance(one, other) for one in first.nodes for other in second.nodes)
    where = f" on NUMA node {min(second.nodes)}" if second.kind is PoolKind.CCX else ""
    return (
        f"{first.title[0].upper()}{first.title[1:]} holds {number_text(own)} of them and {second.title}{where} the "
        f"other {number_text(rest)}; no pair with room is nearer (NUMA distance {distance})."
    )


def _decided(choice: SharedChoice, taste: Taste) -> str:
    left = f"{cpus_text(choice.left)} stay{'s' if choice.left == 1000 else ''} free there"
    if choice.candidates == 1:
        return f"It is the only one with room; {left}."
    if choice.beside:
        return f"It is beside its devices; {left}."
    if taste.near:
        return f"It is the nearest of {choice.candidates} candidates to what it wants to be near; {left}."
    fit = "roomiest" if taste.spread else "best fit"
    return f"It is the {fit} of {choice.candidates} candidates; {left}."


def _none(rung: PoolRung) -> str:
    return {
        PoolRung.NUMA_CCX: "NUMA node with a CCX of another",
        PoolRung.NUMA_NUMA: "pair of NUMA nodes",
    }.get(rung, str(rung))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
