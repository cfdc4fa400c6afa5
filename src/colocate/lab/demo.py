"""The demo's story: an embedded kubelet, an agent process with mock devices, pods, and what goes wrong.

Each step does something and says what was seen, or fails. How it is shown is not known here.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from colocate.errors import ColocateError
from colocate.kubelet.paths import KubeletPaths
from colocate.lab.kubelet import EmbeddedKubelet
from colocate.lab.pod_runtime import ProcessRuntime
from colocate.lab.pod_worker import PodRecord
from colocate.model.pod import Phase, Pod

RESOURCE = "mock/gpu"
DEVICES = 10

_CONFIG = """\
version: 1
kubelet:
  root: {root}
log:
  format: json
control:
  socket: {root}/agent.sock
mock:
  resources:
    - name: {resource}
      count: {devices}
      numa:
        nodes: [0, 1]
"""


class DemoFailed(ColocateError):
    """Something in the demo was not as it should be."""


class Demo:
    """One run of the demo, in a folder of its own."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="colocate-demo-"))
        self.runtime = ProcessRuntime(self.root / "pods", parent=f"colocate-demo-{os.getpid()}")
        self.kubelet = EmbeddedKubelet(KubeletPaths(self.root), runtime=self.runtime)
        self.config = self.root / "agent.yaml"
        self.agent: asyncio.subprocess.Process | None = None

    @property
    def steps(self) -> list[tuple[str, Callable[[], Awaitable[str]]]]:
        """What happens, in order: what is tried, and the doing, which returns what was seen."""
        return [
            ("Start an embedded kubelet", self._start_kubelet),
            (f"Start the agent: {DEVICES} mock devices, {RESOURCE}", self._start_agent),
            (f"Run a pod that asks for 2 {RESOURCE}", self._run_train),
            ("Run a pod that asks for 9 when 8 are free", self._run_greedy),
            ("Break a device: colocate mock unhealthy", self._break_device),
            ("Mend it: colocate mock healthy", self._mend_device),
            ("Kill the agent with SIGKILL, and start it again", self._kill_agent),
            ("Restart the kubelet", self._restart_kubelet),
        ]

    # --- steps -----------------------------------------------------------------------------------

    async def _start_kubelet(self) -> str:
        await self.kubelet.start()
        if self.runtime.without_cgroups:
            return f"kubelet.sock is there; pods will be plain processes: {self.runtime.without_cgroups}"
        return "kubelet.sock is there; every pod will be a process in a control group of its own"

    async def _start_agent(self) -> str:
        self.config.write_text(_CONFIG.format(root=self.root, resource=RESOURCE, devices=DEVICES))
        await self._spawn_agent()
        await self._healthy(DEVICES)
        status = self.kubelet.sync_status()
        self._expect(status.capacity == {RESOURCE: DEVICES}, f"capacity is {status.capacity}")
        return f"the node shows capacity {DEVICES}, allocatable {status.allocatable[RESOURCE]}"

    async def _run_train(self) -> str:
        command = 'echo "I was given $MOCK_GPU"; tail -n 1 /proc/self/cgroup; exec sleep infinity'
        record = self._add_pod("train", 2, command)
        await self._phase(record, Phase.RUNNING)
        said = await self._said(record)
        held = self.held(record)
        self._expect(set(said.removeprefix("I was given ").split(",")) == set(held), f"the pod said: {said}")
        return f"it runs as process {self.pid(record)} and says: {said}"

    async def _run_greedy(self) -> str:
        record = self._add_pod("greedy", 9, "true")
        await self._phase(record, Phase.FAILED)
        self._expect("Requested: 9, Available: 8" in record.status.message, record.status.message)
        return f"{record.status.reason}: {record.status.message}"

    async def _break_device(self) -> str:
        await self._mock("unhealthy", RESOURCE, "gpu-0007")
        await self._healthy(DEVICES - 1)
        status = self.kubelet.sync_status()
        return (
            f"allocatable is {status.allocatable[RESOURCE]} of {status.capacity[RESOURCE]}; the pod goes on"
        )

    async def _mend_device(self) -> str:
        await self._mock("healthy", RESOURCE, "gpu-0007")
        await self._healthy(DEVICES)
        return f"allocatable is {self.kubelet.sync_status().allocatable[RESOURCE]} again"

    async def _kill_agent(self) -> str:
        train = self.kubelet.pod("default/train")
        before = self.held(train)
        await self._stop_agent(signal.SIGKILL)
        await self._healthy(0)
        lost = self.kubelet.sync_status()
        await self._spawn_agent()
        await self._healthy(DEVICES)
        self._expect(self.held(train) == before, f"train held {before} and now {self.held(train)}")
        return (
            f"without it allocatable was {lost.allocatable[RESOURCE]} of {lost.capacity[RESOURCE]}; "
            f"now {self.kubelet.sync_status().allocatable[RESOURCE]}, and train holds what it held"
        )

    async def _restart_kubelet(self) -> str:
        train = self.kubelet.pod("default/train")
        before = self.pid(train)
        started = self.kubelet.clock.monotonic()
        await self.kubelet.restart()
        await self._healthy(DEVICES)
        took = self.kubelet.clock.monotonic() - started
        self.kubelet.sync_status()
        self._expect(self.pid(train) == before, "train was started again")
        return f"the agent registered again within {took * 1000:.0f} ms; process {before} never noticed"

    # --- what is shown ---------------------------------------------------------------------------

    def held(self, record: PodRecord) -> list[str]:
        """The ids that a pod holds."""
        table = self.kubelet.devices.table
        return sorted(id for e in table.held.values() if e.pod_uid == record.pod.uid for id in e.ids)

    def pid(self, record: PodRecord) -> int | None:
        running = self.runtime.running(record.pod, "main")
        return running.pid if running else None

    def agent_log(self) -> str:
        """What the agent has logged: the place to look when the demo fails."""
        log = self.root / "agent.log"
        return log.read_text() if log.exists() else ""

    # --- life ------------------------------------------------------------------------------------

    async def tend(self) -> None:
        """Start the agent again if someone has killed it, as a DaemonSet would; sync the node's status."""
        if self.agent is not None and self.agent.returncode is not None:
            await self._spawn_agent()
        self.kubelet.sync_status()

    async def close(self) -> None:
        """Leave no process, socket, control group or file behind."""
        await self._stop_agent(signal.SIGTERM)
        await self.kubelet.close()
        await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)

    async def _spawn_agent(self) -> None:
        command = [sys.executable, "-m", "colocate.cli.main", "agent", "--config", str(self.config)]
        with (self.root / "agent.log").open("ab") as log:
            self.agent = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def _stop_agent(self, number: signal.Signals) -> None:
        if self.agent is not None:
            if self.agent.returncode is None:
                self.agent.send_signal(number)
            await self.agent.wait()
            self.agent = None

    async def _mock(self, *words: str) -> None:
        command = [sys.executable, "-m", "colocate.cli.main", "mock"]
        process = await asyncio.create_subprocess_exec(
            *[*command, *words, "--socket", str(self.root / "agent.sock")],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        self._expect(process.returncode == 0, f"colocate mock said: {output.decode().strip()}")

    def _add_pod(self, name: str, count: int, script: str) -> PodRecord:
        container = {
            "name": "main",
            "command": ["/bin/sh", "-c", script],
            "resources": {"limits": {RESOURCE: str(count)}},
        }
        spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
        return self.kubelet.add_pod(msgspec.convert({"metadata": {"name": name}, "spec": spec}, Pod))

    async def _healthy(self, count: int) -> None:
        await self._until(
            lambda: len(self.kubelet.devices.table.healthy(RESOURCE)) == count, f"{count} healthy devices"
        )

    async def _phase(self, record: PodRecord, phase: Phase) -> None:
        await self._until(lambda: record.status.phase == phase, f"{record.pod.key} to be {phase}")

    async def _said(self, record: PodRecord) -> str:
        """The first line that a pod wrote."""
        log = self.runtime.log_file(record.pod, "main")
        while "\n" not in log.read_text():  # noqa: ASYNC110 -- another process writes it
            await asyncio.sleep(0.01)
        return log.read_text().splitlines()[0]

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait, but not for an agent that is not there any more."""

        async def agent_gone() -> None:
            if self.agent is None:
                await asyncio.Event().wait()
            else:
                await self.agent.wait()

        reached = asyncio.ensure_future(self.kubelet.until(holds, what))
        gone = asyncio.ensure_future(agent_gone())
        try:
            await asyncio.wait([reached, gone], return_when=asyncio.FIRST_COMPLETED)
            self._expect(reached.done(), f"the agent ended while the demo waited for {what}")
            reached.result()
        finally:
            reached.cancel()
            gone.cancel()
            await asyncio.gather(reached, gone, return_exceptions=True)

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise DemoFailed(otherwise)
