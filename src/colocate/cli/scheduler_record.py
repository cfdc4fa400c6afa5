"""`colocate scheduler record`: writes what a running scheduler sees to a file for `colocate scheduler replay`."""

import argparse
import asyncio
import secrets
import sys
from pathlib import Path

import uvloop

from colocate.aio import first, with_signals
from colocate.cli import scheduler_questions
from colocate.cli.commands import Commands, add_command
from colocate.clock import SystemClock
from colocate.errors import UserError, system_reason
from colocate.load import MOST_RECORDED, LoadRecorder, hashing
from colocate.model.figures import count
from colocate.model.values import to_seconds, to_size
from colocate.scheduler import client as questions
from colocate.scheduler.client import Where
from colocate.scheduler.record import Recorded, RecordSettings, record

_LONGEST = 14 * 86_400.0


def add(commands: Commands) -> None:
    command = add_command(
        commands,
        "record",
        "record nodes, pods and samples of a running scheduler for 'colocate scheduler replay'",
        "SIGINT and SIGTERM end the recording; what was seen so far is written.",
    )
    command.add_argument("file", type=Path, metavar="FILE", help="the file to write; only you can read it")
    command.add_argument("--for", dest="span", default="24h", metavar="TIME", help="how long (%(default)s)")
    command.add_argument(
        "--every", default="60s", metavar="TIME", help="time between two samples (%(default)s)"
    )
    command.add_argument(
        "--most", default="1Gi", metavar="SIZE", help="end when this much memory is used (%(default)s)"
    )
    command.add_argument(
        "--hash-names",
        action="store_true",
        help="replace names of nodes, pods, owners and taints by irreversible hashes",
    )
    scheduler_questions.add_where(command)
    command.set_defaults(run=run_record)


def run_record(args: argparse.Namespace) -> None:
    settings = RecordSettings(
        args.file, _span("--for", args.span, _LONGEST), _span("--every", args.every, 600.0), _size(args.most)
    )
    if not args.file.parent.is_dir():
        raise UserError(f"{args.file.parent} is not a folder; give a file in one that is there")
    where = scheduler_questions.where(args)
    recorder = LoadRecorder(hashing(secrets.token_bytes(32)) if args.hash_names else None)
    try:
        done = uvloop.run(_record(where, settings, recorder))
    except OSError as error:
        raise UserError(f"cannot write {args.file} ({system_reason(error)}); give another file") from None
    full = "; it ended early, as large as --most allows" if done.full else ""
    print(f"{args.file}: {count(done.snapshots, 'snapshot')}, {count(done.bytes, 'byte')}{full}")


async def _record(where: Where, settings: RecordSettings, recorder: LoadRecorder) -> Recorded:
    stop = asyncio.Event()
    with_signals(stop=stop.set)

    async def take() -> bytes:
        return await questions.ask(where, "/snapshot")

    def tell(words: str) -> None:
        print(words, file=sys.stderr)

    work = asyncio.ensure_future(record(take, settings, recorder, SystemClock(), tell))
    await first(stop.wait(), asyncio.wait([work]))
    if not work.done():
        work.cancel()
    await asyncio.wait([work])
    if work.cancelled():
        size = settings.file.stat().st_size if settings.file.exists() else 0
        return Recorded(recorder.snapshots, size, full=False)
    return work.result()


def _span(flag: str, text: str, most: float) -> float:
    try:
        seconds = float(to_seconds(text))
    except ValueError as error:
        raise UserError(f"{flag}: {text!r} is not {error}") from None
    if not 1 <= seconds <= most:
        raise UserError(f"{flag}: {text} is out of range; choose 1s to {most / 3600:g}h")
    return seconds


def _size(text: str) -> int:
    try:
        size = int(to_size(text))
    except ValueError as error:
        raise UserError(f"--most: {text!r} is not {error}") from None
    if not 1 << 20 <= size <= MOST_RECORDED:
        raise UserError(f"--most: {text} is out of range; choose 1Mi to {MOST_RECORDED >> 30}Gi")
    return size
