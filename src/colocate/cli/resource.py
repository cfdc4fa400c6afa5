"""`colocate resource`: list extended resources of nodes, advertise one by hand, remove one for good."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from colocate.cli import cluster_flags
from colocate.cli.commands import Commands, add_asking_first, add_command, confirm, positive_seconds
from colocate.cli.main import GROUPS
from colocate.cli.output import as_json, as_yaml, terminal_width, visible
from colocate.cli.resource_progress import Progress
from colocate.cli.resource_table import span, state, table
from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.errors import ServerError
from colocate.cluster.json_patch import Patch
from colocate.devices.extended_resources import ExtendedResource, ResourceState, remember
from colocate.devices.resources import advertisement
from colocate.devices.resources.local_kubelet import LocalKubelet
from colocate.devices.resources.observe import ResourceLook, ResourceObserver
from colocate.devices.resources.removal import Removal, RemovalSettings
from colocate.errors import Unavailable, UserError
from colocate.gpus import WRITTEN_BESIDE
from colocate.host.identity import this_machine, this_node
from colocate.kubelet.paths import DEFAULT_ROOT, ROOT_VARIABLE, KubeletPaths

T = TypeVar("T")

_WATCH_EVERY = 2.0
_CLEAR = "\x1b[H\x1b[J"
EXIT_CODES = (
    "0: removed; 1: not removed, with the reason; 2: not tried, because of a wrong argument or your answer"
)


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "resource",
        help=GROUPS["resource"],
        description="List extended resources of nodes with what provides them, and remove the ones left "
        "behind.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    _add_list(commands)
    _add_advertise(commands)
    _add_remove(commands)


def _add_list(commands: Commands) -> None:
    command = _command(
        commands,
        "list",
        "list the extended resources of all nodes, and what provides them",
        "A question mark after a state means that it is inferred from the API; -o wide shows from what.",
    )
    command.add_argument("--node", metavar="NAME", help="only this node")
    command.add_argument(
        "-o", "--output", choices=("table", "wide", "json", "yaml"), default="table", help="output format"
    )
    command.add_argument(
        "--watch", "-w", action="store_true", help="print again every two seconds, until Ctrl-C"
    )
    command.set_defaults(run=show)


def _add_advertise(commands: Commands) -> None:
    command = _command(
        commands,
        "advertise",
        "give a node a number of a resource by hand",
        "No plugin provides it: the scheduler counts pods against it, but pods get no device.",
    )
    command.add_argument("node", metavar="NODE")
    command.add_argument("wish", metavar="NAME=N", help="such as example.com/fan=4")
    add_asking_first(command)
    command.set_defaults(run=advertise)


def _add_remove(commands: Commands) -> None:
    command = _command(
        commands,
        "remove",
        "remove a resource from a node for good",
        "Waits until the kubelet forgets the resource (five minutes after its plugin stopped or the kubelet "
        f"started), removes it, and checks that it stays away. Exit code {EXIT_CODES}.",
    )
    command.add_argument("node", metavar="NODE")
    command.add_argument("name", metavar="NAME", help="such as example.com/fan")
    command.add_argument(
        "--now",
        action="store_true",
        help="try it before the kubelet forgets the resource; the kubelet then puts it back",
    )
    command.add_argument(
        "--timeout",
        default="15m",
        metavar="SPAN",
        help="time limit without the time for your answer, such as 600, 90s or 15m (15m)",
    )
    add_asking_first(command)
    command.set_defaults(run=remove)


def _command(commands: Commands, name: str, about: str, more: str) -> argparse.ArgumentParser:
    command = add_command(commands, name, about, more)
    cluster_flags.add_flags(command)
    command.add_argument(
        "--kubelet-root",
        type=Path,
        metavar="FOLDER",
        help="the folder of this machine's kubelet, which knows more if this machine is a node; of the given "
        f"node, if several nodes share this machine; else {ROOT_VARIABLE}, else {DEFAULT_ROOT}",
    )
    return command


def show(args: argparse.Namespace) -> None:
    if args.watch and args.output not in ("table", "wide"):
        raise UserError(f"--watch prints tables, not {args.output}; leave one out")
    asyncio.run(_show(args))


async def _show(args: argparse.Namespace) -> None:
    looks: list[ResourceLook] | None = None
    async with _observing(args) as (_, observer):
        while True:
            try:
                looks = await _look(observer, args.node, looks or [])
            except (Unavailable, ServerError) as error:
                if looks is None:
                    raise
                # Keep a countdown running after an error.
                print(f"{visible(str(error))}; trying again", flush=True)
            else:
                _print([one for look in looks for one in look.resources], args)
            if not args.watch:
                return
            await asyncio.sleep(_WATCH_EVERY)


async def _look(
    observer: ResourceObserver, node: str | None, earlier: Sequence[ResourceLook]
) -> list[ResourceLook]:
    before = {look.node.name: remember(look.resources) for look in earlier}
    if node is None:
        return await observer.all_nodes(before)
    return [await observer.node(node, before.get(node))]


def _print(found: list[ExtendedResource], args: argparse.Namespace) -> None:
    if args.output == "json":
        print(as_json(found))
    elif args.output == "yaml":
        print(as_yaml(found))
    else:
        clear = _CLEAR if args.watch and sys.stdout.isatty() else ""
        wide = args.output == "wide"
        shown = table(found, wide=wide, width=0 if wide else terminal_width(), counts_down=args.watch)
        lines = list(shown) if found else [_nothing(args)]
        print(clear + "\n".join(lines), flush=True)


def _nothing(args: argparse.Namespace) -> str:
    return f"{f'node {args.node}' if args.node else 'no node'} has {'no' if args.node else 'any'} extended resource"


def advertise(args: argparse.Namespace) -> None:
    wish = advertisement.read_wish(args.node, args.wish)
    plan = _ask(args, lambda _, observer: advertisement.plan(observer, wish))
    if not plan.patch:
        print(f"node {wish.node} has {wish.count} {wish.name} already")
        return
    found = plan.found
    print(f"node {wish.node}: {wish.name} {_was(found)} -> {wish.count}")
    _show_patch(plan.patch)
    if found is not None and found.requested > wish.count:
        print(f"note: pods there request {found.requested} of it, more than there will be")
    if not args.dry_run:
        confirm(args, f"Advertise {wish.count} {wish.name} on node {wish.node}?")
    _ask(args, lambda client, observer: advertisement.advertise(client, observer, wish, args.dry_run))
    if args.dry_run:
        print("the API server would accept it; nothing was changed (--dry-run)")
    else:
        print(
            f"advertised; the kubelet of {wish.node} makes it allocatable with its next sync, within about 10 s"
        )


def remove(args: argparse.Namespace) -> None:
    settings = RemovalSettings(positive_seconds(args.timeout, "--timeout"), args.now)
    progress = Progress(sys.stdout)

    begun: list[Removal] = []
    spent = 0.0

    def removal(client: Client, observer: ResourceObserver) -> Removal:
        begun.append(
            Removal(client, observer, SystemClock(), args.node, args.name, settings, progress, spent)
        )
        return begun[-1]

    found, patch = _ask(args, lambda client, observer: removal(client, observer).plan())
    spent = begun[-1].spent  # The time for the user's answer does not count.
    print(visible(f"{found.name} on node {found.node}: {state(found)}; {found.reason}"))
    _show_patch(patch)
    if found.state in (ResourceState.STALE, ResourceState.UNHEALTHY):
        print(_about_grace(found, args.now))
    if args.dry_run:
        print("the API server would accept it; nothing was changed (--dry-run)")
        return
    confirm(args, f"Remove {found.name} from node {found.node}?")
    try:
        _ask(args, lambda client, observer: removal(client, observer).run())
    except KeyboardInterrupt:
        progress.line(f"interrupted: {begun[-1].so_far}")
        raise
    finally:
        progress.close()
    print(f"{found.name} is gone from node {found.node}, and has stayed away for a sync of its kubelet")


def _about_grace(found: ExtendedResource, now: bool) -> str:
    left = "up to five minutes" if found.remaining is None else f"at most {span(found.remaining)} more"
    if now:
        return f"too early: the kubelet waits for its plugin, {left}; until then it puts the resource back"
    return f"the kubelet waits for its plugin, {left}; this command waits too"


def _was(found: ExtendedResource | None) -> str:
    return "none" if found is None or found.capacity is None else str(found.capacity)


def _show_patch(patch: Patch) -> None:
    if patch:
        print(visible(f"patch of status: {msgspec.json.encode(patch).decode()}"))


def _ask(args: argparse.Namespace, deed: Callable[[Client, ResourceObserver], Awaitable[T]]) -> T:
    """Run something that needs the cluster in an event loop of its own: between two of them the user is asked."""

    async def ask() -> T:
        async with _observing(args) as (client, observer):
            return await deed(client, observer)

    return asyncio.run(ask())


@asynccontextmanager
async def _observing(args: argparse.Namespace) -> AsyncIterator[tuple[Client, ResourceObserver]]:
    clock = SystemClock()
    paths = KubeletPaths(args.kubelet_root) if args.kubelet_root else KubeletPaths.from_environment()
    # A folder and a node given together belong together; the variable may be set for another node.
    node = (args.node if args.kubelet_root else None) or this_node()
    async with Client(cluster_flags.find(args), clock) as client:
        kubelet = LocalKubelet(paths, this_machine(), clock, node=node)
        yield client, ResourceObserver(client, kubelet, clock, WRITTEN_BESIDE)
