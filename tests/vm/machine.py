"""A VM as a QEMU process: started with an order, listened to, and gone when its block ends, however that ends.

It leaves nothing on this machine: the initrd is a file in memory, the port and the console are sockets without
names, and the kernel kills QEMU when the thread that started it dies.
"""

import contextlib
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tests.support import components
from tests.vm import events, image
from tests.vm.events import Event
from tests.vm.image import Kernel, Order
from tests.vm.topology import CPU, MACHINE, Topology

NEEDS = ("qemu", "kernel", "busybox", "kmod")
"""Components without which no VM boots."""

BOOT_SECONDS = 120.0
"""Several times what a boot takes on a busy machine."""
CONSOLE_LINES = 200

AT_ONCE = 2
"""VMs that run side by side; a second one pays off even on two cores, since much of a boot uses one."""

_slots = threading.BoundedSemaphore(AT_ONCE)

_KERNEL_ARGUMENTS = (
    *("console=ttyS0", "quiet"),
    "panic=-1",  # restart at once, which QEMU takes as its end
    *("mitigations=off", "audit=0", "apparmor=0", "nowatchdog", "tsc=reliable", "rcupdate.rcu_expedited=1"),
)
_TERMINAL_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class MachineFailed(Exception):
    """The VM ended or fell silent before its command had ended."""


class MachineSilent(MachineFailed):
    """It runs, as far as can be told, and says nothing."""


class Machine:
    """A VM that runs an order. As a context manager it is started, and killed at the end if it still runs."""

    def __init__(self, topology: Topology, order: Order, *, disk: Path | None = None) -> None:
        self.topology = topology
        self._order = order
        self._disk = disk
        self._unfinished: list[bytes] = []
        """Pieces of a line; a report may have many megabytes."""
        self._console: deque[str] = deque(maxlen=CONSOLE_LINES)
        self._console_unfinished = b""

    def __enter__(self) -> "Machine":
        with contextlib.ExitStack() as undo:
            undo.enter_context(_slots)
            self.started = time.monotonic()
            self._port, port = (undo.enter_context(end) for end in socket.socketpair())
            self._terminal, terminal = (undo.enter_context(end) for end in socket.socketpair())
            self._qemu = self._start(port, terminal)
            port.close()
            terminal.close()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._undo.close()

    def _start(self, port: socket.socket, terminal: socket.socket) -> "subprocess.Popen[bytes]":
        """QEMU, with its ends of the port and the console; what it complains of goes to the console too."""
        kernel = Kernel(Path(components.find("kernel") or ""))
        with os.fdopen(os.memfd_create("initrd"), "wb") as initrd:
            initrd.write(image.initrd(kernel, self._order))
            initrd.flush()
            command = qemu_command(
                self.topology, kernel.unpacked(), f"/proc/self/fd/{initrd.fileno()}", self._disk
            )
            command += ["-chardev", f"socket,id=port,fd={port.fileno()}"]
            if self._order.interactive:
                return subprocess.Popen(
                    [*_dies_with_us(), *command, "-serial", "mon:stdio"],
                    pass_fds=[initrd.fileno(), port.fileno()],
                    stderr=terminal.fileno(),
                )
            command += ["-chardev", f"socket,id=console,fd={terminal.fileno()}", "-serial", "chardev:console"]
            return subprocess.Popen(
                [*_dies_with_us(), *command],
                pass_fds=[initrd.fileno(), port.fileno(), terminal.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=terminal.fileno(),
                stderr=terminal.fileno(),
                start_new_session=True,  # Ctrl-C is for pytest, which ends its VMs
            )

    @property
    def pid(self) -> int:
        return self._qemu.pid

    def kill(self) -> None:
        """A power cut: QEMU has no chance to write anything."""
        self._qemu.kill()
        self._qemu.wait()

    def events(self, silence: float, boot: float | None = None) -> Iterator[Event]:
        """What the VM tells, to the end of its command; MachineFailed if it ends before, or is silent for so long.

        Until its first word `boot` is how long it may be silent, if given.
        """
        patience = silence if boot is None else boot
        selector = selectors.DefaultSelector()
        selector.register(self._port, selectors.EVENT_READ)
        selector.register(self._terminal, selectors.EVENT_READ)
        heard = time.monotonic()
        with selector:
            while True:
                ready = selector.select(max(0.0, heard + patience - time.monotonic()))
                if not ready:
                    raise MachineSilent(f"the VM said nothing for {patience:g} s")
                for key, _ in ready:
                    data = self._receive(key.fileobj)
                    if key.fileobj is self._terminal:
                        self._print(data)
                        if not data:
                            selector.unregister(self._terminal)
                        continue
                    if not data:
                        raise MachineFailed(f"the VM ended: {self._end_of_qemu()}")
                    heard, patience = time.monotonic(), silence
                    for event in self._split(data):
                        yield event
                        if isinstance(event, events.Exited):
                            return

    def console(self, lines: int = 60) -> str:
        """The last lines of the VM's console, and what QEMU complained of."""
        self._terminal.setblocking(False)
        try:
            while data := self._receive(self._terminal):
                self._print(data)
        except BlockingIOError:
            pass
        return "\n".join(list(self._console)[-lines:])

    def wait(self) -> int:
        """QEMU's exit code, once it has ended by itself."""
        return self._qemu.wait()

    def _end_of_qemu(self) -> str:
        code = self._qemu.wait()
        return (
            f"QEMU was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"QEMU left with exit code {code}"
        )

    @staticmethod
    def _receive(sock: object) -> bytes:
        assert isinstance(sock, socket.socket)
        try:
            return sock.recv(1 << 16)
        except ConnectionResetError:  # QEMU was killed with something unread
            return b""

    def _split(self, data: bytes) -> Iterator[Event]:
        self._unfinished.append(data)
        if b"\n" not in data:
            return iter(())
        *lines, rest = b"".join(self._unfinished).split(b"\n")
        self._unfinished = [rest]
        return (events.decode(line) for line in lines if line.strip())

    def _print(self, data: bytes) -> None:
        *lines, self._console_unfinished = (self._console_unfinished + data).split(b"\n")
        texts = (_TERMINAL_CONTROL.sub("", line.decode(errors="replace")) for line in lines)
        self._console += [text for text in texts if "topoext" not in text]


def qemu_command(topology: Topology, kernel: Path, initrd: str, disk: Path | None = None) -> list[str]:
    """QEMU with this hardware; the port and the console are the caller's."""
    accelerator = _accelerator()
    arguments = [*_KERNEL_ARGUMENTS, *topology.kernel_arguments()]
    return [
        *[components.find("qemu") or "qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot"],
        *["-machine", MACHINE, "-bios", "qboot.rom", "-accel", accelerator, "-cpu", CPU[accelerator]],
        *topology.qemu_arguments(),
        *["-kernel", str(kernel), "-initrd", initrd, "-append", " ".join(arguments)],
        *["-virtfs", "local,path=/,mount_tag=host,security_model=none,multidevs=remap,readonly=on"],
        *["-device", "virtio-serial", "-device", "virtserialport,nr=1,chardev=port"],
        *(["-drive", f"file={disk},format=qcow2,if=virtio,cache=writeback"] if disk else []),
    ]


def _accelerator() -> str:
    """KVM where this machine's CPU and rights allow it; the file alone says little."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    return "kvm" if flags & {"svm", "vmx"} and os.access("/dev/kvm", os.R_OK | os.W_OK) else "tcg"


def _dies_with_us() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
