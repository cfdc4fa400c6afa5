"""The command line as a process: run to its end, or an agent in the background whose log is followed."""

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colocate.cli.main import main

COMMAND = (sys.executable, "-m", "colocate.cli.main")
PATIENCE = 120
"""Seconds for what takes a fraction of one on a machine that is not busy."""


class Ended(msgspec.Struct, frozen=True):
    """A command that has ended."""

    code: int
    out: str
    err: str


def _environment(extra: dict[str, str]) -> dict[str, str]:
    """This process's, without its settings and the width that pytest may have given it."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("COLOCATE_")}
    ours.pop("COLUMNS", None)
    return {**ours, **extra}


async def colocate(*arguments: str | Path, stdin: str = "", **environ: str) -> Ended:
    """Run a command to its end."""
    return await colocate_in(Path(), *arguments, stdin=stdin, **environ)


async def colocate_in(folder: Path, *arguments: str | Path, stdin: str = "", **environ: str) -> Ended:
    """Run a command in a folder to its end."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *map(str, arguments),
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(environ),
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def on_terminal(*arguments: str | Path, columns: int = 80, **environ: str) -> Ended:
    """Run a command to its end with a terminal as its standard output."""
    ours, its = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *map(str, arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=its,
            stderr=asyncio.subprocess.PIPE,
            env=_environment({"COLUMNS": str(columns), **environ}),
        )
        os.close(its)
        async with asyncio.timeout(PATIENCE):
            out, (_, err) = await asyncio.gather(asyncio.to_thread(_shown, ours), process.communicate())
    finally:
        os.close(ours)
    assert process.returncode is not None
    return Ended(process.returncode, out.replace("\r\n", "\n"), err.decode())


def _shown(terminal: int) -> str:
    """All that is written to a terminal, until nobody has it open."""
    found = b""
    try:
        while piece := os.read(terminal, 1 << 16):
            found += piece
    except OSError:
        pass
    return found.decode()


def checkpoint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Ended:
    """Run `colocate checkpoint` in this process, for what asks nobody."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in ("checkpoint", *arguments)])
    said = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return Ended(end.value.code, said.out, said.err)


class Agent:
    """A running agent."""

    def __init__(self, process: asyncio.subprocess.Process, socket: Path) -> None:
        self.process = process
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def event(self, name: str, **fields: object) -> dict[str, Any]:
        """Wait for the next log event of this name that has these fields."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := await self.process.stderr.readline():
                try:
                    event: dict[str, Any] = json.loads(line)
                except ValueError:
                    self.seen.append({"line": line.decode()})
                    continue
                self.seen.append(event)
                if event["event"] == name and fields.items() <= event.items():
                    return event
        raise AssertionError(f"no {name} {fields} before the end of the log: {self.seen}")

    async def mock(self, *arguments: str) -> Ended:
        """Run `colocate mock` against this agent."""
        return await colocate("mock", *arguments, "--socket", self.socket)

    async def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        self.process.send_signal(how)
        async with asyncio.timeout(PATIENCE):
            _, err = await self.process.communicate()
        self.seen += [json.loads(line) for line in err.splitlines() if line.startswith(b"{")]
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def running_agent(file: Path, folder: Path, *flags: str, **environ: str) -> AsyncIterator[Agent]:
    """An agent with its control socket in `folder`; waits until it has started."""
    socket = folder / "agent.sock"
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("agent", "--config", str(file), "--set", f"control.socket={socket}", "--log-format", "json"),
        *flags,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(environ),
    )
    agent = Agent(process, socket)
    try:
        await agent.event("agent.started")
        yield agent
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
