"""A container runtime that is all memory and plain files: it tells a placer what happens, by either way in.

Containers that run have a control group of plain files (cgroup v2) with the cpuset that the runtime was told, as a
kernel would show it.
"""

import itertools
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from colocate.cpus import MilliCpu
from colocate.crashpoints import reached
from colocate.host.cgroups import Naming, pod_path
from colocate.model.container import (
    ContainerPhase,
    CpuPin,
    RuntimeContainer,
    RuntimeResources,
    RuntimeSandbox,
)
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass
from colocate.runtime.events import ContainerEvents, PlacementRefused, Placing

GIB = 1 << 30
_PERIOD = 100_000


class Running(msgspec.Struct):
    """A container of the runtime."""

    about: RuntimeContainer
    cpus: CpuSet
    mems: tuple[int, ...] = ()


def resources(cpu: MilliCpu, limit: MilliCpu | None = None, memory: int = 0) -> RuntimeResources:
    """As a kubelet writes a request and a limit."""
    quota = 0 if limit is None else limit * _PERIOD // 1000
    return RuntimeResources(
        cpu_shares=max(2, cpu * 1024 // 1000), cpu_quota=quota, cpu_period=_PERIOD, memory_limit=memory
    )


class FakeRuntime:
    """Sandboxes and containers, and the way in to a placer."""

    def __init__(self, mount: Path, cpus: CpuSet, mems: tuple[int, ...] = (0,), *, nri: bool = False) -> None:
        self.mount = mount
        self.everything = cpus
        self.mems = mems
        self.nri = nri
        """NRI gives ids before `create` and no `created`; and it leaves out what has ended."""
        self.sandboxes: dict[str, RuntimeSandbox] = {}
        self.containers: dict[str, Running] = {}
        self.refuses: set[str] = set()
        """Ids of containers that cannot be changed just now."""
        self.writes: list[CpuPin] = []
        self.outlives = False
        self._numbers = itertools.count(1)
        mount.mkdir(parents=True, exist_ok=True)
        (mount / "cgroup.controllers").write_text("cpuset cpu memory\n")
        (mount / "kubepods").mkdir(exist_ok=True)

    def sandbox(
        self,
        name: str,
        qos: QosClass = QosClass.GUARANTEED,
        namespace: str = "default",
        annotations: dict[str, str] | None = None,
    ) -> RuntimeSandbox:
        number = next(self._numbers)
        uid = f"uid-{name}-{number}"
        made = RuntimeSandbox(
            id=f"{number:04x}5a",
            uid=uid,
            namespace=namespace,
            name=name,
            cgroup_parent=f"/{pod_path(uid, qos, Naming.CGROUPFS)}",
            annotations=annotations or {},
        )
        self.sandboxes[made.id] = made
        self._keep()
        return made

    async def connect(self, placer: ContainerEvents) -> None:
        """A way in begins."""
        await self.apply(await placer.synchronize(*self.listed(), self))

    def listed(self) -> tuple[list[RuntimeSandbox], list[RuntimeContainer]]:
        containers = [
            msgspec.structs.replace(each.about, resources=self._told(each))
            for each in self.containers.values()
            if not self.nri or each.about.phase is not ContainerPhase.EXITED
        ]
        return list(self.sandboxes.values()), containers

    def _told(self, each: Running) -> RuntimeResources:
        """As a runtime tells: with the cpuset that the container has by now; or nothing, as old ones do."""
        if each.about.resources == RuntimeResources():
            return each.about.resources
        mems = ",".join(map(str, each.mems))
        return msgspec.structs.replace(each.about.resources, cpuset_cpus=str(each.cpus), cpuset_mems=mems)

    async def create(
        self,
        placer: ContainerEvents,
        sandbox: RuntimeSandbox,
        name: str,
        resources: RuntimeResources,
        *,
        fails: bool = False,
        start: bool = True,
    ) -> str:
        """Create and start a container; its id, or nothing where it was refused or could not be made."""
        number = next(self._numbers)
        own = f"{number:04x}c0"
        attempts = [
            each.about.attempt
            for each in self.containers.values()
            if (each.about.sandbox_id, each.about.name) == (sandbox.id, name)
        ]
        about = RuntimeContainer(
            id=own if self.nri else "",
            sandbox_id=sandbox.id,
            name=name,
            attempt=max(attempts, default=-1) + 1,
            phase=ContainerPhase.CREATED,
            resources=resources,
        )
        try:
            placing = await placer.create(sandbox, about)
        except PlacementRefused:
            return ""
        await self.apply(placing.others)
        reached("runtime.create")
        if fails:
            if self.nri:
                await placer.removed(own)
            else:
                await placer.not_created(sandbox.id, name, about.attempt)
            return ""
        about = msgspec.structs.replace(about, id=own)
        self.containers[own] = Running(about, self.everything, self.mems)
        self._set(own, placing.own)
        self._keep()
        reached("runtime.created")
        if not self.nri:
            await placer.created(sandbox.id, name, about.attempt, own)
        if start:
            await self.start(placer, own)
        return own

    async def start(self, placer: ContainerEvents, own: str) -> None:
        self._phase(own, ContainerPhase.RUNNING)
        self._write_group(own)
        await placer.started(own)

    async def update(self, placer: ContainerEvents, own: str, resources: RuntimeResources) -> bool:
        try:
            placing: Placing = await placer.update(own, resources)
        except PlacementRefused:
            return False
        await self.apply(placing.others)
        found = self.containers[own]
        found.about = msgspec.structs.replace(found.about, resources=resources)
        reached("runtime.update")
        self._set(own, placing.own)
        self._write_group(own)
        self._keep()
        reached("runtime.updated")
        return True

    async def stop(self, placer: ContainerEvents | None, own: str) -> None:
        self._phase(own, ContainerPhase.EXITED)
        shutil.rmtree(self._group(own), ignore_errors=True)
        if placer is not None:
            await placer.stopped(own)

    async def remove(self, placer: ContainerEvents | None, own: str) -> None:
        if self.containers[own].about.phase is not ContainerPhase.EXITED:
            await self.stop(placer, own)
        del self.containers[own]
        self._keep()
        if placer is not None:
            await placer.removed(own)

    async def end_sandbox(self, placer: ContainerEvents | None, sandbox: RuntimeSandbox) -> None:
        for own in [own for own, each in self.containers.items() if each.about.sandbox_id == sandbox.id]:
            await self.remove(placer, own)
        del self.sandboxes[sandbox.id]
        self._keep()
        shutil.rmtree(self.mount / sandbox.cgroup_parent.lstrip("/"), ignore_errors=True)
        if placer is not None:
            await placer.sandbox_stopped(sandbox.id)
            await placer.sandbox_removed(sandbox.id)

    async def write(self, pins: Sequence[CpuPin]) -> Sequence[str]:
        """As a way in is told by the placer."""
        return await self.apply(pins)

    async def apply(self, pins: Sequence[CpuPin]) -> list[str]:
        failed = []
        for pin in pins:
            found = self.containers.get(pin.container_id)
            gone = found is None or found.about.phase is ContainerPhase.EXITED
            if gone or pin.container_id in self.refuses:
                failed.append(pin.container_id)
                continue
            self.writes.append(pin)
            reached("runtime.pin")
            self._set(pin.container_id, pin)
            self._write_group(pin.container_id)
            self._keep()
            reached("runtime.pinned")
        return failed

    def tamper(self, own: str, cpus: CpuSet) -> None:
        """Somebody else writes a cpuset."""
        self.containers[own].cpus = cpus
        self._write_group(own)

    def running(self) -> dict[str, Running]:
        return {
            own: each
            for own, each in self.containers.items()
            if each.about.phase in (ContainerPhase.RUNNING, ContainerPhase.CREATED)
        }

    def cpus(self, own: str) -> str:
        return str(self.containers[own].cpus)

    def _set(self, own: str, pin: CpuPin | None) -> None:
        if pin is not None:
            assert pin.cpus
            assert pin.cpus <= self.everything, pin
            self.containers[own].cpus = pin.cpus
            self.containers[own].mems = pin.mems or self.containers[own].mems

    def _phase(self, own: str, phase: ContainerPhase) -> None:
        self.containers[own].about = msgspec.structs.replace(self.containers[own].about, phase=phase)
        self._keep()

    def _keep(self) -> None:
        """A runtime outlives the process of its placer: what it has is beside its control groups."""
        if self.outlives:
            (self.mount / "runtime").write_bytes(
                pickle.dumps((self.sandboxes, self.containers, next(self._numbers)))
            )

    def take_up(self) -> None:
        """What a process that is gone has left."""
        kept = (self.mount / "runtime").read_bytes()
        self.sandboxes, self.containers, number = pickle.loads(kept)
        self._numbers = itertools.count(number + 1)

    def _group(self, own: str) -> Path:
        sandbox = self.sandboxes[self.containers[own].about.sandbox_id]
        return self.mount / sandbox.cgroup_parent.lstrip("/") / own

    def _write_group(self, own: str) -> None:
        found = self.containers[own]
        if found.about.phase is not ContainerPhase.RUNNING:
            return
        folder = self._group(own)
        folder.mkdir(parents=True, exist_ok=True)
        mems = ",".join(map(str, found.mems))
        told = found.about.resources
        quota = told.cpu_quota or "max"
        for name, text in {
            "cpuset.cpus": str(found.cpus),
            "cpuset.cpus.effective": str(found.cpus & self.everything),
            "cpuset.mems": mems,
            "cpuset.mems.effective": mems,
            "cpu.weight": str(1 + (told.cpu_shares - 2) * 9999 // 262142),
            "cpu.max": f"{quota} {told.cpu_period or _PERIOD}",
        }.items():
            (folder / name).write_text(f"{text}\n")
