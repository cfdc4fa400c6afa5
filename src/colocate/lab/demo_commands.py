"""Runs commands of Colocate as processes for the demo: in the background, or for their output."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from shutil import get_terminal_size

from colocate.errors import ColocateError
from colocate.lab.pod_runtime import dies_with_us

INDENT = 2
"""Columns by which the demo indents the output of its steps."""

_COLOCATE = (sys.executable, "-m", "colocate.cli.main")


class DemoFailed(ColocateError):
    """A step of the demo failed."""


class DemoSkipped(ColocateError):
    """This machine cannot run a step; the message says why, and how it could."""


async def begin(log: Path, *words: str) -> asyncio.subprocess.Process:
    """Start a command in the background with its output in this file; Ctrl-C in the demo's terminal does not reach
    it."""
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
    """Send a signal to a process unless it has ended, and wait for its end."""
    if process.returncode is None:
        process.send_signal(number)
    await process.wait()


async def ask(*words: str) -> str:
    """The output of a command, as wide as the terminal allows beside the indent; DemoFailed where it fails."""
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
