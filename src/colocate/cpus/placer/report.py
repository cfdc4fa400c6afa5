"""Reports of the placer: the answers to `colocate cpus`, and the metrics of CPUs."""

from collections import Counter
from functools import partial

import msgspec

from colocate import telemetry
from colocate.aio import in_thread
from colocate.cpus import CpuAllocator, CpuMode, MilliCpu, PoolKind, fragmentation, whole_ccxs
from colocate.cpus.placer.placements import PlacedContainer, Placements
from colocate.cpus.placer.placer import Placer
from colocate.errors import UserError
from colocate.telemetry import CPUS_BELOW_LIMIT, CPUS_SHORT, Event
from colocate.wire import control_socket as control
from colocate.wire import rpc

_MOST_NAMED = 8
_UNKNOWN = "the CPUs of this machine are not known"


class ContainerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One container of a report."""

    namespace: str
    pod: str
    container: str
    id: str = ""
    phase: str = ""
    cpu: MilliCpu = 0
    limit: MilliCpu | None = None
    mode: str = ""
    """Empty if it is not placed."""
    pools: tuple[str, ...] = ()
    cpus: str = ""
    mems: tuple[int, ...] = ()
    short: MilliCpu = 0
    passed: str = ""
    """Why it started without a decision; empty if it was decided."""
    warnings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


class PlacementReport(msgspec.Struct, frozen=True, kw_only=True):
    """The placements of a node."""

    active: bool
    off: bool = False
    topology: str = ""
    """The made machine or dump that decisions are for; empty: this machine."""
    blind: str = ""
    """Why the CPU topology cannot be read, so that no container is placed; it is read again later."""
    connected: bool = False
    """Whether a runtime is connected."""
    reserved: str = ""
    isolated: str = ""
    containers: tuple[ContainerReport, ...] = ()
    free: dict[str, MilliCpu] = {}
    """Free CPU by CCX and NUMA node."""
    whole: tuple[str, ...] = ()
    """CCXs that are completely free."""
    after: tuple[str, ...] = ()
    """CCXs that would be completely free after the moves that help most."""
    strict_unmet: tuple[str, ...] = ()
    """Containers that wished for strict placement on one CCX and run on several."""
    unwritten: int = 0
    unpinned: int = 0
    """Number of containers that are still to be unpinned."""
    unstored: str = ""
    doubts: tuple[str, ...] = ()


class ContainerExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why one container has its CPUs."""

    container: ContainerReport
    sentences: tuple[str, ...]
    actual: str = ""
    """Its cpuset by its control group; empty if it has none."""


PLACER = control.ControlPeer(
    "placer", "'colocate cri-proxy' or 'colocate nri'", "cpus.socket", "COLOCATE_CPUS_SOCKET"
)


class AskPlacement(msgspec.Struct, frozen=True):
    """Ask for the report of a node."""


class AskExplanation(msgspec.Struct, frozen=True):
    """Ask why a container has its CPUs."""

    container: str


class SwitchPlacement(msgspec.Struct, frozen=True):
    """Switch placement off or on."""

    off: bool


class PlacementSwitched(msgspec.Struct, frozen=True):
    """Whether placement is off now, and was before."""

    off: bool
    was_off: bool
    unstored: str = ""
    """Why this is not stored and would be lost at a restart; empty if it is stored."""


STATUS = rpc.json("/colocate.Placement/Status", AskPlacement, PlacementReport)
EXPLAIN = rpc.json("/colocate.Placement/Explain", AskExplanation, ContainerExplanation)
SWITCH = rpc.json("/colocate.Placement/Switch", SwitchPlacement, PlacementSwitched)


def report_of(placer: Placer, topology: str = "") -> PlacementReport:
    """The report of a node. Slow: it searches for moves that would help."""
    keeper = placer.keeper
    placements = keeper.placements
    if placements is None:
        return PlacementReport(
            active=False,
            topology=topology,
            blind=keeper.doubts[0] if keeper.doubts else "see the placer's log",
            connected=placer.writer is not None,
            unstored=keeper.store.unstored,
        )
    allocator = placements.allocator
    now = allocator.occupancy()
    pieces = fragmentation(allocator)
    return PlacementReport(
        active=placements.active,
        off=placements.off,
        topology=topology,
        connected=placer.writer is not None,
        reserved=str(allocator.sets.reserved),
        isolated=str(allocator.sets.isolated),
        containers=tuple(_container(placements, each) for each in _shown(placements)),
        free={
            pool.name: max(0, now.free[pool.index])
            for kind in (PoolKind.CCX, PoolKind.NUMA)
            for pool in allocator.tree.kind(kind)
        },
        whole=pieces.whole,
        after=pieces.after,
        strict_unmet=tuple(
            sorted(
                _title(placements, placements.containers[key])
                for key in keeper.strict_on_several
                if key in placements.containers
            )
        ),
        unwritten=len(keeper.unwritten),
        unpinned=len(placements.unpinned),
        unstored=keeper.store.unstored,
        doubts=keeper.doubts,
    )


def explanation_of(placer: Placer, name: str) -> ContainerExplanation:
    """Explain the container with this id or name; UserError if there is none, or several."""
    keeper = placer.keeper
    placements = keeper.placements
    if placements is None:
        why = keeper.doubts[0] if keeper.doubts else _UNKNOWN
        raise UserError(f"no container is placed: {why}")
    placed = find_container(placements, name)
    sentences: tuple[str, ...]
    if placed.key in placements.allocator.assignments:
        sentences = tuple(placements.allocator.explain(placed.key))
    elif not placements.active:
        sentences = ("Placement is off on this node: it runs on all CPUs.",)
    elif placed.passed:
        sentences = (f"It started without a decision ({placed.passed}); the next audit places it.",)
    else:
        sentences = ("It has ended, and has no CPUs.",)
    group = keeper.machine.group(placements.sandboxes[placed.key[0]], placed.id) if placed.id else None
    return ContainerExplanation(
        container=_container(placements, placed),
        sentences=sentences,
        actual="" if group is None else str(group.cpus),
    )


def find_container(placements: Placements, name: str) -> PlacedContainer:
    """Find by id (its beginning is enough), by [NAMESPACE/]POD/CONTAINER, or by the container's name alone."""
    shown = _shown(placements)
    titles = {each.key: _title(placements, each) for each in shown}
    found = [each for each in shown if titles[each.key] == name]
    found = found or [each for each in shown if titles[each.key].endswith(f"/{name}")]
    if not found and len(name) >= 6:
        found = [each for each in shown if each.id.startswith(name)]
    if not found:
        raise UserError(f"there is no container {name[:100]!r} here; 'colocate cpus status' lists them")
    if len(found) > 1:
        named = ", ".join(sorted(titles[each.key] for each in found)[:_MOST_NAMED])
        raise UserError(
            f"{len(found)} containers are called {name[:100]!r}: {named}; name one of them in full"
        )
    return found[0]


def _shown(placements: Placements) -> list[PlacedContainer]:
    """All containers but those that have ended and have no CPUs."""
    return [
        each
        for each in placements.containers.values()
        if not each.has_ended or each.key in placements.allocator.assignments
    ]


def _title(placements: Placements, each: PlacedContainer) -> str:
    sandbox = placements.sandboxes[each.key[0]]
    return f"{sandbox.namespace}/{sandbox.name}/{each.request.container}"


def _container(placements: Placements, each: PlacedContainer) -> ContainerReport:
    sandbox = placements.sandboxes[each.key[0]]
    given = placements.allocator.assignments.get(each.key)
    about = ContainerReport(
        namespace=sandbox.namespace,
        pod=sandbox.name,
        container=each.request.container,
        id=each.id,
        phase=each.phase,
        cpu=each.request.cpu,
        limit=each.request.limit,
        passed=each.passed,
    )
    if given is None:
        return about
    tree = placements.allocator.tree
    cells = [tree.pools[cell.pool].title for cell in tree.cells if cell.mask & given.cpus.mask]
    titles = [tree.by_name[share.pool].title for share in given.parts]
    return msgspec.structs.replace(
        about,
        mode=given.mode,
        pools=tuple(titles or cells),
        cpus=str(placements.allocator.cpus_of(given)),
        mems=placements.allocator.mems_of(given),
        short=given.short,
        warnings=given.warnings,
    )


def tell_figures(placements: Placements, *, moves: bool = True) -> None:
    """Set the gauges of a node; `moves` includes the slow search for moves that would help."""
    allocator = placements.allocator
    now = allocator.occupancy()
    for kind in (PoolKind.CCX, PoolKind.NUMA):
        for pool in allocator.tree.kind(kind):
            free = max(0, now.free[pool.index]) / 1000
            telemetry.CPUS_FREE.labels(kind, pool.name.partition(" ")[2]).set(free)
    telemetry.CPUS_WHOLE_CCXS.labels("now").set(len(whole_ccxs(allocator)))
    if moves:
        telemetry.CPUS_WHOLE_CCXS.labels("after moves").set(len(fragmentation(allocator).after))
    modes = Counter(
        str(each.mode)
        for key, each in allocator.assignments.items()
        if key in placements.containers and not placements.containers[key].has_ended
    )
    for mode in CpuMode:
        telemetry.CPUS_CONTAINERS.labels(mode).set(modes.get(str(mode), 0))
    tell_cpus(allocator)


def tell_cpus(allocator: CpuAllocator) -> None:
    """Set the metrics that need only an allocator."""
    CPUS_BELOW_LIMIT.set(len(allocator.below_limit()))
    CPUS_SHORT.set(sum(1 for each in allocator.assignments.values() if each.short))


def placer_service(placer: Placer, topology: str = "") -> rpc.Service:
    """The methods of the control socket; `topology` is the made machine that decisions are for, if any."""

    async def status(_: AskPlacement) -> PlacementReport:
        # The report is slow: containers must not wait for it.
        return await in_thread(partial(report_of, placer, topology))

    def explain(request: AskExplanation) -> ContainerExplanation:
        return explanation_of(placer, request.container)

    async def switch(request: SwitchPlacement) -> PlacementSwitched:
        keeper = placer.keeper
        if keeper.placements is None:
            raise UserError(keeper.doubts[0] if keeper.doubts else _UNKNOWN)
        was_off = keeper.placements.off
        await keeper.step("switch", lambda placements: placements.switch(request.off))
        if keeper.placements.off != was_off:
            telemetry.logger().info(Event.PLACEMENT_SWITCHED, off=keeper.placements.off)
        return PlacementSwitched(keeper.placements.off, was_off, keeper.store.unstored)

    return rpc.Service(
        {
            STATUS: control.answering_later(status),
            EXPLAIN: control.answering(explain),
            SWITCH: control.answering_later(switch),
        }
    )
