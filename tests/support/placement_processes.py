"""Processes that place containers beside a real containerd, `colocate cri-proxy` and `colocate nri`, on one state."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from colocate.cpus.placer.report import (
    EXPLAIN,
    STATUS,
    AskExplanation,
    AskPlacement,
    ContainerExplanation,
    PlacementReport,
)
from colocate.wire import control_socket as control
from tests.support.containerd import Containerd
from tests.support.waiting import until


class PlacingProcess:
    """A process with a configuration; its state is the same whichever way in it is."""

    ready = ""
    """What it logs when it knows what the runtime has."""

    def __init__(self, containerd: Containerd, topology: str) -> None:
        self.containerd = containerd
        self.control = containerd.folder / "cpus.sock"
        self.log = containerd.folder / "placing.log"
        self.config = containerd.folder / "colocate.yaml"
        self.configure(topology)
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, topology: str, more: str = "") -> None:
        self.config.write_text(
            f"version: 1\nlog: {{format: json, level: debug}}\ncpus:\n  topology: {topology}\n"
            f"  stateFolder: {self.containerd.folder}/placement\n  socket: {self.control}\n"
            f"  wishNamespaces: [default]\n{more}"
        )

    def command(self) -> list[str]:
        """Its arguments besides the configuration."""
        raise NotImplementedError

    async def start(self) -> None:
        self.log.touch()
        self._since = len(self.log.read_text())
        self._process = await asyncio.to_thread(self._spawn)
        await self.says(self.ready)

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [
            str(Path(sys.executable).with_name("colocate")),
            *self.command(),
            "--config",
            str(self.config),
        ]
        environment = {**os.environ, "COLOCATE_KUBELET_ROOT": str(self.containerd.folder / "kubelet")}
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stderr=log, env=environment)

    def hang_up(self) -> None:
        """Have it read its configuration again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    async def says(self, event: str) -> None:
        """Return once the log since the last start, or since the last event that was waited for, has this event."""

        def said() -> bool:
            assert self._process is not None
            text = self.log.read_text()
            assert self._process.poll() is None, text
            place = text.find(f'"event": "{event}"', self._since)
            if place < 0:
                return False
            self._since = place + 1
            return True

        await until(said, event)

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(20)

    async def status(self) -> PlacementReport:
        return await control.ask(self.control, STATUS, AskPlacement())

    async def explain(self, container: str) -> ContainerExplanation:
        return await control.ask(self.control, EXPLAIN, AskExplanation(container))


class ProxyProcess(PlacingProcess):
    """The way in is the CRI: the kubelet uses `listen`."""

    ready = "cri_proxy.reconciled"

    @property
    def listen(self) -> Path:
        return self.containerd.folder / "proxy.sock"

    def command(self) -> list[str]:
        return [
            *("cri-proxy", "--runtime", f"unix://{self.containerd.socket}"),
            *("--listen", f"unix://{self.listen}"),
        ]


class NriProcess(PlacingProcess):
    """The way in is NRI: the kubelet uses the runtime's own socket."""

    ready = "nri.synchronized"

    def command(self) -> list[str]:
        return ["nri", "--socket", f"unix://{self.containerd.nri_socket}"]
