"""Which pods are on which node of the cluster, by all that the API shows and what this process has given out. No I/O.

Every pod is held once, so that nothing can leak: a pod that is entered again, ends or is deleted takes all with it
that was held for it. What counts for it on its node, `node_book` says.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from colocate.gpus import (
    ANNOUNCED,
    Dialect,
    GpuAnnouncement,
    announced,
    booked_wish,
    gpus_for,
)
from colocate.gpus.packing import (
    Fleet,
    GpuDemand,
    LearnedMix,
    Packer,
    PackingPolicy,
    PackRequest,
    booking_of,
    demand_of,
)
from colocate.gpus.packing.node_book import HeldPod, NodeBook, shape_of
from colocate.gpus.packing.objects import PackedNode, PackedPod

_MOST_ENDED = 20_000
"""Pods that have ended and are remembered: an announcement may come late."""


class ClusterPods:
    """The pods of all nodes, and the packer that sees what they leave."""

    def __init__(
        self, policy: PackingPolicy, dialects: Sequence[Dialect], keys: Sequence[bytes] = ()
    ) -> None:
        self._fleet = Fleet()
        self._packer = Packer(self._fleet, policy)
        self._stale: dict[str, None] = {}
        """Nodes of which the fleet does not have the latest yet, in their order: worked out when it is asked for."""
        self.dialects = tuple(dialects)
        self._keys = tuple(keys)
        self._mix = LearnedMix()
        self._learned: set[str] = set()
        self._nodes: dict[str, NodeBook] = {}
        self._strange: dict[str, dict[str, str]] = {}
        """By resource and node, why the node cannot be counted with: it has another unit, or does not offer it."""
        self._texts: dict[str, str | None] = {}
        """By node, the announcement that was read last."""
        self._held: dict[str, HeldPod] = {}
        """All pods that are bound, to nodes that are known or not, and those that this process has chosen for."""
        self._by_node: dict[str, set[str]] = {}
        self._chosen: set[str] = set()
        """Those of them that this process has given out, and the API does not show yet."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._haunted: set[str] = set()
        """Nodes on which the GPU of a pod that has ended is kept for another."""
        self._now = 0.0
        self._waiting: dict[str, float] = {}
        """By uid, since when a pod that fits waits for others that it could be taken for."""

    @property
    def fleet(self) -> Fleet:
        """What is free on all nodes."""
        self._freshen()
        return self._fleet

    @property
    def packer(self) -> Packer:
        """Chooses by the fleet as it is by now."""
        self._freshen()
        return self._packer

    def take_keys(self, keys: Sequence[bytes]) -> None:
        """Believe seals of these from now on."""
        if tuple(keys) == self._keys:
            return
        self._keys = tuple(keys)
        for held in list(self._held.values()):
            if held.pod is not None and held.booking is None:
                self.put_pod(held.pod)

    def put_node(self, node: PackedNode) -> None:
        """A node as the API shows it."""
        name, text = node.metadata.name, node.metadata.annotations.get(ANNOUNCED)
        known = self._nodes.get(name)
        is_new = known is None
        if known is None:
            known = self._nodes[name] = NodeBook(name, self.dialects)
        known.cpu, known.memory = node.cpu, node.memory
        if is_new or self._texts.get(name) != text:
            self._texts[name] = text
            told, known.trouble = _announced(node)
            self._compare_units(name, told)
            gpus = known.told.inventory
            known.announce(told, [uid for uid in told.pods or {} if self._is_elsewhere(uid, name)])
            if is_new or gpus != told.inventory:
                self._read_again(name, known)
        self._stale[name] = None

    def _compare_units(self, name: str, told: GpuAnnouncement) -> None:
        """Note whether a node counts in another unit than ours: a pod would get another amount there."""
        for dialect in self.dialects:
            strange = self._strange.setdefault(dialect.memory, {})
            unit = told.units.get(dialect.memory)
            if unit not in (None, dialect.unit):
                strange[name] = (
                    f"node {name} counts {dialect.memory} in units of {unit} MiB, this scheduler in "
                    f"{dialect.unit} MiB: set the unit of gpus.dialects[{dialect.name}] alike in the agents and the "
                    "scheduler"
                )
            elif unit is None and told.units:
                strange[name] = f"the agent of node {name} does not offer {dialect.memory}, or lets it drain"
            else:
                strange.pop(name, None)

    def _is_elsewhere(self, uid: str, node: str) -> bool:
        """Whether a node speaks of a pod that is none of its own, or that has ended."""
        held = self._held.get(uid)
        return uid in self._ended or (held is not None and held.node != node)

    def _read_again(self, name: str, known: NodeBook) -> None:
        """Enter the pods of a node that came, or whose GPUs are others: what they say is read by these."""
        for uid in self._by_node.get(name, ()):
            held = self._held[uid]
            self._take_seal(held, known)
            known.put(uid, held)

    def remove_node(self, name: str) -> None:
        """A node is gone. Its pods are heard of one by one; what this process has given out there stays given out."""
        self._nodes.pop(name, None)
        self._texts.pop(name, None)
        for strange in self._strange.values():
            strange.pop(name, None)
        self._stale.pop(name, None)
        self._fleet.remove(name)

    def put_pod(self, pod: PackedPod) -> None:
        """A pod as the API shows it, whatever has become of it."""
        if pod.is_finished:
            self.remove_pod(pod.uid)
            return
        self._ended.pop(pod.uid, None)
        if pod.uid not in self._learned:
            demand = self.demand(pod)
            if not isinstance(demand, str):
                self._learn(pod, demand)
        name = pod.spec.node_name
        if not name:
            return
        before = self._held.get(pod.uid)
        held = HeldPod(
            node=name,
            cpu=pod.cpu,
            memory=pod.memory,
            shape=shape_of(pod, self.dialects),
            since=self._now,
            pod=pod,
        )
        if before is not None and before.node == name:
            held.since = before.since
            if before.pod is not None or (before.until is None and not before.doubtful):
                # Bound by this process: what it has booked counts until a newer seal says otherwise.
                held.booking, held.number = before.booking, before.number
        known = self._nodes.get(name)
        if known is not None:
            self._take_seal(held, known)
            if held.booking is None and self._keys and before and before.doubtful and before.node == name:
                held.booking, held.number = before.booking, before.number
        self._drop(pod.uid)
        self._hold(pod.uid, held)

    def _take_seal(self, held: HeldPod, known: NodeBook) -> None:
        """What a scheduler of ours has sealed, if it is newer than what is known."""
        if held.pod is None or not self._keys:
            return
        for dialect in self.dialects:
            asks, wish = booked_wish(held.pod, dialect, known.told.inventory, self._keys)
            if asks.problem or wish.problem or wish.sealed_unit is None or wish.number <= held.number:
                continue
            given = [gpus_for(wish, asks.containers, ask.container) for ask in asks.containers]
            # In the unit of the seal, which may not be today's.
            asked = [
                msgspec.structs.replace(ask, memory=ask.units * wish.sealed_unit) for ask in asks.containers
            ]
            held.booking, held.number = booking_of(held.pod, asked, given), wish.number

    def remove_pod(self, uid: str) -> None:
        """A pod is gone."""
        self._learned.discard(uid)
        self._waiting.pop(uid, None)
        self._ended[uid] = None
        self._ended.move_to_end(uid)
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)
        held = self._held.get(uid)
        known = self._nodes.get(held.node) if held is not None else None
        if known is not None:
            known.end(uid, self._now)
            if known.ghosts():
                self._haunted.add(known.name)
        self._drop(uid)
        # Static pods, and pods that were announced before the API showed them.
        for name, node in self._nodes.items():
            if uid in (node.told.pods or {}):
                node.end(uid, self._now)
                self._stale[name] = None

    def _learn(self, pod: PackedPod, demand: GpuDemand | None) -> None:
        self._learned.add(pod.uid)
        if self._mix.see(demand.together if demand else PackRequest(pod.cpu, pod.memory)):
            self._packer.expect(self._mix.latest)

    def demand(self, pod: PackedPod) -> GpuDemand | str | None:
        """What a pod asks for; None where it asks for no GPU; a sentence where it cannot be served."""
        try:
            return demand_of(pod, self.dialects, pod.cpu, pod.memory)
        except ValueError as error:
            return str(error)

    # The sums.

    def _hold(self, uid: str, held: HeldPod) -> None:
        self._held[uid] = held
        self._by_node.setdefault(held.node, set()).add(uid)
        known = self._nodes.get(held.node)
        if known is not None:
            known.put(uid, held)
            self._stale[held.node] = None

    def _drop(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        self._chosen.discard(uid)
        if held is None:
            return
        there = self._by_node.get(held.node, set())
        there.discard(uid)
        if not there:
            self._by_node.pop(held.node, None)
        known = self._nodes.get(held.node)
        if known is not None:
            known.drop(uid)
            self._stale[held.node] = None

    def _freshen(self) -> None:
        for name in self._stale:
            self._fleet.put(self._nodes[name].state())
        self._stale.clear()


def _announced(node: PackedNode) -> tuple[GpuAnnouncement, str]:
    try:
        found = announced(node.metadata.annotations)
    except ValueError as error:
        return GpuAnnouncement(), str(error)
    if found is None:
        return GpuAnnouncement(), "its agent announces no GPUs"
    return found, ""
