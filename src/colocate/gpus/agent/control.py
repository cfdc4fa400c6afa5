"""`colocate gpu` as the agent hears it: the messages, the methods, and their answers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from colocate.errors import UserError
from colocate.gpus.agent.report import GpuReport
from colocate.wire import control_socket as control
from colocate.wire import rpc

if TYPE_CHECKING:
    # An agent that shares no GPUs does not load what that needs.
    from colocate.gpus.agent.part import GpuPart


class AskGpuReport(msgspec.Struct, frozen=True):
    """Ask how the GPUs stand."""


class ExplainGpuPod(msgspec.Struct, frozen=True):
    """Ask why a pod has the GPUs that it has, or none."""

    pod: str
    """namespace/name, or a name in the namespace default."""


class GpuExplanation(msgspec.Struct, frozen=True):
    """Why, sentence by sentence."""

    pod: str
    sentences: tuple[str, ...]


GPU_REPORT = rpc.json("/colocate.Gpus/Report", AskGpuReport, GpuReport)
EXPLAIN = rpc.json("/colocate.Gpus/Explain", ExplainGpuPod, GpuExplanation)


def service(part: "Callable[[], GpuPart | None]") -> rpc.Service:
    """The methods, over a part that an agent may not have."""

    def the_part() -> "GpuPart":
        found = part()
        if found is None:
            raise UserError(
                "this agent shares no GPUs; set gpus.enabled to true in its configuration and start it again"
            )
        return found

    def ask(_: AskGpuReport) -> GpuReport:
        return the_part().report()

    async def explain(request: ExplainGpuPod) -> GpuExplanation:
        key = request.pod if "/" in request.pod else f"default/{request.pod}"
        return GpuExplanation(key, await the_part().explain(key))

    return rpc.Service({GPU_REPORT: control.answering(ask), EXPLAIN: control.answering_later(explain)})
