"""`colocate cpus` as the placer hears it: the messages, the methods, and their answers."""

from functools import partial

import msgspec

from colocate import telemetry
from colocate.aio import in_thread
from colocate.cpus.placer.placer import Placer
from colocate.cpus.placer.report import ContainerExplanation, PlacementReport, explanation_of, report_of
from colocate.errors import UserError
from colocate.telemetry import Event
from colocate.wire import control_socket as control
from colocate.wire import rpc

PLACER = control.ControlPeer(
    "placer", "'colocate cri-proxy' or 'colocate nri'", "cpus.socket", "COLOCATE_CPUS_SOCKET"
)


class AskPlacement(msgspec.Struct, frozen=True):
    """Ask how all containers stand."""


class AskExplanation(msgspec.Struct, frozen=True):
    """Ask why a container is where it is."""

    container: str


class SwitchPlacement(msgspec.Struct, frozen=True):
    """Switch placement off or on."""

    off: bool


class PlacementSwitched(msgspec.Struct, frozen=True):
    """How it stands now."""

    off: bool
    was_off: bool
    unstored: str = ""
    """Why this will not outlast a restart; empty where it will."""


STATUS = rpc.json("/colocate.Placement/Status", AskPlacement, PlacementReport)
EXPLAIN = rpc.json("/colocate.Placement/Explain", AskExplanation, ContainerExplanation)
SWITCH = rpc.json("/colocate.Placement/Switch", SwitchPlacement, PlacementSwitched)


def service(placer: Placer, topology: str = "") -> rpc.Service:
    """The methods; `topology` is the made machine that is decided for, if any."""

    async def status(_: AskPlacement) -> PlacementReport:
        # Which moves would help takes long to find: containers must not wait for it.
        return await in_thread(partial(report_of, placer, topology))

    def explain(request: AskExplanation) -> ContainerExplanation:
        return explanation_of(placer, request.container)

    async def switch(request: SwitchPlacement) -> PlacementSwitched:
        if placer.book is None:
            raise UserError(placer.doubts[0] if placer.doubts else "the CPUs of this machine are not known")
        was_off = placer.book.off
        await placer.step("switch", lambda book: book.switch(request.off))
        if placer.book.off != was_off:
            telemetry.logger().info(Event.PLACEMENT_SWITCHED, off=placer.book.off)
        return PlacementSwitched(placer.book.off, was_off, placer.state.unstored)

    return rpc.Service(
        {
            STATUS: control.answering_later(status),
            EXPLAIN: control.answering(explain),
            SWITCH: control.answering_later(switch),
        }
    )
