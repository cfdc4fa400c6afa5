"""`colocate cpus`: which CPUs containers would get on a machine, and why; offline, on any dump or simulated machine.

The commands that ask a running placer (`status`, `explain CONTAINER`, `off`, `on`) are in `placement`.
"""

import argparse
from typing import Any

import msgspec

from colocate.cli import placement
from colocate.cli.commands import Commands, add_command, add_output
from colocate.cli.cpu_picture import FREE, ISOLATED, RESERVED, SEVERAL, TAKEN, legend, picture
from colocate.cli.cpus_replay import add_replay
from colocate.cli.main import GROUPS
from colocate.cli.output import aligned, as_json, has_colours, terminal_width, visible, wrapped
from colocate.cli.topology import add_machine, chosen_machine, cpu_list
from colocate.cpus import (
    BurstLevel,
    CpuAllocator,
    CpuAssignment,
    CpuMode,
    CpuRefused,
    CpuRequest,
    CpuSettings,
    MilliCpu,
    fragmentation,
    parse_wishes,
)
from colocate.errors import UserError
from colocate.model import quantity
from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MOST_REQUESTS = 500
_TAKEN = "taken"


class PlannedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a plan, and its result."""

    name: str
    cpu: MilliCpu
    mode: str = ""
    rung: str = ""
    pools: tuple[str, ...] = ()
    cpus: str = ""
    mems: tuple[int, ...] = ()
    refused: str = ""
    reasons: tuple[str, ...] = ()


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "cpus",
        help=GROUPS["cpus"],
        description="Work out which CPUs containers would get, or ask the placer of this node.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    plan = add_command(
        commands,
        "plan",
        "place containers on a machine one after the other, and draw where they go",
        "Requests are shared containers unless --exclusive is given.",
    )
    plan.set_defaults(run=show_plan)
    explain = add_command(
        commands,
        "explain",
        "explain why a container has its CPUs, or why a request would get them",
        "With CONTAINER it asks the placer of this node; with --request it needs no placer.",
    )
    explain.add_argument(
        "container",
        nargs="?",
        metavar="CONTAINER",
        help="[NAMESPACE/]POD/CONTAINER, a container's name, or the beginning of its id",
    )
    placement.add_socket(explain)
    explain.set_defaults(run=show_explanation)
    for command in (plan, explain):
        add_machine(command)
        _add_request(command, required=command is plan)
        add_output(command, "text", "json")
    placement.add(commands)
    add_replay(commands)


def _add_request(command: argparse.ArgumentParser, *, required: bool) -> None:
    command.add_argument(
        "--request", required=required, metavar="CPUS", help="CPUs of each container, such as 8,24,1500m"
    )
    command.add_argument(
        "--exclusive", action="store_true", help="as guaranteed containers: whole CPUs of their own"
    )
    command.add_argument("--limit", metavar="CPUS", help="the CPU limit of each container (its request)")
    command.add_argument(
        "--memory", metavar="SIZE", help="the memory request of each container, such as 16Gi"
    )
    command.add_argument(
        "--wish", default="", metavar="WISHES", help="as in the annotation colocate.dev/cpus, such as strict"
    )
    command.add_argument(
        "--beside", default="", metavar="NODES", help="NUMA nodes of their devices, such as 3"
    )
    command.add_argument(
        "--reserved", default="", metavar="CPUS", help="CPUs for the system: a list such as 0,64"
    )
    command.add_argument(
        "--burst", choices=tuple(BurstLevel), default="ccx", help="how far a burst may spread"
    )


def show_plan(args: argparse.Namespace) -> int:
    allocator, planned = _planned(args)
    refused = any(each.refused for each in planned)
    if args.output == "json":
        print(as_json({"containers": planned, "fragmentation": _pieces(allocator)}))
        return 1 if refused else 0
    width, colours = terminal_width(), has_colours()
    print(*picture(allocator.tree, _marks(allocator, planned), width=width, colours=colours), sep="\n")
    print()
    print(legend(_meanings(allocator, planned), colours))
    print()
    for line in aligned([["", "CPUS", "ON", "MEMORY"], *(_row(each) for each in planned)]):
        print(*wrapped(line, width, hanging="    "), sep="\n")
    for each in planned:
        print()
        text = [f"{each.name}: {(each.reasons or (each.refused,))[0]}", *each.reasons[1:]]
        for sentence in text:
            print(
                *wrapped(
                    visible(sentence), width, hanging="   ", indent="" if sentence is text[0] else "   "
                ),
                sep="\n",
            )
    print()
    for sentence in _fragmented(allocator):
        print(*wrapped(sentence, width, hanging="  "), sep="\n")
    return 1 if refused else 0


def show_explanation(args: argparse.Namespace) -> int:
    if (args.container is None) == (args.request is None):
        raise UserError("name a CONTAINER of this node, or give --request CPUS for one that might come")
    if args.container is not None:
        return placement.show_container(args)
    _, planned = _planned(args)
    refused = any(each.refused for each in planned)
    if args.output == "json":
        print(as_json(planned))
        return 1 if refused else 0
    for place, each in enumerate(planned):
        if len(planned) > 1:
            print(f"{'' if place == 0 else chr(10)}{each.name}:")
        for sentence in each.reasons or (each.refused,):
            print(*wrapped(visible(sentence), terminal_width(), hanging="  "), sep="\n")
    return 1 if refused else 0


def _planned(args: argparse.Namespace) -> tuple[CpuAllocator, list[PlannedContainer]]:
    """The machine with all requests placed, and the result of each."""
    topology = chosen_machine(args)
    taken = cpu_list(args.taken, "--taken", topology.online)
    reserved = cpu_list(args.reserved, "--reserved", topology.online)
    if not taken.isdisjoint(reserved):
        raise UserError(f"--taken and --reserved both name CPUs {taken & reserved}; remove them from one")
    settings = CpuSettings(
        reserved=reserved, wish_namespaces=("default",), burst=BurstLevel(args.burst), reserved_namespaces=()
    )
    allocator = CpuAllocator(topology, settings)
    if taken and allocator.sets.ordinary <= taken:
        raise UserError("--taken: it leaves no CPU for containers; leave some of them free")
    if taken:
        own = CpuRequest(pod=_TAKEN, container=_TAKEN, cpu=len(taken) * 1000)
        allocator.put(CpuAssignment(request=own, mode=CpuMode.EXCLUSIVE, cpus=taken))
    requests = _requests(args, topology)
    refusals: dict[str, str] = {}
    for request in requests:
        try:
            allocator.assign(request)
        except CpuRefused as refused:
            refusals[request.container] = str(refused)
    return allocator, [_outcome(allocator, request, refusals) for request in requests]


def _requests(args: argparse.Namespace, topology: CpuTopology) -> list[CpuRequest]:
    wishes = parse_wishes(args.wish)
    online = len(topology.cpus)
    amounts = [_cpu(text, "--request", online) for text in args.request.split(",")]
    if len(amounts) > _MOST_REQUESTS:
        raise UserError(f"--request: {len(amounts)} containers are too many; give at most {_MOST_REQUESTS}")
    if 0 in amounts:
        raise UserError("--request: 0 CPUs cannot be placed; ask for more than 0")
    limit = _cpu(args.limit, "--limit", None) if args.limit else None
    if limit is not None and limit < max(amounts):
        raise UserError(f"--limit: {args.limit} is less than a request; give at least as much")
    nodes = _nodes(args.beside, topology)
    names = [_LETTERS[n] if len(amounts) <= len(_LETTERS) else f"{n + 1}" for n in range(len(amounts))]
    return [
        CpuRequest(
            pod=f"{number:04}",
            container=name,
            cpu=amount,
            limit=amount if args.exclusive else limit or amount,
            memory=_memory(args.memory),
            qos=QosClass.GUARANTEED if args.exclusive else QosClass.BURSTABLE,
            wishes=wishes,
            beside=nodes,
        )
        for number, (name, amount) in enumerate(zip(names, amounts, strict=True))
    ]


def _cpu(text: str, flag: str, online: int | None) -> MilliCpu:
    try:
        amount = quantity.milli(text.strip())
    except ValueError as error:
        raise UserError(f"{flag}: {error}") from error
    if amount < 0:
        raise UserError(f"{flag}: {text.strip()} CPUs: must be greater than 0; ask for more")
    if online is not None and amount > online * 1000:
        raise UserError(
            f"{flag}: {text.strip()[:40]} CPUs are more than the {online} that this machine has online"
        )
    return amount


def _memory(text: str | None) -> int:
    if not text:
        return 0
    try:
        size = quantity.whole(text)
    except ValueError as error:
        raise UserError(f"--memory: {error}") from error
    if size < 0:
        raise UserError(f"--memory: {text} is negative; give a size such as 16Gi")
    return size


def _nodes(text: str, topology: CpuTopology) -> tuple[int, ...]:
    known = CpuSet.of(node.id for node in topology.nodes)
    try:
        nodes = CpuSet.parse(text)
    except ValueError as error:
        raise UserError(f"--beside: {str(error).replace('CPUs', 'NUMA nodes')}") from error
    if missing := nodes - known:
        raise UserError(f"--beside: there is no NUMA node {missing}; this machine has {known}")
    return tuple(nodes)


def _outcome(allocator: CpuAllocator, request: CpuRequest, refusals: dict[str, str]) -> PlannedContainer:
    found = allocator.assignments.get(request.key)
    if found is None:
        return PlannedContainer(name=request.container, cpu=request.cpu, refused=refusals[request.container])
    touched = found.cpus.mask
    cells = [allocator.tree.pools[cell.pool].title for cell in allocator.tree.cells if cell.mask & touched]
    titles = [allocator.tree.by_name[share.pool].title for share in found.parts]
    return PlannedContainer(
        name=request.container,
        cpu=request.cpu,
        mode=found.mode,
        rung=found.rung,
        pools=tuple(titles or cells),
        cpus=str(allocator.cpus_of(found)),
        mems=allocator.mems_of(found),
        reasons=tuple(allocator.explain(request.key)),
    )


def _row(each: PlannedContainer) -> list[str]:
    cpu = f"{each.cpu / 1000:g}"
    if each.refused:
        return [each.name, cpu, "refused", ""]
    pools = " + ".join(each.pools) if len(each.pools) <= 4 else f"{len(each.pools)} CCXs"
    alone = " alone" if each.mode == CpuMode.EXCLUSIVE else ""
    return [each.name, cpu, f"{pools}{alone}: {each.cpus}", ",".join(map(str, each.mems)) or "any"]


def _marks(allocator: CpuAllocator, planned: list[PlannedContainer]) -> dict[int, str]:
    """A letter for every CPU that a container may use."""
    marks = dict.fromkeys(allocator.sets.isolated, ISOLATED)
    marks |= dict.fromkeys(allocator.sets.reserved, RESERVED)
    for each in planned:
        mark = each.name if len(each.name) == 1 else TAKEN
        shown = mark if each.mode == CpuMode.EXCLUSIVE else mark.lower()
        for cpu in CpuSet.parse(each.cpus):
            marks[cpu] = shown if marks.get(cpu, FREE) in (FREE, shown) else SEVERAL
    taken = allocator.assignments.get((_TAKEN, _TAKEN))
    return marks | dict.fromkeys(taken.cpus if taken else (), TAKEN)


def _meanings(allocator: CpuAllocator, planned: list[PlannedContainer]) -> list[tuple[str, str]]:
    used = set(_marks(allocator, planned).values())
    meanings = [
        (FREE, "free"),
        (TAKEN, "taken"),
        (RESERVED, "reserved"),
        (ISOLATED, "isolated"),
        (SEVERAL, "several"),
    ]
    found = [(mark, meaning) for mark, meaning in meanings if mark == FREE or mark in used]
    if any(mark.islower() for mark in used):
        found.append(("a", "shared"))
    if any(mark.isupper() for mark in used):
        found.append(("A", "exclusive"))
    return found


def _pieces(allocator: CpuAllocator) -> dict[str, Any]:
    found = fragmentation(allocator)
    return {
        "ccxs": {str(size): count for size, count in found.ccx_sizes.items()},
        "whole": found.whole,
        "largest": {kind: amount / 1000 for kind, amount in found.largest.items()},
        "after": found.after,
        "moves": [
            {"container": move.key[1], "before": str(move.before), "after": str(move.after), "why": move.why}
            for move in found.moves
        ],
    }


def _fragmented(allocator: CpuAllocator) -> list[str]:
    found = fragmentation(allocator)
    count = sum(found.ccx_sizes.values())
    largest = {kind: amount / 1000 for kind, amount in found.largest.items()}
    sentences = [
        f"{len(found.whole)} requests of the size of a CCX fit now, of {count} CCXs.",
        f"The most that still fits: {largest['ccx']:g} CPUs into a CCX, {largest['numa']:g} into a NUMA node, "
        f"{largest['socket']:g} into a socket, {largest['machine']:g} into the machine.",
    ]
    if len(found.after) > len(found.whole):
        sentences.append(f"With these moves {len(found.after)} would:")
        sentences += [
            f"  move {move.key[1]} from {move.before} to {move.after}: {move.why}" for move in found.moves
        ]
    return sentences
