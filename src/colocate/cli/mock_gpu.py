"""`colocate mock gpu`: make mock GPUs of a running agent fail and recover."""

import argparse
import asyncio
from collections.abc import Callable, Mapping

from colocate.cli.agent_socket import add_asking
from colocate.cli.commands import Commands, add_output
from colocate.cli.output import as_json, fitted, terminal_width, visible
from colocate.errors import UserError
from colocate.gpus.agent.control import GPU_REPORT, AskGpuReport
from colocate.gpus.agent.mock_faults import (
    LIST_GPUS,
    SET_FAULT,
    GpuFault,
    ListMockGpus,
    LoseGpu,
    MockGpuList,
    RaiseXid,
    RecoverGpu,
    ReplaceGpu,
    SetGpuFault,
    SilenceDriver,
    UseGpu,
)
from colocate.model.figures import amount
from colocate.model.values import to_size
from colocate.wire import control_socket as control

Build = Callable[[argparse.Namespace], GpuFault]


def add_gpu(groups: Commands) -> None:
    parser = groups.add_parser(
        "gpu",
        help="make mock GPUs fail and recover",
        description="Make mock GPUs of a running agent fail and recover. GPU is an index, a UUID, or how one begins.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    listing = add_asking(commands, "list", "show the mock GPUs")
    add_output(listing, "text", "json")
    listing.set_defaults(run=show)
    xid = _command(
        commands, "xid", "let the driver report an error", lambda args: RaiseXid(args.gpu, _code(args.code))
    )
    xid.add_argument("code", metavar="XID", help="NVIDIA's number, such as 48 or 79")
    _command(commands, "lose", "let a GPU fall off the bus", lambda args: LoseGpu(args.gpu))
    _command(commands, "recover", "let it answer again", lambda args: RecoverGpu(args.gpu))
    memory = _command(
        commands, "memory", "set how much memory is in use", lambda args: UseGpu(args.gpu, _size(args.size))
    )
    memory.add_argument("size", metavar="SIZE", help="such as 512Mi or 4Gi")
    replace = _command(
        commands, "replace", "put another GPU in its place", lambda args: ReplaceGpu(args.gpu, args.uuid)
    )
    replace.add_argument(
        "uuid", metavar="UUID", nargs="?", default="", help="the UUID of the new GPU (a new one)"
    )
    silent = add_asking(commands, "silence", "let the driver answer no question")
    silent.add_argument("reason", nargs="?", default="the driver is not loaded", metavar="REASON")
    silent.set_defaults(run=lambda args: change(args, SilenceDriver(args.reason or "silenced")))
    answer = add_asking(commands, "answer", "let the driver answer again")
    answer.set_defaults(run=lambda args: change(args, SilenceDriver()))


def _command(commands: Commands, name: str, about: str, build: Build) -> argparse.ArgumentParser:
    command = add_asking(commands, name, about)
    command.add_argument("gpu", metavar="GPU", help="index, UUID, or how one begins")
    command.set_defaults(run=lambda args: change(args, build(args)))
    return command


def change(args: argparse.Namespace, fault: GpuFault) -> None:
    found = asyncio.run(control.ask(args.socket, SET_FAULT, SetGpuFault(fault)))
    # The agent learns of an XID a moment later, so do not ask it yet.
    told = {_uuid(found, fault.gpu): f"reports XID {fault.code}"} if isinstance(fault, RaiseXid) else {}
    print_mock_gpus(found, _troubles(args) | told)


def show(args: argparse.Namespace) -> None:
    found = asyncio.run(control.ask(args.socket, LIST_GPUS, ListMockGpus()))
    if args.output == "json":
        print(as_json(found))
    else:
        print_mock_gpus(found, _troubles(args))


def _troubles(args: argparse.Namespace) -> dict[str, str]:
    """By UUID, why the agent gives out no memory of a GPU."""
    report = asyncio.run(control.ask(args.socket, GPU_REPORT, AskGpuReport()))
    return {gpu.uuid: f"unhealthy: {gpu.trouble}" for gpu in report.gpus if not gpu.healthy and gpu.trouble}


def _uuid(found: MockGpuList, name: str) -> str:
    """The UUID of the GPU with this index, UUID, or beginning of a UUID."""
    named = (gpu.uuid for gpu in found.gpus if gpu.uuid.lower().startswith(name.lower()))
    indexed = (gpu.uuid for gpu in found.gpus if name.isdigit() and gpu.index == int(name))
    return next(indexed, "") or next(named, "")


def print_mock_gpus(found: MockGpuList, troubles: Mapping[str, str]) -> None:
    """A line for each GPU; `troubles` by UUID, why no memory of a GPU is given out."""
    rows = [["GPU", "UUID", "MODEL", "MEMORY", "USED", "STATE"]]
    for gpu in found.gpus:
        state = "silent" if found.silent else "off the bus" if gpu.lost else "MIG mode" if gpu.mig else ""
        state = state or visible(troubles.get(gpu.uuid, "answers"))
        rows.append([str(gpu.index), gpu.uuid, gpu.model, amount(gpu.memory), amount(gpu.used), state])
    print(*fitted(rows, terminal_width()), sep="\n")
    if found.silent:
        print(visible(f"the driver answers no question: {found.silent}"))


def _code(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise UserError(f"{text[:40]!r} is no XID; give a number from 1 on, such as 48 or 79")
    return int(text)


def _size(text: str) -> int:
    try:
        return int(to_size(text))
    except ValueError as error:
        raise UserError(f"SIZE: {text[:40]!r} is not {error}") from error
