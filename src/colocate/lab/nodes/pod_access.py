"""Access to the processes of this machine's pods: reads their logs, and runs commands beside them."""

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import AsyncIterator
from pathlib import Path

from colocate.clock import Clock
from colocate.lab.api.pod_streams import ExecProcess, TerminalSize
from colocate.lab.kubelet import EmbeddedKubelet
from colocate.lab.pod_runtime import PodRuntime, ProcessRuntime
from colocate.model.pod import Pod

_PIECE = 1 << 16
_LOOK_AGAIN = 0.1
"""Seconds between two reads of a followed log."""


class MachinePods:
    """The pods of one kubelet that runs containers as processes."""

    def __init__(self, kubelet: EmbeddedKubelet, runtime: PodRuntime | None, clock: Clock) -> None:
        self._kubelet = kubelet
        self._runtime = runtime
        self._clock = clock

    async def log(
        self, uid: str, container: str, *, previous: bool, tail: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        pod, runtime = self._find(uid)
        path = runtime.previous_log(pod, container) if previous else runtime.log_file(pod, container)
        if not path.exists():
            which = "previous terminated container" if previous else "container"
            raise LookupError(f'{which} "{container}" in pod "{pod.metadata.name}" not found')
        with path.open("rb") as log:
            log.seek(_last_lines(path, tail))
            while True:
                running = follow and not previous and runtime.running(pod, container) is not None
                while piece := log.read(_PIECE):
                    yield piece
                if not running:
                    return
                await self._clock.sleep(_LOOK_AGAIN)

    async def start(
        self, uid: str, container: str, command: list[str], *, terminal: bool, input: bool
    ) -> ExecProcess:
        pod, runtime = self._find(uid)
        spec = next(one for one in (*pod.spec.init_containers, *pod.spec.containers) if one.name == container)
        if runtime.running(pod, container) is None:
            raise LookupError(f'container "{container}" of pod "{pod.metadata.name}" does not run')
        if not terminal:
            pipe = asyncio.subprocess.PIPE
            streams = {"stdin": pipe if input else asyncio.subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
            return PipedCommand(await runtime.beside(pod, spec, command, **streams))
        ours, its = pty.openpty()
        try:
            process = await runtime.beside(pod, spec, command, stdin=its, stdout=its, stderr=its)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(its)
        return TerminalCommand(process, ours)

    def _find(self, uid: str) -> tuple[Pod, ProcessRuntime]:
        record = self._kubelet.records.get(uid)
        if record is None or not isinstance(self._runtime, ProcessRuntime):
            raise LookupError(
                "only pods on this machine's node have processes; pods on simulated nodes have no output"
            )
        return record.pod, self._runtime


def _last_lines(path: Path, tail: int | None) -> int:
    """The offset of the last `tail` lines of a file."""
    if tail is None:
        return 0
    with path.open("rb") as file:
        place = file.seek(0, os.SEEK_END)
        # An unfinished last line counts, too.
        missing = tail
        if place:
            file.seek(place - 1)
            missing += file.read(1) == b"\n"
        while place > 0 and missing > 0:
            start = max(0, place - _PIECE)
            file.seek(start)
            chunk = file.read(place - start)
            for offset in range(len(chunk) - 1, -1, -1):
                if chunk[offset : offset + 1] == b"\n":
                    missing -= 1
                    if missing == 0:
                        return start + offset + 1
            place = start
        return 0 if missing > 0 else path.stat().st_size


class PipedCommand:
    """A command whose streams are pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def read(self, error: bool) -> bytes:
        stream = self._process.stderr if error else self._process.stdout
        return await stream.read(_PIECE) if stream else b""

    async def write(self, data: bytes) -> None:
        stdin = self._process.stdin
        if stdin is None or stdin.is_closing():
            return
        with contextlib.suppress(ConnectionError):
            if data:
                stdin.write(data)
                await stdin.drain()
            else:
                stdin.close()

    def resize(self, size: TerminalSize) -> None:
        return None

    async def wait(self) -> int:
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class TerminalCommand:
    """A command on its own terminal."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int) -> None:
        self._process = process
        self._terminal = terminal
        os.set_blocking(terminal, False)

    async def read(self, error: bool) -> bytes:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return os.read(self._terminal, _PIECE)
            except BlockingIOError:
                readable = asyncio.Event()
                loop.add_reader(self._terminal, readable.set)
                try:
                    await readable.wait()
                finally:
                    loop.remove_reader(self._terminal)
            except OSError:  # The terminal's other side is closed.
                return b""

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._terminal, data or b"\x04")

    def resize(self, size: TerminalSize) -> None:
        rows, columns = (min(max(1, side), 10_000) for side in (size.height, size.width))
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        os.close(self._terminal)
