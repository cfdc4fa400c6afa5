"""`colocate gpu units`: what a unit of GPU memory costs a kubelet, and how to convert manifests."""

import argparse
import re
from collections.abc import Iterator, Sequence

from colocate.cli.commands import Commands, add_command
from colocate.cli.output import aligned
from colocate.errors import UserError
from colocate.gpus import COLOCATE, DOSLAB, device_cost, dialect, message_bytes
from colocate.kubelet import MESSAGE_LIMIT
from colocate.model import quantity
from colocate.model.gpu import Gpu, Mebibytes

_UNITS: Sequence[Mebibytes] = (1, 16, 64, 128, 256, 512, 1024)
_MACHINES = ("1x16Gi", "8x24Gi", "8x80Gi", "8x192Gi")
_AMOUNTS = ("256Mi", "512Mi", "1Gi", "2Gi", "4Gi", "8Gi", "16Gi", "24Gi", "40Gi", "80Gi")
_GPUS = re.compile(r"(\d{1,2})x(.+)", re.ASCII)
_MOST: Mebibytes = 1 << 24


def add_units(commands: Commands) -> None:
    command = add_command(
        commands,
        "units",
        "what a unit of GPU memory costs a kubelet, and how to convert manifests to another unit",
        "Needs no cluster: the figures are those of the machines that you name.",
    )
    command.add_argument(
        "--gpus",
        action="append",
        metavar="NxSIZE",
        help=f"GPUs of a node, such as 8x80Gi; may be repeated ({', '.join(_MACHINES)})",
    )
    command.add_argument(
        "--from",
        dest="old",
        default=f"{DOSLAB.unit}Mi",
        metavar="UNIT",
        help="the unit that manifests are written in (%(default)s)",
    )
    command.add_argument(
        "--to",
        dest="new",
        default=f"{COLOCATE.unit}Mi",
        metavar="UNIT",
        help="the unit to convert them to (%(default)s)",
    )
    command.add_argument(
        "amounts",
        nargs="*",
        metavar="AMOUNT",
        help=f"amounts of memory to translate ({_AMOUNTS[0]} to {_AMOUNTS[-1]})",
    )
    command.set_defaults(run=show_units)


def show_units(args: argparse.Namespace) -> None:
    machines = [_machine(text) for text in args.gpus or _MACHINES]
    old, new = _mebibytes(args.old, "--from"), _mebibytes(args.new, "--to")
    amounts = [(text, _mebibytes(text, "AMOUNT")) for text in args.amounts or _AMOUNTS]
    print(*aligned(list(_costs(machines))), sep="\n")
    print("\nSECONDS is how long at most a kubelet from 1.36 on starts no pod when it restarts.\n")
    rows = [["MEMORY", f"IN {args.old}", f"IN {args.new}"]]
    rows += [[text, str(-(-amount // old)), str(-(-amount // new))] for text, amount in amounts]
    print(*aligned(rows), sep="\n")


def _costs(machines: Sequence[tuple[str, Sequence[Gpu]]]) -> Iterator[list[str]]:
    yield ["GPUS", "UNIT", "DEVICES", "SECONDS", ""]
    for name, gpus in machines:
        for unit in _UNITS:
            cost = device_cost(gpus, [dialect(COLOCATE.name, unit)])
            remark = ""
            if message_bytes(gpus, unit) > MESSAGE_LIMIT:
                remark = "more than one message takes: never offered"
            elif cost.is_dear:
                remark = "not offered to kubelets from 1.36 on"
            elif unit == COLOCATE.unit:
                remark = f"what {COLOCATE.name} has"
            yield [name, f"{unit}Mi", str(cost.devices), f"{cost.seconds:.1f}", remark]


def _machine(text: str) -> tuple[str, Sequence[Gpu]]:
    match = _GPUS.fullmatch(text)
    if match is None or not int(match[1]):
        raise UserError(f"--gpus: {text[:40]!r} names no GPUs; write how many and how large, such as 8x80Gi")
    memory = _mebibytes(match[2], "--gpus")
    return text, [Gpu(uuid=f"GPU-{place:04x}", index=place, memory=memory) for place in range(int(match[1]))]


def _mebibytes(text: str, flag: str) -> Mebibytes:
    try:
        size = quantity.whole(text[:40])
    except ValueError:
        size = 0
    if size % (1 << 20) or not 0 < size >> 20 <= _MOST:
        raise UserError(
            f"{flag}: {text[:40]!r} is no amount of GPU memory; write it in whole Mi or Gi, such as 256Mi"
        )
    return size >> 20
