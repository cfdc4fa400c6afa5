"""Reads the use of processes and their descendants from /proc."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

PROC = Path("/proc")
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Used(msgspec.Struct, frozen=True):
    """The CPU time that a process and its descendants have used so far, and their memory."""

    seconds: float = 0.0
    memory: int = 0

    def __add__(self, other: "Used") -> "Used":
        return Used(self.seconds + other.seconds, self.memory + other.memory)


class _Process(msgspec.Struct, frozen=True):
    pid: int
    parent: int
    session: int
    used: Used


def used(leaders: Collection[int], proc: Path = PROC) -> dict[int, Used]:
    """The use of each of these session leaders, with its session and all descendants.

    Leaders that have ended are left out.
    """
    running = {process.pid: process for process in _processes(proc)}
    found = {pid: Used() for pid in leaders if pid in running}
    for process in running.values():
        if (leader := _leader(process, running, found)) is not None:
            found[leader] += process.used
    return found


def _leader(process: _Process, running: Mapping[int, _Process], leaders: Collection[int]) -> int | None:
    """The leader of a process: by its session, which survives its parents, or by its parents, which survive a new
    session."""
    above: _Process | None = process
    while above is not None and above.session not in leaders:
        above = running.get(above.parent)
    return None if above is None else above.session


def _processes(proc: Path) -> Iterator[_Process]:
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(errors="replace")
            except OSError:
                continue  # It has just ended.
            yield _process(int(folder.name), text)


def _process(pid: int, text: str) -> _Process:
    """Parse a line of stat. The program's name, in brackets, may contain brackets and spaces."""
    fields = [int(field) for field in text.rpartition(")")[2].split()[1:]]
    # Its own time, and that of its ended children; running children count themselves.
    ticks = sum(fields[10:14])
    return _Process(pid, fields[0], fields[2], Used(ticks * _TICK, fields[20] * _PAGE))
