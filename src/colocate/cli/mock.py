"""`colocate mock`: make mock devices of a running agent fail, and work again; `mock_gpu` does so with GPUs."""

import argparse
import asyncio
from collections.abc import Callable, Iterator

from colocate.cli.agent_socket import add_asking
from colocate.cli.commands import Commands, add_output, seconds
from colocate.cli.main import GROUPS
from colocate.cli.mock_gpu import add_gpu
from colocate.cli.output import as_json
from colocate.config.words import list_of
from colocate.devices.mock.control import LIST, SET, ListMocks, ResourceStatus, SetFault, no_such_resource
from colocate.devices.mock.faults import Change, Clear, Fail, Hang, Healthy, Return, Slow, Unhealthy, Vanish
from colocate.errors import UserError
from colocate.model.device import Health
from colocate.wire import control_socket as control

Build = Callable[[argparse.Namespace], Change]


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "mock", help=GROUPS["mock"], description="Make mock devices of a running agent fail and recover."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    _add_list(commands)
    for name, ids_change, about in (
        ("unhealthy", Unhealthy, "break devices: the kubelet gives them to no new pod"),
        ("healthy", Healthy, "repair devices"),
        ("vanish", Vanish, "remove devices from the list"),
        ("return", Return, "put devices back into the list"),
    ):
        command = _command(commands, name, about, _with_ids(ids_change))
        command.add_argument("ids", nargs="+", metavar="ID")
    slow = _command(
        commands, "slow", "make Allocate slow", lambda args: Slow(seconds(args.seconds, "SECONDS"))
    )
    slow.add_argument("seconds", metavar="SECONDS", help="such as 5, 500ms or 1m; 0 ends it")
    fail = _command(commands, "fail", "Allocate fails", lambda args: Fail(args.message, _times(args.times)))
    fail.add_argument("message", nargs="?", default="failing on demand", metavar="MESSAGE")
    fail.add_argument("--times", metavar="N", help="how often; until cleared unless given")
    _command(commands, "hang", "make the plugin hang until cleared", lambda _: Hang())
    _command(commands, "clear", "clear all faults of a resource", lambda _: Clear())
    add_gpu(commands)


def _command(commands: Commands, name: str, about: str, build: Build) -> argparse.ArgumentParser:
    command = add_asking(commands, name, about)
    command.add_argument("resource", metavar="RESOURCE", help="such as mock/gpu")
    command.set_defaults(run=lambda args: change(args, build(args)))
    return command


def _with_ids(of: Callable[[tuple[str, ...]], Change]) -> Build:
    return lambda args: of(tuple(args.ids))


def _add_list(commands: Commands) -> None:
    command = add_asking(commands, "list", "show the mock resources, or the devices of one")
    command.add_argument("resource", nargs="?", metavar="RESOURCE", help="such as mock/gpu")
    add_output(command, "text", "json")
    command.set_defaults(run=show)


def change(args: argparse.Namespace, change: Change) -> None:
    print(summary(asyncio.run(control.ask(args.socket, SET, SetFault(args.resource, change)))))


def show(args: argparse.Namespace) -> None:
    found = asyncio.run(control.ask(args.socket, LIST, ListMocks())).resources
    if args.resource is not None:
        names = [status.resource for status in found]
        if args.resource not in names:
            raise UserError(no_such_resource(args.resource, names))
        found = tuple(status for status in found if status.resource == args.resource)
    if args.output == "json":
        print(as_json(found))
    elif not found:
        print("this agent has no mock resources; declare some under mock.resources in its configuration")
    else:
        for status in found:
            print(summary(status))
            if args.resource is not None:
                print(*_device_lines(status), sep="\n")


def summary(status: ResourceStatus) -> str:
    """A resource in one line."""
    here = [device for device in status.devices if not device.vanished]
    broken = [device.id for device in here if device.health is Health.UNHEALTHY]
    vanished = [device.id for device in status.devices if device.vanished]
    parts = [f"{len(here) - len(broken)} healthy"]
    if broken:
        parts.append(f"{len(broken)} unhealthy ({list_of(broken)})")
    if vanished:
        parts.append(f"{len(vanished)} vanished ({list_of(vanished)})")
    if status.slow:
        parts.append(f"Allocate takes {status.slow:g} s")
    if status.fail is not None:
        times = "until cleared" if status.fail.times is None else f"{status.fail.times}×"
        parts.append(f"Allocate fails {times} ({status.fail.message})")
    if status.hang:
        parts.append("hangs until cleared")
    return f"{status.resource}: {'; '.join(parts)}"


def _device_lines(status: ResourceStatus) -> Iterator[str]:
    width = max((len(device.id) for device in status.devices), default=0)
    for device in status.devices:
        state = "vanished" if device.vanished else device.health.lower()
        near = f"  NUMA node {', '.join(map(str, device.numa))}" if device.numa else ""
        yield f"  {device.id:<{width}}  {state}{near}"


def _times(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= 1_000_000:
        raise UserError(f"--times: {text[:40]!r} is not a whole number from 1 to 1000000")
    return int(text)
