"""`colocate mock gpu` as the agent hears it: what can be made to go wrong with mock GPUs, and how they stand."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from colocate import telemetry
from colocate.errors import UserError
from colocate.model.memory import Bytes
from colocate.telemetry import Event
from colocate.wire import control_socket as control
from colocate.wire import rpc

if TYPE_CHECKING:
    # An agent that shares no GPUs does not load what that needs.
    from colocate.gpus.agent.part import GpuPart
    from colocate.host.mock_gpus import MockGpus


class _GpuFault(msgspec.Struct, frozen=True, tag_field="do", tag=str.lower):
    """One order from `colocate mock gpu`; `gpu` is an index, a UUID, or the beginning of one."""


class RaiseXid(_GpuFault, frozen=True):
    """The driver tells of an error of a GPU."""

    gpu: str
    code: int


class LoseGpu(_GpuFault, frozen=True):
    """A GPU falls off the bus."""

    gpu: str


class RecoverGpu(_GpuFault, frozen=True):
    """It answers again; it is healthy once it has been quiet for as long as a GPU takes to recover."""

    gpu: str


class UseGpu(_GpuFault, frozen=True):
    """So much of its memory is in use."""

    gpu: str
    used: Bytes


class ReplaceGpu(_GpuFault, frozen=True):
    """Another GPU of its kind is in its place."""

    gpu: str
    uuid: str = ""


class SilenceDriver(_GpuFault, frozen=True):
    """The driver answers no question for this reason; without one, it does again."""

    reason: str = ""


GpuFault: TypeAlias = RaiseXid | LoseGpu | RecoverGpu | UseGpu | ReplaceGpu | SilenceDriver


class MockGpuStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A mock GPU as it is, whatever the agent makes of it."""

    index: int
    uuid: str
    model: str
    memory: Bytes
    used: Bytes
    numa: int | None
    mig: bool
    lost: bool


class MockGpuList(msgspec.Struct, frozen=True):
    """All of them."""

    gpus: tuple[MockGpuStatus, ...]
    silent: str = ""


class ListMockGpus(msgspec.Struct, frozen=True):
    """Ask for them."""


class SetGpuFault(msgspec.Struct, frozen=True):
    """Make something go wrong, or right again."""

    fault: GpuFault


LIST_GPUS = rpc.json("/colocate.MockGpu/List", ListMockGpus, MockGpuList)
SET_FAULT = rpc.json("/colocate.MockGpu/Set", SetGpuFault, MockGpuList)


def service(part: "Callable[[], GpuPart | None]") -> rpc.Service:
    """The methods, over a part that an agent may not have."""

    def mocks() -> "MockGpus":
        found = part()
        if found is None or found.mocks is None:
            raise UserError(
                "this agent has no mock GPUs; set gpus.enabled and gpus.mock in its configuration and start it again"
            )
        return found.mocks

    def list_all(_: ListMockGpus) -> MockGpuList:
        return _listed(mocks())

    def set_fault(request: SetGpuFault) -> MockGpuList:
        source = mocks()
        apply_fault(source, request.fault)
        mended = isinstance(request.fault, RecoverGpu) or request.fault == SilenceDriver()
        telemetry.logger().info(
            Event.MOCK_FAULT_CLEARED if mended else Event.MOCK_FAULT_SET, **msgspec.to_builtins(request.fault)
        )
        found = part()
        assert found is not None
        found.monitor.look_again()
        return _listed(source)

    return rpc.Service({LIST_GPUS: control.answering(list_all), SET_FAULT: control.answering(set_fault)})


def apply_fault(source: "MockGpus", fault: GpuFault) -> None:
    """Do it; UserError where there is no such GPU, or it has not so much memory."""
    if isinstance(fault, SilenceDriver):
        source.silence(fault.reason)
        return
    gpu = source.find(fault.gpu)
    match fault:
        case RaiseXid(code=code):
            if not 0 < code < 1 << 31:
                raise UserError(f"{code} is no XID; give a number from 1 on, such as 48 or 79")
            source.xid(gpu, code)
        case LoseGpu():
            source.lose(gpu)
        case RecoverGpu():
            source.recover(gpu)
        case UseGpu(used=used):
            if not 0 <= used <= gpu.memory:
                raise UserError(f"{gpu.uuid} has {gpu.memory} bytes of memory, and cannot use {used}")
            source.use(gpu, used)
        case ReplaceGpu(uuid=uuid):
            source.replace(gpu, uuid)


def _listed(source: "MockGpus") -> MockGpuList:
    return MockGpuList(
        tuple(
            MockGpuStatus(
                index=index,
                uuid=gpu.uuid,
                model=gpu.model,
                memory=gpu.memory,
                used=gpu.used,
                numa=gpu.numa,
                mig=gpu.mig,
                lost=gpu.uuid in source.lost,
            )
            for index, gpu in enumerate(source.gpus)
        ),
        source.silent,
    )
