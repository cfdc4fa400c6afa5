"""Reads GPUs from NVIDIA's driver by nvidia-ml-py, which is imported when the driver is first asked.

NVML is shut down and initialised again after every error that a retry cannot fix: a GPU that fell off the bus
reappears only after a new initialisation. What an old driver does not report is left out.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from colocate.host.gpu_source import GpuProcess, GpuReading, GpuSource, GpuSurvey, GpuUnavailable, Xid

if TYPE_CHECKING:
    from colocate.model.memory import Bytes

T = TypeVar("T")

SYS = Path("/sys")

_LONGEST_WAIT = 1.0
"""The longest time, in seconds, for which waiting for errors holds the driver's lock."""


def load() -> ModuleType:
    """nvidia-ml-py; GpuUnavailable where it is not installed."""
    try:
        import pynvml
    except ImportError as error:
        raise GpuUnavailable(
            "nvidia-ml-py is not installed; install it, or the extra 'gpu' of kube-colocate"
        ) from error
    module: ModuleType = pynvml
    return module


class Nvml(GpuSource):
    """Asks the driver of this machine."""

    def __init__(self, sys: Path = SYS, load: Callable[[], ModuleType] = load) -> None:
        self._sys = sys
        self._load = load
        self._lock = threading.Lock()
        self._nvml: Any = None
        self._events: Any = None
        self._watched: set[str] = set()
        """UUIDs of the GPUs whose errors this process receives."""
        self._known: dict[int, GpuReading] = {}
        """The last reading of each GPU, by index."""
        self._closed = False

    def survey(self) -> GpuSurvey:
        with self._lock:
            nvml = self._opened()
            try:
                count = nvml.nvmlDeviceGetCount()
                read = [self._read(nvml, index) for index in range(count)]
            except nvml.NVMLError as error:
                self._let_go()
                raise GpuUnavailable(f"NVML does not answer: {error}") from error
            readings = [one for one in read if isinstance(one, GpuReading)]
            if len({one.uuid for one in readings}) < len(readings):
                self._let_go()
                raise GpuUnavailable("NVML gives two GPUs the same UUID; restart the driver")
            if any(isinstance(one, str) or one.problem for one in read):
                self._let_go()
            self._known = {one.index: one for one in readings}
            return GpuSurvey(tuple(readings), tuple(one for one in read if isinstance(one, str)))

    def wait_for_xid(self, seconds: float) -> Xid | None:
        with self._lock:
            nvml = self._opened()
            if self._events is None or not self._watched:
                raise GpuUnavailable("no GPU reports its errors")
            try:
                timeout = int(1000 * min(seconds, _LONGEST_WAIT))
                event = nvml.nvmlEventSetWait_v2(self._events, timeout)
                if event.eventType != nvml.nvmlEventTypeXidCriticalError:
                    return None
                return Xid(int(event.eventData), self._uuid(nvml, event.device))
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    return None
                self._let_go()
                raise GpuUnavailable(f"NVML reports no errors: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._let_go()

    def _opened(self) -> Any:
        if self._closed:
            raise GpuUnavailable("the agent is stopping")
        if self._nvml is None:
            nvml: Any = self._load()
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                raise GpuUnavailable(f"no NVIDIA driver answers: {error}") from error
            self._nvml = nvml
            self._events = _told(nvml, nvml.nvmlEventSetCreate)
        return self._nvml

    def _let_go(self) -> None:
        nvml, events, self._nvml, self._events = self._nvml, self._events, None, None
        self._watched = set()
        if nvml is None:
            return
        if events is not None:
            _told(nvml, nvml.nvmlEventSetFree, events)
        _told(nvml, nvml.nvmlShutdown)

    def _read(self, nvml: Any, index: int) -> GpuReading | str:
        """Read one GPU. Where it does not answer: its last reading, or a sentence if there is none."""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
                raise
            reason = f"NVML does not answer for it: {error}"
            known = self._known.get(index)
            if known is None:
                return f"GPU {index}: {reason}"
            return GpuReading(
                uuid=known.uuid,
                index=index,
                model=known.model,
                memory=known.memory,
                numa=known.numa,
                mig=known.mig,
                problem=reason,
            )
        self._watch(nvml, handle, uuid)
        modes = _told(nvml, nvml.nvmlDeviceGetMigMode, handle)
        return GpuReading(
            uuid=uuid,
            index=index,
            model=_told(nvml, nvml.nvmlDeviceGetName, handle) or "",
            memory=int(memory.total),
            used=int(memory.used),
            numa=self._numa(nvml, handle),
            mig=modes is not None and modes[0] == nvml.NVML_DEVICE_MIG_ENABLE,
            processes=_processes(nvml, handle),
        )

    def _watch(self, nvml: Any, handle: Any, uuid: str) -> None:
        """Subscribe to the errors of a GPU, if it reports any."""
        if self._events is None or uuid in self._watched:
            return
        kinds = _told(nvml, nvml.nvmlDeviceGetSupportedEventTypes, handle) or 0
        wanted = kinds & nvml.nvmlEventTypeXidCriticalError
        if wanted:
            try:
                nvml.nvmlDeviceRegisterEvents(handle, wanted, self._events)
                self._watched.add(uuid)
            except nvml.NVMLError:
                pass  # The reading still counts; the next survey tries again.

    def _uuid(self, nvml: Any, handle: Any) -> str:
        """The UUID of a GPU; empty where it no longer answers."""
        return _told(nvml, nvml.nvmlDeviceGetUUID, handle) or ""

    def _numa(self, nvml: Any, handle: Any) -> int | None:
        """The NUMA node from sysfs, which has it for every PCI device."""
        info = _told(nvml, nvml.nvmlDeviceGetPciInfo, handle)
        if info is None:
            return None
        name = f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
        try:
            node = int((self._sys / "bus" / "pci" / "devices" / name / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        # The kernel writes -1 where the firmware gave no node.
        return node if node >= 0 else None


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...] | None:
    found: dict[int, Bytes | None] = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        processes = _told(nvml, ask, handle)
        if processes is None:
            return None
        found |= {process.pid: process.usedGpuMemory for process in processes}
    return tuple(GpuProcess(pid, memory) for pid, memory in sorted(found.items()))


def _told(nvml: Any, ask: Callable[..., T], *args: Any) -> T | None:
    """The driver's answer, or None: the driver is too old, the GPU does not support it, or it has just gone."""
    try:
        return ask(*args)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
        return None
