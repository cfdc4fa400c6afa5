"""What the placer tells: every container with its CPUs, what is free, why a container is where it is; and metrics."""

from collections import Counter

import msgspec

from colocate import telemetry
from colocate.cpus import CpuAllocator, CpuMode, MilliCpu, PoolKind, fragmentation, whole_ccxs
from colocate.cpus.placer.book import PlacedContainer, PlacementBook
from colocate.cpus.placer.placer import Placer
from colocate.errors import UserError
from colocate.telemetry import CPUS_BELOW_LIMIT, CPUS_SHORT

_MOST_NAMED = 8


class ContainerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One container."""

    namespace: str
    pod: str
    container: str
    id: str = ""
    phase: str = ""
    cpu: MilliCpu = 0
    limit: MilliCpu | None = None
    mode: str = ""
    """Nothing where it is not placed."""
    pools: tuple[str, ...] = ()
    cpus: str = ""
    mems: tuple[int, ...] = ()
    short: MilliCpu = 0
    passed: str = ""
    """Why it was let through without a decision."""
    warnings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


class PlacementReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole node."""

    active: bool
    off: bool = False
    topology: str = ""
    """The made machine or dump that is decided for; empty: this machine."""
    blind: str = ""
    """Why nobody can be placed: the machine's CPUs cannot be told, and are looked for again."""
    connected: bool = False
    """Whether a way in to the runtime is there."""
    reserved: str = ""
    isolated: str = ""
    containers: tuple[ContainerReport, ...] = ()
    free: dict[str, MilliCpu] = {}
    """By CCX and NUMA node."""
    whole: tuple[str, ...] = ()
    """CCXs that are free as a whole."""
    after: tuple[str, ...] = ()
    """The same after moves that would help."""
    strict_unmet: tuple[str, ...] = ()
    """Containers that wished for one CCX or no start, and run on several."""
    unwritten: int = 0
    unpinned: int = 0
    """Containers that are still to have all CPUs again."""
    unstored: str = ""
    doubts: tuple[str, ...] = ()


class ContainerExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why one container is where it is."""

    container: ContainerReport
    sentences: tuple[str, ...]
    actual: str = ""
    """Its cpuset as the kernel has it; nothing where nobody can tell."""


def report_of(placer: Placer, topology: str = "") -> PlacementReport:
    """The state of a node."""
    book = placer.book
    if book is None:
        return PlacementReport(
            active=False,
            topology=topology,
            blind=placer.doubts[0] if placer.doubts else "see the placer's log",
            connected=placer.writer is not None,
            unstored=placer.state.unstored,
        )
    allocator = book.allocator
    now = allocator.occupancy()
    pieces = fragmentation(allocator)
    return PlacementReport(
        active=book.active,
        off=book.off,
        topology=topology,
        connected=placer.writer is not None,
        reserved=str(allocator.sets.reserved),
        isolated=str(allocator.sets.isolated),
        containers=tuple(_container(placer, book, each) for each in _shown(book)),
        free={
            pool.name: max(0, now.free[pool.index])
            for kind in (PoolKind.CCX, PoolKind.NUMA)
            for pool in allocator.tree.kind(kind)
        },
        whole=pieces.whole,
        after=pieces.after,
        strict_unmet=tuple(
            sorted(
                _title(book, book.containers[key])
                for key in placer.strict_on_several
                if key in book.containers
            )
        ),
        unwritten=len(placer.unwritten),
        unpinned=len(book.unpinned),
        unstored=placer.state.unstored,
        doubts=placer.doubts,
    )


def explanation_of(placer: Placer, name: str) -> ContainerExplanation:
    """Of the container with this id, or name; UserError where there is none, or several."""
    book = placer.book
    if book is None:
        why = placer.doubts[0] if placer.doubts else "the CPUs of this machine are not known"
        raise UserError(f"no container is placed: {why}")
    placed = find_container(book, name)
    sentences: tuple[str, ...]
    if placed.key in book.allocator.assignments:
        sentences = tuple(book.allocator.explain(placed.key))
    elif not book.active:
        sentences = ("Placement is off on this node: it runs on all CPUs.",)
    elif placed.passed:
        sentences = (f"It was let through without a decision ({placed.passed}); the next audit places it.",)
    else:
        sentences = ("It has ended, and has no CPUs.",)
    group = placer.machine.group(book.sandboxes[placed.key[0]], placed.id) if placed.id else None
    return ContainerExplanation(
        container=_container(placer, book, placed),
        sentences=sentences,
        actual="" if group is None else str(group.cpus),
    )


def find_container(book: PlacementBook, name: str) -> PlacedContainer:
    """By an id (its beginning is enough), by [NAMESPACE/]POD/CONTAINER, or by the name of a container alone."""
    shown = _shown(book)
    titles = {each.key: _title(book, each) for each in shown}
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


def _shown(book: PlacementBook) -> list[PlacedContainer]:
    """All but those that have ended and hold nothing."""
    return [
        each
        for each in book.containers.values()
        if not each.has_ended or each.key in book.allocator.assignments
    ]


def _title(book: PlacementBook, each: PlacedContainer) -> str:
    sandbox = book.sandboxes[each.key[0]]
    return f"{sandbox.namespace}/{sandbox.name}/{each.request.container}"


def _container(placer: Placer, book: PlacementBook, each: PlacedContainer) -> ContainerReport:
    sandbox = book.sandboxes[each.key[0]]
    given = book.allocator.assignments.get(each.key)
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
    tree = book.allocator.tree
    cells = [tree.pools[cell.pool].title for cell in tree.cells if cell.mask & given.cpus.mask]
    titles = [tree.by_name[share.pool].title for share in given.parts]
    return msgspec.structs.replace(
        about,
        mode=given.mode,
        pools=tuple(titles or cells),
        cpus=str(book.allocator.cpus_of(given)),
        mems=book.allocator.mems_of(given),
        short=given.short,
        warnings=given.warnings,
    )


def tell_figures(book: PlacementBook, *, moves: bool = True) -> None:
    """Set the gauges; what moves would make of it is looked for only where that is asked."""
    allocator = book.allocator
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
        if key in book.containers and not book.containers[key].has_ended
    )
    for mode in CpuMode:
        telemetry.CPUS_CONTAINERS.labels(mode).set(modes.get(str(mode), 0))
    tell_cpus(allocator)


def tell_cpus(allocator: CpuAllocator) -> None:
    """Set the metrics of CPUs to what an allocator has given."""
    CPUS_BELOW_LIMIT.set(len(allocator.below_limit()))
    CPUS_SHORT.set(sum(1 for each in allocator.assignments.values() if each.short))
