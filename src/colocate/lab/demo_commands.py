"""Commands of Colocate that the demo runs as processes: those that go on beside it, and those that it asks."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from shutil import get_terminal_size

from colocate.errors import ColocateError
from colocate.lab.pod_runtime import dies_with_us

INDENT = 2
"""Columns that stand before whatever the demo prints of its steps."""

_COLOCATE = (sys.executable, "-m", "colocate.cli.main")


class DemoFailed(ColocateError):
    """Something in the demo was not as it should be."""


class DemoSkipped(ColocateError):
    """This machine cannot show it: why, and how it can be seen."""


async def begin(log: Path, *words: str) -> asyncio.subprocess.Process:
    """Start a command that goes on, and writes to this file; Ctrl-C in the demo's terminal does not reach it."""
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *dies_with_us("TERM"),
            *_COLOCATE,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


async def end(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal, unless it has ended, and wait for its end."""
    if process.returncode is None:
        process.send_signal(number)
    await process.wait()


async def ask(*words: str) -> str:
    """What a command prints, as wide as there is room beside the indent; DemoFailed where it fails."""
    process = await asyncio.create_subprocess_exec(
        *_COLOCATE,
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "COLUMNS": str(get_terminal_size().columns - INDENT)},
    )
    output, _ = await process.communicate()
    said = output.decode().strip()
    if process.returncode != 0:
        raise DemoFailed(f"colocate {words[0]} said: {said}")
    return said
