"""Who has which GPU in the whole cluster, and who is about to: the one place where the scheduler's bookings are.

What the API shows of bound pods is entered as it is; what this process gives out is held from the moment of its
choice until the API shows it, the bind fails, or its time is over. Every pod is held once, so that nothing can leak:
a pod that is entered again, ends or is deleted takes all with it that was held for it. No I/O.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from colocate.apps.scheduler.gpus.objects import PackedNode, PackedPod
from colocate.gpus import Dialect, GpuBook, GpuRoom, PodBooking, announced, gpus_for, wish_of
from colocate.gpus.packing import (
    Fleet,
    GpuDemand,
    GpuState,
    LearnedMix,
    NodeState,
    Packer,
    PackingPolicy,
    PackRequest,
    Ranking,
    demand_of,
)
from colocate.model.gpu import CORES, GpuInventory

_APART = 1e6
"""Added to the score of a place where containers do not share their GPUs: any where they do comes first."""


class GpuChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that a pod gets on a node."""

    node: str
    demand: GpuDemand
    given: tuple[tuple[str, ...], ...]
    """UUIDs by asking container."""
    inventory: GpuInventory
    """The node's, by which the choice was made."""


class _Held(msgspec.Struct, kw_only=True):
    """What one pod takes of its node."""

    node: str
    cpu: int = 0
    memory: int = 0
    booking: PodBooking | None = None
    unplaced: GpuRoom | None = None
    """What it takes of a GPU that nobody names: it may be any."""
    choice: GpuChoice | None = None
    """Where this process gave it out, and the API does not show it yet."""
    until: float | None = None
    """When a choice is over that was never bound; None while it is being bound, and for what the API shows."""
    doubtful: bool = False
    """Whether nobody knows if the bind came through: then its time being over is not enough."""


class _KnownNode(msgspec.Struct, kw_only=True):
    cpu: int
    memory: int
    book: GpuBook
    trouble: str = ""
    used_cpu: int = 0
    used_memory: int = 0
    pods: dict[str, PackedPod] = msgspec.field(default_factory=dict)
    """Bound pods by uid: what they say is read anew when the node's GPUs change."""
    unplaced: dict[str, GpuRoom] = msgspec.field(default_factory=dict)


class ClusterBook:
    """The bookings of all nodes, and the packer that chooses by them."""

    def __init__(self, policy: PackingPolicy, dialects: Sequence[Dialect], key: bytes | None = None) -> None:
        self.fleet = Fleet()
        self.packer = Packer(self.fleet, policy)
        self.dialects = tuple(dialects)
        self._key = key
        self._mix = LearnedMix()
        self._learned: set[str] = set()
        self._nodes: dict[str, _KnownNode] = {}
        self._held: dict[str, _Held] = {}
        self._chosen: set[str] = set()
        """Those of them that this process has given out, and the API does not show yet."""
        self._homeless: dict[str, dict[str, PackedPod]] = {}
        """Bound pods by a node that is not known, or not yet."""

    # Facts.

    def put_node(self, node: PackedNode) -> None:
        """A node as the API shows it."""
        name = node.metadata.name
        inventory, trouble = _announced(node)
        known = self._nodes.get(name)
        if known is None:
            known = _KnownNode(cpu=node.cpu, memory=node.memory, book=GpuBook(inventory), trouble=trouble)
            self._nodes[name] = known
            for pod in self._homeless.pop(name, {}).values():
                self.put_pod(pod)
            # What this process has given out there outlives a node that comes and goes.
            for uid in self._chosen:
                if self._held[uid].node == name:
                    self._charge(uid, self._held[uid], known)
        else:
            known.cpu, known.memory, known.trouble = node.cpu, node.memory, trouble
            if known.book.inventory != inventory:
                known.book = known.book.with_gpus(inventory)
                for pod in list(known.pods.values()):
                    self.put_pod(pod)
        self._refresh(name)

    def remove_node(self, name: str) -> None:
        """A node is gone. Its pods are heard of one by one."""
        known = self._nodes.pop(name, None)
        self.fleet.remove(name)
        if known is None:
            return
        for uid in known.pods:
            self._held.pop(uid, None)
        if known.pods:
            self._homeless[name] = known.pods

    def put_pod(self, pod: PackedPod) -> None:
        """A pod as the API shows it, whatever has become of it."""
        if pod.is_finished:
            self.remove_pod(pod.uid)
            return
        demand = self.demand(pod)
        if pod.uid not in self._learned and not isinstance(demand, str):
            self._learn(pod, demand)
        name = pod.spec.node_name
        if not name:
            return
        self._drop(pod.uid)
        known = self._nodes.get(name)
        if known is None:
            self._homeless.setdefault(name, {})[pod.uid] = pod
            return
        held = _Held(node=name, cpu=pod.cpu, memory=pod.memory)
        if isinstance(demand, GpuDemand):
            held.booking = self._booked(pod, demand, known.book.inventory)
            if held.booking is None:
                held.unplaced = GpuRoom(demand.together.gpu_memory, demand.together.gpu_cores)
        known.pods[pod.uid] = pod
        self._held[pod.uid] = held
        self._charge(pod.uid, held, known)
        self._refresh(name)

    def remove_pod(self, uid: str) -> None:
        """A pod is gone."""
        self._learned.discard(uid)
        self._drop(uid)

    def _learn(self, pod: PackedPod, demand: GpuDemand | None) -> None:
        self._learned.add(pod.uid)
        if self._mix.see(demand.together if demand else PackRequest(pod.cpu, pod.memory)):
            self.packer.expect(self._mix.latest)

    def _booked(self, pod: PackedPod, demand: GpuDemand, inventory: GpuInventory) -> PodBooking | None:
        """What a bound pod has by its annotations; None where they do not say."""
        wish = wish_of(pod, demand.dialect, demand.asks, inventory, self._key)
        if wish.problem or not wish.gpus:
            return None
        return demand.booking(pod, [gpus_for(wish, demand.asks, ask.container) for ask in demand.asks])

    # Questions.

    def demand(self, pod: PackedPod) -> GpuDemand | str | None:
        """What a pod asks for; None where it asks for no GPU; a sentence where it cannot be served."""
        try:
            return demand_of(pod, self.dialects, pod.cpu, pod.memory)
        except ValueError as error:
            return str(error)

    def knows(self, node: str) -> bool:
        return node in self._nodes

    def scores(self, demand: GpuDemand, names: Sequence[str]) -> NDArray[np.float64]:
        """How good each of these nodes is; least is best, infinity where the pod does not fit."""
        together = self.packer.scores(self.packer.rank(demand.together), names)
        if demand.apart is None or np.isfinite(together).all():
            return together
        apart = self.packer.scores(self.packer.rank(demand.apart), names)
        return np.where(np.isfinite(together), together, apart + _APART)

    def why_not(self, demand: GpuDemand, node: str) -> tuple[str, bool]:
        """Why a pod does not fit on a node, and whether it never will, whoever leaves."""
        known = self._nodes.get(node)
        if known is None:
            return "the GPU scheduler does not know the node yet", False
        if known.trouble:
            return known.trouble, True
        way = demand.ways[-1]
        large = [
            gpu for gpu in known.book.inventory.shared if gpu.memory >= min(w.gpu_memory for w in demand.ways)
        ]
        if len(large) < min(w.gpus for w in demand.ways):
            return f"it has no {_gpus(way)} of that size: {_asked(way)}", True
        return f"no {_gpus(way)} that fits is free: {_asked(way)}", False

    def fits_without(self, demand: GpuDemand, node: str, leaving: Sequence[str]) -> bool:
        """Whether the pod would find its GPUs on a node once these pods have left it."""
        known = self._nodes.get(node)
        if known is None:
            return False
        book, unplaced = known.book, dict(known.unplaced)
        for uid in leaving:
            book = book.release(uid)
            unplaced.pop(uid, None)
        fleet = Fleet([_state(node, known, book, unplaced, free_cpu=known.cpu, free_memory=known.memory)])
        for way in demand.ways:
            alone = msgspec.structs.replace(way, cpu=0, memory=0)
            if Packer(fleet, PackingPolicy.BEST_FIT).rank(alone).best() is not None:
                return True
        return False

    def promised_nodes(self, demand: GpuDemand, nodes: Collection[str]) -> list[str]:
        """Those of the nodes where the pod would fit but for GPUs that are kept for pods whose bind has not begun."""
        waiting: dict[str, list[str]] = {}
        for uid in self._chosen:
            held = self._held[uid]
            if held.until is not None and not held.doubtful and held.node in nodes:
                waiting.setdefault(held.node, []).append(uid)
        return [node for node, uids in waiting.items() if self.fits_without(demand, node, uids)]

    def choice(self, uid: str) -> GpuChoice | None:
        """What this process has given to a pod that the API does not show on a node yet."""
        held = self._held.get(uid)
        return held.choice if held is not None else None

    def booking(self, uid: str) -> PodBooking | None:
        held = self._held.get(uid)
        return held.booking if held is not None else None

    @property
    def books(self) -> Mapping[str, GpuBook]:
        """By node."""
        return {name: known.book for name, known in self._nodes.items()}

    @property
    def held(self) -> Mapping[str, str]:
        """By pod's uid, the node on which something is held for it."""
        return {uid: held.node for uid, held in self._held.items()}

    # What this process gives out.

    def reserve(self, pod: PackedPod, node: str, until: float) -> GpuChoice | None:
        """Choose GPUs of a node for a pod, and hold them until then; None where none fit. What was held for the pod
        by an earlier choice is let go, unless it is that very one, or may have come through."""
        if pod.spec.node_name or any(pod.uid in pods for pods in self._homeless.values()):
            # It has its place, though that node may be away.
            return None
        held = self._held.get(pod.uid)
        if held is not None:
            if held.choice is None or held.until is None:
                return None
            known = self._nodes.get(node)
            # A GPU may have gone or fallen ill since.
            if held.node == node and known and held.booking and not known.book.why_not(held.booking):
                held.until = until
                return held.choice
            if held.doubtful:
                return None
            self._drop(pod.uid)
        demand = self.demand(pod)
        known = self._nodes.get(node)
        if not isinstance(demand, GpuDemand) or known is None:
            return None
        choice = self._choose(demand, node, known)
        if choice is None:
            return None
        booking = demand.booking(pod, choice.given)
        if known.book.why_not(booking):
            return None
        held = _Held(node=node, cpu=pod.cpu, memory=pod.memory, booking=booking, choice=choice, until=until)
        self._held[pod.uid] = held
        self._chosen.add(pod.uid)
        self._charge(pod.uid, held, known)
        self._refresh(node)
        return choice

    def _choose(self, demand: GpuDemand, node: str, known: _KnownNode) -> GpuChoice | None:
        for way in demand.ways:
            ranking: Ranking = self.packer.rank(way)
            row = self.fleet.rows.get(node)
            if row is None or not np.isfinite(ranking.scores[row]):
                continue
            shared = known.book.inventory.shared
            gpus = [shared[column].uuid for column in ranking.chosen(row)]
            return GpuChoice(
                node=node, demand=demand, given=demand.given(way, gpus), inventory=known.book.inventory
            )
        return None

    def begin(self, uid: str) -> None:
        """The pod is being bound: what is held for it is held until that has succeeded or failed."""
        held = self._held.get(uid)
        if held is not None and held.choice is not None:
            held.until = None

    def doubt(self, uid: str, until: float) -> None:
        """Nobody knows whether the bind came through: hold what was chosen until the API shows it, or somebody has
        looked after that time and says that it did not."""
        held = self._held.get(uid)
        if held is not None and held.choice is not None:
            held.until, held.doubtful = until, True

    def doubts(self, now: float) -> list[PodBooking]:
        """Bookings of binds in doubt whose time is over: worth a look."""
        over = [self._held[uid] for uid in self._chosen]
        return [
            held.booking
            for held in over
            if held.doubtful and held.booking is not None and held.until is not None and held.until <= now
        ]

    def doubted_until(self, uid: str) -> float | None:
        """When a bind in doubt is worth a look; None where there is none."""
        held = self._held.get(uid)
        return held.until if held is not None and held.doubtful else None

    def settled_on(self, uid: str) -> str:
        """The node on which a pod must stay, as an earlier bind may have come through; empty where it is free."""
        held = self._held.get(uid)
        return held.node if held is not None and held.doubtful else ""

    def release(self, uid: str, *, waiting: bool = False) -> None:
        """Let go of what was chosen for a pod; with `waiting`, only where its bind has not begun."""
        held = self._held.get(uid)
        if held is None or held.choice is None or (waiting and (held.until is None or held.doubtful)):
            return
        self._drop(uid)

    def expire(self, now: float) -> int:
        """Let go of choices whose time is over before their bind began; says how many."""
        over = []
        for uid in self._chosen:
            held = self._held[uid]
            if held.until is not None and held.until <= now and not held.doubtful:
                over.append(uid)
        for uid in over:
            self._drop(uid)
        return len(over)

    # The sums.

    def _charge(self, uid: str, held: _Held, known: _KnownNode) -> None:
        known.used_cpu += held.cpu
        known.used_memory += held.memory
        if held.booking is not None:
            known.book = known.book.record(held.booking)
        if held.unplaced is not None:
            known.unplaced[uid] = held.unplaced

    def _drop(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        self._chosen.discard(uid)
        for name, pods in list(self._homeless.items()):
            if pods.pop(uid, None) is not None and not pods:
                del self._homeless[name]
        known = self._nodes.get(held.node) if held is not None else None
        if held is None or known is None:
            return
        known.used_cpu -= held.cpu
        known.used_memory -= held.memory
        known.book = known.book.release(uid)
        known.unplaced.pop(uid, None)
        known.pods.pop(uid, None)
        self._refresh(held.node)

    def _refresh(self, name: str) -> None:
        known = self._nodes[name]
        self.fleet.put(
            _state(
                name,
                known,
                known.book,
                known.unplaced,
                free_cpu=known.cpu - known.used_cpu,
                free_memory=known.memory - known.used_memory,
            )
        )


def _state(
    name: str,
    known: _KnownNode,
    book: GpuBook,
    unplaced: Mapping[str, GpuRoom],
    *,
    free_cpu: int,
    free_memory: int,
) -> NodeState:
    memory = sum(room.memory for room in unplaced.values())
    cores = sum(room.cores for room in unplaced.values())
    gpus = []
    for gpu in book.inventory.shared:
        offered = book.offered(gpu.uuid)
        gpus.append(
            GpuState(
                gpu.memory,
                max(0, offered.memory - memory),
                max(0, min(CORES, offered.cores - cores)),
                gpu.model,
            )
        )
    return NodeState(
        name=name,
        cpu=known.cpu,
        memory=known.memory,
        free_cpu=free_cpu,
        free_memory=free_memory,
        gpus=tuple(gpus),
    )


def _announced(node: PackedNode) -> tuple[GpuInventory, str]:
    try:
        found = announced(node.metadata.annotations)
    except ValueError as error:
        return GpuInventory(), str(error)
    if found is None:
        return GpuInventory(), "its agent announces no GPUs"
    return found, ""


def _gpus(way: PackRequest) -> str:
    return "GPU" if way.gpus == 1 else f"set of {way.gpus} GPUs"


def _asked(way: PackRequest) -> str:
    cores = f" and {way.gpu_cores} cores" if way.gpu_cores else ""
    models = f" of {' or '.join(way.models)}" if way.models else ""
    each = " each" if way.gpus > 1 else ""
    return f"{way.gpu_memory} MiB{cores}{each}{models} {'are' if way.gpu_memory != 1 else 'is'} asked for"
