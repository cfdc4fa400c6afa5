"""Draws a machine: a line for every CCX, a mark for every CPU, the threads of a core side by side."""

from collections.abc import Iterator, Mapping, Sequence

from colocate.cli.output import wrapped
from colocate.cpus import PoolKind, PoolTree
from colocate.model.cpu_topology import NumaNode
from colocate.model.memory import Bytes

FREE, TAKEN, RESERVED, ISOLATED, SEVERAL = "□", "■", "#", "*", "+"
_COLOURS = {FREE: "32", TAKEN: "31", RESERVED: "90", ISOLATED: "33"}
_OTHERS = "36"
_NARROW = 60
_DRAWN_DISTANCES = 32


def picture(
    tree: PoolTree, marks: Mapping[int, str], *, width: int = 0, colours: bool = False
) -> Iterator[str]:
    """The machine line by line; a CPU without a mark is free."""
    topology = tree.topology
    yield from wrapped(_summary(tree), width, hanging="  ")
    for socket, cpus in sorted(topology.sockets().items()):
        yield ""
        yield f"socket {socket}"
        homes = [node for node in topology.nodes if not node.cpus.isdisjoint(cpus)]
        for place, node in enumerate(homes):
            last = place == len(homes) - 1
            yield f"{'└─' if last else '├─'} {_node_title(node)}"
            for line in _ccxs(tree, node, socket, marks, width, colours):
                yield f"{'  ' if last else '│ '} {line}"
    for node in topology.nodes:
        if not node.cpus:
            yield ""
            yield f"{_node_title(node)}, memory without CPUs"
    yield from _distances(topology.nodes, width)
    if topology.offline:
        yield from wrapped(f"offline: {topology.offline}", width, hanging="  ")
    for doubt in topology.doubts:
        yield from wrapped(f"! {doubt}", width, hanging="  ")


def legend(meanings: Sequence[tuple[str, str]], colours: bool) -> str:
    """What the marks mean, in one line."""
    return "   ".join(f"{_painted(mark, colours)} {meaning}" for mark, meaning in meanings)


def memory_text(memory: Bytes | None) -> str:
    return "" if memory is None else f"{memory / (1 << 30):.1f} GiB"


def _summary(tree: PoolTree) -> str:
    topology = tree.topology
    ccxs = tree.kind(PoolKind.CCX)
    parts = [
        _count(len(topology.sockets()), "socket"),
        _count(len(topology.nodes), "NUMA node"),
        _count(len(ccxs), "CCX", "CCXs") if topology.l3s() else "no L3 caches told",
        _count(len(topology.cores()), "core"),
        _count(len(topology.cpus), "CPU"),
    ]
    dies = topology.dies()
    if len(dies) > len(topology.sockets()):
        parts.insert(1, _count(len(dies), "die"))
    text = ", ".join(parts)
    kinds = [f"{kind} {cpus}" for kind, cpus in topology.kinds.items()]
    return f"{text}; cores of several kinds: {'; '.join(kinds)}" if kinds else text


def _node_title(node: NumaNode) -> str:
    memory = memory_text(node.memory)
    return f"NUMA node {node.id}" + (f"  {memory}" if memory else "")


def _ccxs(
    tree: PoolTree, node: NumaNode, socket: int, marks: Mapping[int, str], width: int, colours: bool
) -> Iterator[str]:
    own = [cell for cell in tree.cells if cell.node == node.id and cell.socket == socket]
    names = [tree.pools[cell.pool].title for cell in tree.cells]
    label = max(map(len, names))
    room = max(16, (width or 100) - label - 5)
    for cell in own:
        pool = tree.pools[cell.pool]
        pieces = ["".join(marks.get(cpu, FREE) for cpu in _bits(core)) for core in cell.cores]
        lines = _filled(pieces, room)
        listed = str(pool.cpus)
        for place, line in enumerate(lines):
            head = pool.title if place == 0 else ""
            fits = len(line) + 3 + len(listed) <= room
            tail = f"   {listed}" if place == len(lines) - 1 and fits else ""
            yield f"{head:<{label}}  {_painted(line, colours)}{tail}"
        if not fits:
            yield from (f"{'':<{label}}  {line}" for line in _filled(listed.split(","), room, ","))


def _filled(pieces: Sequence[str], room: int, between: str = " ") -> list[str]:
    """Pieces side by side, as many to a line as fit."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(between) + len(piece) <= room:
            lines[-1] += between + piece
        else:
            lines.append(piece)
    return lines


def _distances(nodes: Sequence[NumaNode], width: int) -> Iterator[str]:
    if not 1 < len(nodes) <= _DRAWN_DISTANCES or not any(node.distances for node in nodes):
        return
    cell = max(len(str(node.distance(other.id))) for node in nodes for other in nodes) + 1
    if width and 10 + cell * len(nodes) > width:
        return
    yield ""
    yield "distance  " + "".join(f"{node.id:>{cell}}" for node in nodes)
    for node in nodes:
        yield f"{node.id:>8}  " + "".join(f"{node.distance(other.id):>{cell}}" for other in nodes)


def _painted(text: str, colours: bool) -> str:
    if not colours:
        return text
    return "".join(
        mark if mark == " " else f"\x1b[{_COLOURS.get(mark, _OTHERS)}m{mark}\x1b[0m" for mark in text
    )


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _count(number: int, noun: str, several: str = "") -> str:
    return f"{number} {noun if number == 1 else several or f'{noun}s'}"
