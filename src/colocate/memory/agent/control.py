"""The agent's answers to `colocate memory`: messages and methods on the control socket."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from colocate.errors import UserError
from colocate.memory.agent.report import MemoryReport
from colocate.wire import control_socket as control
from colocate.wire import rpc

if TYPE_CHECKING:
    # An agent that sells no memory does not load the memory part.
    from colocate.memory.agent.part import MemoryPart


class AskReport(msgspec.Struct, frozen=True):
    """Ask for the report of the last turn."""


class Switch(msgspec.Struct, frozen=True):
    """Switch memory colocation off or on."""

    off: bool


class Switched(msgspec.Struct, frozen=True):
    """Whether colocation is off now, and was before."""

    off: bool
    was_off: bool
    unstored: str = ""
    """Why the switch will not survive a restart of the agent; empty where it will."""


REPORT = rpc.json("/colocate.Memory/Report", AskReport, MemoryReport)
SWITCH = rpc.json("/colocate.Memory/Switch", Switch, Switched)


def service(part: "Callable[[], MemoryPart | None]") -> rpc.Service:
    """The methods, for the memory part, which an agent may not have."""

    def the_part() -> "MemoryPart":
        found = part()
        if found is None:
            raise UserError(
                "this agent sells no memory; set memory.enabled to true in its configuration and start it again"
            )
        return found

    def ask(_: AskReport) -> MemoryReport:
        return the_part().report

    def switch(request: Switch) -> Switched:
        found = the_part()
        was_off = found.is_off
        if was_off != request.off or found.switch_unstored:
            found.switch(request.off)
        return Switched(found.is_off, was_off, found.switch_unstored)

    return rpc.Service({REPORT: control.answering(ask), SWITCH: control.answering(switch)})
