"""`colocate topology`: a machine's CPUs as the kernel reports them, drawn or as JSON, and what a VM hides of them."""

import argparse
from pathlib import Path
from typing import Any

from colocate.cli.commands import Commands, add_command, add_output
from colocate.cli.cpu_picture import FREE, ISOLATED, TAKEN, legend, picture
from colocate.cli.main import GROUPS
from colocate.cli.output import as_json, has_colours, terminal_width, visible, wrapped
from colocate.cpus import PoolKind, PoolTree, lint_vm
from colocate.errors import UserError
from colocate.host.cpu_topology import read_topology
from colocate.host.libvirt_domain import read_domain
from colocate.model.cpu_shapes import machine, parse_shape
from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import CpuSet


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "topology",
        help=GROUPS["topology"],
        description="Look at the CPUs of this machine, or of a dump of another.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    show = add_command(commands, "show", "draw sockets, NUMA nodes, CCXs, cores and threads")
    add_machine(show)
    add_output(show, "text", "json")
    show.set_defaults(run=show_topology)
    lint = add_command(
        commands,
        "lint",
        "find what makes placement blind in a virtual machine",
        "With the topology of its host and its libvirt domain, the order of its virtual CPUs is checked too. "
        "Exits with 1 if something is found.",
    )
    add_machine(lint, taken=False)
    lint.add_argument(
        "--host", metavar="DUMP", help="a dump of the host's topology, or a shape such as hygon"
    )
    lint.add_argument("--domain", type=Path, metavar="XML", help="what 'virsh dumpxml' prints of the machine")
    add_output(lint, "text", "json")
    lint.set_defaults(run=lint_topology)


def add_machine(command: argparse.ArgumentParser, taken: bool = True) -> None:
    """Add the flags that choose the machine; this one by default."""
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--dump",
        type=Path,
        metavar="PATH",
        help="a copy of /sys/devices/system of another machine: a folder, or a tar archive (gzip, bzip2)",
    )
    which.add_argument(
        "--shape",
        metavar="SHAPE",
        help="simulated machine: hygon, epyc, xeon, arm, hybrid …, or sockets x NUMA nodes x CCXs x cores x threads, "
        "such as 2x4x2x4x2",
    )
    if taken:
        command.add_argument(
            "--taken", default="", metavar="LIST", help="CPUs that are in use already, such as 0-7,64-71"
        )


def chosen_machine(args: argparse.Namespace) -> CpuTopology:
    """The machine that the flags choose."""
    if args.shape:
        try:
            return machine(parse_shape(args.shape))
        except ValueError as error:
            raise UserError(f"--shape: {error}") from error
    return read_topology(args.dump)


def cpu_list(text: str, flag: str, online: CpuSet) -> CpuSet:
    """A list of CPUs of this machine."""
    try:
        cpus = CpuSet.parse(text)
    except ValueError as error:
        raise UserError(f"{flag}: {error}") from error
    if missing := cpus - online:
        raise UserError(f"{flag}: CPUs {missing} are not online on this machine, which has {online}")
    return cpus


def show_topology(args: argparse.Namespace) -> None:
    topology = chosen_machine(args)
    taken = cpu_list(args.taken, "--taken", topology.online)
    tree = PoolTree(topology)
    if args.output == "json":
        print(as_json(as_data(tree, taken)))
        return
    marks = dict.fromkeys(topology.isolated, ISOLATED) | dict.fromkeys(taken, TAKEN)
    colours = has_colours()
    print(*picture(tree, marks, width=terminal_width(), colours=colours), sep="\n")
    meanings = [(FREE, "free"), *([(TAKEN, "taken")] if taken else [])]
    meanings += [(ISOLATED, "isolated")] if topology.isolated else []
    print()
    print(legend([*meanings, (FREE * 2, "a core")], colours))


def as_data(tree: PoolTree, taken: CpuSet) -> dict[str, Any]:
    """A machine as data for programs."""
    topology = tree.topology
    return {
        "online": str(topology.online),
        "offline": str(topology.offline),
        "isolated": str(topology.isolated),
        "taken": str(taken),
        "sockets": [{"id": socket, "cpus": str(cpus)} for socket, cpus in sorted(topology.sockets().items())],
        "dies": [
            {"socket": socket, "id": die, "cpus": str(cpus)}
            for (socket, die), cpus in sorted(topology.dies().items())
        ],
        "nodes": [
            {
                "id": node.id,
                "cpus": str(node.cpus),
                "memory": node.memory,
                "free": node.free,
                "distances": {str(other): distance for other, distance in node.distances.items()},
            }
            for node in topology.nodes
        ],
        "l3": [{"id": l3, "cpus": str(cpus)} for l3, cpus in sorted(topology.l3s().items())],
        "ccxs": [
            {"name": pool.name, "cpus": str(pool.cpus), "node": min(pool.nodes)}
            for pool in tree.kind(PoolKind.CCX)
        ],
        "cores": [str(cpus) for _, cpus in sorted(topology.cores().items())],
        "kinds": {kind: str(cpus) for kind, cpus in topology.kinds.items()},
        "processor": topology.processor,
        "doubts": topology.doubts,
    }


def _host(text: str) -> CpuTopology:
    """A dump by its path, or else a simulated machine by its shape."""
    if Path(text).exists():
        return read_topology(Path(text))
    try:
        return machine(parse_shape(text))
    except ValueError as error:
        raise UserError(f"--host: there is no dump {text[:100]!r}, and {error}") from error


def lint_topology(args: argparse.Namespace) -> int:
    guest = chosen_machine(args)
    host = _host(args.host) if args.host else None
    domain = read_domain(args.domain) if args.domain else None
    if domain is not None and host is None:
        raise UserError("--domain is compared with the host's topology; add --host, a DUMP or a shape")
    findings = lint_vm(guest, host, domain)
    if args.output == "json":
        print(as_json(findings))
        return 1 if findings else 0
    width = terminal_width()
    shown: set[tuple[str, ...]] = set()
    for finding in findings:
        print(*wrapped(visible(f"! {finding.code}: {finding.sentence}"), width, hanging="  "), sep="\n")
        print(*wrapped(f"  → {finding.remedy}", width, hanging="    "), sep="\n")
        if finding.lines and finding.lines not in shown:
            print(*(f"      {line}" for line in finding.lines), sep="\n")
        shown.add(finding.lines)
    if not findings:
        print("Nothing found: sockets, NUMA nodes, L3 caches, cores and threads are reported correctly.")
    return 1 if findings else 0
