"""python -m tests.room [--patience SECONDS] COMMAND: run it in the clean room; fail if it fails or leaves anything.

Whatever ends this process, another one then kills what still runs in the room and removes the room.
"""

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from tests.room.folders import VARIABLE, Folders, libc
from tests.room.leftovers import PATIENCE, Before, descendants, reap

NO_ROOM = 2
LEFT = 3
"""Exit codes: the room cannot be made; the command did well, and left something behind."""

_ROOTS_PLACE = Path("/var/tmp")
"""Where /tmp may be in memory."""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_NAMESPACE = Path("/proc/self/ns/mnt")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(words: Sequence[str]) -> int:
    patience = PATIENCE
    if words[:1] == ["--patience"]:
        patience, words = float(words[1]), words[2:]
    if not words:
        _say("name a command, such as: python -m tests.room make test")
        return NO_ROOM
    scratch = _new_folder()
    janitor, line = _start_janitor(scratch)
    try:
        return _run(words, Folders(scratch), janitor, line, patience)
    except OSError as error:
        _say(f"the room cannot be made: {error}")
        return NO_ROOM
    finally:
        _kill_all(but=janitor)
        os.close(line)
        os.waitpid(janitor, 0)


def _new_folder() -> Path:
    """On disk for root, to whom it will be /tmp. Others see its path, of which sockets leave them little."""
    at_root = os.geteuid() == 0 and os.access(_ROOTS_PLACE, os.W_OK)
    while True:
        name = secrets.token_hex(2)
        folder = _ROOTS_PLACE / f"room-{name}" if at_root else Path(tempfile.gettempdir(), name)
        with suppress(FileExistsError):
            folder.mkdir(0o711)  # a test may give up its rights, and still has to get to its files
            return folder


def _run(command: Sequence[str], folders: Folders, janitor: int, line: int, patience: float) -> int:
    libc.prctl(_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
    if os.geteuid() == 0:
        try:
            folders.cover()
            os.write(line, str(_NAMESPACE.readlink()).encode())
        except PermissionError as error:
            _say(
                f"no {error.filename} here ({error.strerror}): only the home and the temporary folder are empty"
            )
    before = Before(folders, janitor)
    interrupted: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        interrupted.append(number)
        signal.alarm(max(1, int(patience)))
        # A terminal tells all processes in its foreground by itself.
        if number != signal.SIGINT or not os.isatty(0):
            with suppress(ProcessLookupError):
                os.kill(started.pid, number)

    signal.signal(signal.SIGALRM, lambda *_: _kill(_running(janitor)))
    # A signal that comes while the command is being started waits until it can be passed on.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    for number in _SIGNALS:
        signal.signal(number, pass_on)
    started = subprocess.Popen(
        command,
        env=folders.environment(os.environ),
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS),
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    code = _exit_code_of(started.pid)
    signal.alarm(0)
    if interrupted:
        _kill_all(but=janitor)
    left = before.left(0 if interrupted else patience)
    for each in left:
        _say(f"left behind: {each}")
    if interrupted:
        return 128 + interrupted[0]
    if left and code == 0:
        _say("the command did well, but left behind what is named above")
        return LEFT
    return code


def _exit_code_of(child: int) -> int:
    """Wait for a child's end, and for that of all who lose their parent before."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _start_janitor(scratch: Path) -> tuple[int, int]:
    """A process outside the room that clears it once the other end of a line is closed: its id, and that end."""
    listening, line = os.pipe()
    room = os.getpid()
    janitor = os.fork()
    if janitor:
        os.close(listening)
        return janitor, line
    try:
        os.close(line)
        os.setsid()
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        namespace = b""
        while heard := os.read(listening, 256):
            namespace += heard
        _kill(_in_room(scratch, namespace.decode()) - {room})
        shutil.rmtree(scratch, ignore_errors=True)
    finally:
        os._exit(0)


def _in_room(scratch: Path, namespace: str) -> set[int]:
    """Processes that see the room's mounts, or were told of the room."""
    mark = f"{VARIABLE}={scratch}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            told = mark in (folder / "environ").read_bytes().split(b"\0")
            if told or (namespace and str((folder / "ns" / "mnt").readlink()) == namespace):
                found.add(int(folder.name))
    return found


def _running(janitor: int) -> list[int]:
    return [pid for pid in descendants() if pid != janitor]


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _kill_all(but: int) -> None:
    """End all that still runs in the room, and see it end."""
    while running := _running(but):
        _kill(running)
        reap(but)


def _say(sentence: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"clean room: {sentence}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
