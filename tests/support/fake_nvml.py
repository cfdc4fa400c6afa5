"""A stand-in for libnvidia-ml.so.1, below nvidia-ml-py: that looks up C functions in it and calls them with ctypes.

Each function here has the name and arguments of NVIDIA's nvml.h and complains of any others, so that what is above it
is proven to call what a driver has. `NvmlLibrary.failing` makes single functions fail.
"""

import ctypes
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

SUCCESS: int = pynvml.NVML_SUCCESS
GIB = 1 << 30


class FakeGpu:
    """A GPU of the library."""

    def __init__(self, number: int, memory: int = 16 * GIB, name: str = "Tesla T4") -> None:
        self.uuid = f"GPU-{number:08x}-1111-2222-3333-444444444444"
        self.name = name
        self.memory = memory
        self.used = 0
        self.bus = number + 1
        self.mig: int | None = None
        """Its MIG mode; None where the model has none."""
        self.processes: list[tuple[int, int]] = []
        self.handle = pynvml.c_nvmlDevice_t(pynvml.struct_c_nvmlDevice_t())


class NvmlLibrary:
    """The functions that a driver has; ctypes would call the real ones in the same way."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.failing: dict[str, int] = {}
        """By function, or function and GPU (`nvmlDeviceGetUUID/0`): the error that it returns."""
        self.missing: set[str] = set()
        """Functions that this driver is too old to have."""
        self.called: list[str] = []
        self.initialised = 0
        self.events: queue.Queue[tuple[FakeGpu | None, int]] = queue.Queue()
        self.registered: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        function = type(self).__dict__.get(f"_{name}")
        if function is None or name in self.missing:
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.called.append(name)
            if name in self.failing:
                return self.failing[name]
            if args and isinstance(args[0], pynvml.c_nvmlDevice_t):
                at = self.gpus.index(self._gpu(args[0]))
                if f"{name}/{at}" in self.failing:
                    return self.failing[f"{name}/{at}"]
            result: int = function(self, *args)
            return result

        return call

    def _gpu(self, handle: Any) -> FakeGpu:
        address = ctypes.addressof(handle.contents)
        return next(gpu for gpu in self.gpus if ctypes.addressof(gpu.handle.contents) == address)

    def _nvmlInitWithFlags(self, flags: int) -> int:
        assert isinstance(flags, int)
        self.initialised += 1
        return SUCCESS

    def _nvmlShutdown(self) -> int:
        self.initialised -= 1
        self.registered.clear()
        return SUCCESS

    def _nvmlErrorString(self, code: int) -> bytes:
        return f"error {code}".encode()

    def _nvmlDeviceGetCount_v2(self, count: Any) -> int:
        _points_to(count, ctypes.c_uint).value = len(self.gpus)
        return SUCCESS

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        assert type(index) is ctypes.c_uint
        if index.value >= len(self.gpus):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if f"nvmlDeviceGetHandleByIndex_v2/{index.value}" in self.failing:
            return self.failing[f"nvmlDeviceGetHandleByIndex_v2/{index.value}"]
        _points_to(device, pynvml.c_nvmlDevice_t).contents = self.gpus[index.value].handle.contents
        return SUCCESS

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, length: Any) -> int:
        assert type(length) is ctypes.c_uint
        text.value = self._gpu(handle).uuid.encode()
        return SUCCESS

    def _nvmlDeviceGetName(self, handle: Any, text: Any, length: Any) -> int:
        text.value = self._gpu(handle).name.encode()
        return SUCCESS

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        info, gpu = _points_to(memory, pynvml.c_nvmlMemory_t), self._gpu(handle)
        info.total, info.used, info.free = gpu.memory, gpu.used, gpu.memory - gpu.used
        return SUCCESS

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        _points_to(info, pynvml.nvmlPciInfo_t).bus = self._gpu(handle).bus
        return SUCCESS

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        mode = self._gpu(handle).mig
        if mode is None:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        _points_to(current, ctypes.c_uint).value = mode
        _points_to(pending, ctypes.c_uint).value = mode
        return SUCCESS

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, into: Any) -> int:
        return self._list_processes(self._gpu(handle).processes, count, into)

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, into: Any) -> int:
        return self._list_processes([], count, into)

    def _list_processes(self, processes: list[tuple[int, int]], count: Any, into: Any) -> int:
        size = _points_to(count, ctypes.c_uint)
        room, size.value = size.value, len(processes)
        if not processes:
            return SUCCESS
        if into is None or room < len(processes):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for place, (pid, memory) in enumerate(processes):
            into[place].pid, into[place].usedGpuMemory = pid, memory
        return SUCCESS

    def _nvmlEventSetCreate(self, events: Any) -> int:
        _points_to(events, pynvml.c_nvmlEventSet_t)
        return SUCCESS

    def _nvmlEventSetFree(self, events: Any) -> int:
        assert isinstance(events, pynvml.c_nvmlEventSet_t)
        return SUCCESS

    def _nvmlDeviceGetSupportedEventTypes(self, handle: Any, types: Any) -> int:
        _points_to(types, ctypes.c_ulonglong).value = pynvml.nvmlEventTypeXidCriticalError | 1
        return SUCCESS

    def _nvmlDeviceRegisterEvents(self, handle: Any, types: Any, events: Any) -> int:
        assert type(types) is ctypes.c_ulonglong
        assert types.value == pynvml.nvmlEventTypeXidCriticalError
        assert isinstance(events, pynvml.c_nvmlEventSet_t)
        self.registered.add(self._gpu(handle).uuid)
        return SUCCESS

    def _nvmlEventSetWait_v2(self, events: Any, data: Any, timeout: Any) -> int:
        assert isinstance(events, pynvml.c_nvmlEventSet_t)
        assert type(timeout) is ctypes.c_uint
        try:
            gpu, code = self.events.get(timeout=timeout.value / 1000)
        except queue.Empty:
            return int(pynvml.NVML_ERROR_TIMEOUT)
        told = _points_to(data, pynvml.c_nvmlEventData_t)
        told.eventType, told.eventData = pynvml.nvmlEventTypeXidCriticalError, code
        told.device = (gpu or FakeGpu(99)).handle
        return SUCCESS


def _points_to(argument: Any, kind: type) -> Any:
    """What an argument that C would fill points to: of this type and no other."""
    found = argument._obj
    assert isinstance(found, kind), f"{found!r} is not a {kind.__name__}"
    return found


@contextmanager
def installed(library: NvmlLibrary) -> Iterator[NvmlLibrary]:
    """nvidia-ml-py with this library in place of the driver's."""
    pynvml._nvmlGetFunctionPointer_cache.clear()
    before, pynvml.nvmlLib = pynvml.nvmlLib, library
    try:
        yield library
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
