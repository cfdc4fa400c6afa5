"""Who has which GPU in the whole cluster, and who is about to: the one place where the scheduler's bookings are.

Answers where a pod fits and how well, and holds what this process gives out: from the moment of its choice until the
API shows it, the bind fails, or its time is over. No I/O.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from colocate.gpus import (
    GpuBook,
    PodBooking,
)
from colocate.gpus.packing import (
    Fleet,
    GpuDemand,
    Packer,
    PackingPolicy,
    PackRequest,
    Ranking,
)
from colocate.gpus.packing.cluster_pods import ClusterPods
from colocate.gpus.packing.node_book import GpuChoice, HeldPod, NodeBook, Shape, shape_of
from colocate.gpus.packing.objects import PackedPod
from colocate.gpus.packing.rivals import PATIENCE, gpus_of, is_confusing, rivals_of

__all__ = ["ClusterBook", "GpuChoice"]

_APART = 1e6
"""Added to the score of a place where containers do not share their GPUs: any where they do comes first."""


class ClusterBook(ClusterPods):
    """The bookings of all nodes."""

    # Questions.

    def knows(self, node: str) -> bool:
        return node in self._nodes

    def scores(self, demand: GpuDemand, names: Sequence[str]) -> NDArray[np.float64]:
        """How good each of these nodes is; least is best, infinity where the pod does not fit."""
        found = self.packer.scores(self.packer.rank(demand.together), names)
        if demand.apart is not None and not np.isfinite(found).all():
            apart = self.packer.scores(self.packer.rank(demand.apart), names)
            found = np.where(np.isfinite(found), found, apart + _APART)
        if strange := self._strange.get(demand.dialect.memory):
            found = np.where([name in strange for name in names], np.inf, found)
        return found

    def why_not(self, demand: GpuDemand, node: str) -> tuple[str, bool]:
        """Why a pod does not fit on a node, and whether it never will, even if all other pods leave."""
        known = self._nodes.get(node)
        if known is None:
            return "the GPU scheduler does not know the node yet", False
        if known.trouble:
            return known.trouble, True
        if strange := self._strange.get(demand.dialect.memory, {}).get(node):
            return strange, True
        way = demand.ways[-1]
        large = [
            gpu for gpu in known.told.inventory.shared if gpu.memory >= min(w.gpu_memory for w in demand.ways)
        ]
        if len(large) < min(w.gpus for w in demand.ways):
            return f"it has no {_gpus(way)} of that size: {_asked(way)}", True
        return f"no {_gpus(way)} that fits is free: {_asked(way)}", False

    def fits_without(self, demand: GpuDemand, node: str, leaving: Sequence[str]) -> bool:
        """Whether the pod would find its GPUs on a node once these pods have left it."""
        known = self._nodes.get(node)
        if known is None or node in self._strange.get(demand.dialect.memory, ()):
            return False
        fleet = Fleet([known.state(known.without(leaving), idle=True)])
        for way in demand.ways:
            alone = msgspec.structs.replace(way, cpu=0, memory=0)
            if Packer(fleet, PackingPolicy.BEST_FIT).rank(alone).best() is not None:
                return True
        return False

    def promised_nodes(self, demand: GpuDemand, nodes: Collection[str]) -> list[str]:
        """Those of the nodes where the pod would fit but for GPUs that are kept for pods whose bind has not begun, or
        that have ended and whose agent has yet to say so."""
        waiting: dict[str, list[str]] = {
            node: found for node in nodes if node in self._nodes and (found := self._nodes[node].ghosts())
        }
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
        """What counts for a pod."""
        held = self._held.get(uid)
        known = self._nodes.get(held.node) if held is not None else None
        return known.full.pods.get(uid) if known is not None else None

    @property
    def books(self) -> Mapping[str, GpuBook]:
        """By node."""
        return {name: known.full for name, known in self._nodes.items()}

    @property
    def held(self) -> Mapping[str, str]:
        """By pod's uid, the node on which something is held for it."""
        return {uid: held.node for uid, held in self._held.items() if held.node in self._nodes}

    # What this process gives out.

    def reserve(self, pod: PackedPod, node: str, until: float) -> GpuChoice | None:
        """Choose GPUs of a node for a pod, and hold them until `until`; None where none fit. This releases an earlier
        choice for the pod, unless it is the same one, or its bind may have come through."""
        held = self._held.get(pod.uid)
        if pod.spec.node_name or pod.uid in self._ended:
            return None
        if held is not None:
            if held.choice is None or held.until is None:
                # It has its place, though that node may be away, or is on its way there.
                return None
            known = self._nodes.get(node)
            # A GPU may have gone or fallen ill since.
            if held.node == node and known and held.booking and not known.full.why_not(held.booking):
                held.until = until
                return held.choice
            if held.doubtful:
                return None
            self._drop(pod.uid)
        demand = self.demand(pod)
        known = self._nodes.get(node)
        if not isinstance(demand, GpuDemand) or known is None:
            return None
        shape = shape_of(pod, self.dialects)
        choice = self._choose(pod, demand, shape, known)
        if choice is None:
            return None
        held = HeldPod(
            node=node,
            cpu=pod.cpu,
            memory=pod.memory,
            shape=shape,
            since=self._now,
            booking=demand.booking(pod, choice.given),
            choice=choice,
            until=until,
        )
        self._chosen.add(pod.uid)
        self._hold(pod.uid, held)
        return choice

    def _choose(self, pod: PackedPod, demand: GpuDemand, shape: Shape, known: NodeBook) -> GpuChoice | None:
        """Choose by the policy. Where the kubelet could take the pod for another that is on its way, choose the GPUs
        of that one, if they fit: then a mix-up does no harm. None also where it would do harm: then the pod waits for
        the other."""
        if known.name in self._strange.get(demand.dialect.memory, ()):
            return None
        rivals = rivals_of(shape, known, self._now)
        # Rivals may come without end: a pod waits for them for so long and no longer.
        waits = self._now - self._waiting.get(pod.uid, self._now) < PATIENCE
        for way in demand.ways:
            ranking: Ranking = self.packer.rank(way)
            row = self.fleet.rows.get(known.name)
            if row is None or not np.isfinite(ranking.scores[row]):
                continue
            shared = known.told.inventory.shared
            best = [shared[column].uuid for column in ranking.chosen(row)]
            for gpus in [*gpus_of(rivals, way, known), best]:
                given = demand.given(way, gpus)
                if known.full.why_not(demand.booking(pod, given)):
                    continue
                if waits and is_confusing(gpus, shape, rivals, known):
                    self._waiting.setdefault(pod.uid, self._now)
                    continue
                self._waiting.pop(pod.uid, None)
                inventory = known.told.inventory
                return GpuChoice(node=known.name, demand=demand, given=given, inventory=inventory)
        return None

    def waits_for(self, pod: PackedPod, node: str) -> str:
        """Why a pod that fits has to wait until an agent has announced another; empty where it need not."""
        known = self._nodes.get(node)
        shape = shape_of(pod, self.dialects)
        rivals = rivals_of(shape, known, self._now) if known is not None else {}
        if not rivals:
            return ""
        return (
            f"it asks for as much as others that are on their way to {node} ({len(rivals)}), and the kubelet could "
            "take one for the other; it is tried again when the agent has told their GPUs"
        )

    def begin(self, uid: str) -> None:
        """The pod is being bound: what is held for it is held until that has succeeded or failed."""
        held = self._held.get(uid)
        if held is not None and held.choice is not None:
            held.until = None

    def number(self, uid: str, number: int) -> None:
        """The booking is sealed with this number."""
        held = self._held.get(uid)
        if held is not None and held.choice is not None:
            held.number = number

    def doubt(self, uid: str, until: float) -> None:
        """It is unknown whether the bind came through: hold what was chosen until the API shows it, or until a look
        after that time finds that it did not."""
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
        self._now = now
        for name in list(self._haunted):
            known = self._nodes.get(name)
            if known is not None:
                known.expire(now)
                self._stale[name] = None
            if known is None or not known.ghosts():
                self._haunted.discard(name)
        over = []
        for uid in self._chosen:
            held = self._held[uid]
            if held.until is not None and held.until <= now and not held.doubtful:
                over.append(uid)
        for uid in over:
            self._drop(uid)
        return len(over)


def _gpus(way: PackRequest) -> str:
    return "GPU" if way.gpus == 1 else f"set of {way.gpus} GPUs"


def _asked(way: PackRequest) -> str:
    cores = f" and {way.gpu_cores} cores" if way.gpu_cores else ""
    models = f" of {' or '.join(way.models)}" if way.models else ""
    each = " each" if way.gpus > 1 else ""
    return f"{way.gpu_memory} MiB{cores}{each}{models} {'are' if way.gpu_memory != 1 else 'is'} asked for"
