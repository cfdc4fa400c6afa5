"""Who has and will have which GPU of one node, as the scheduler knows it. No I/O.

What the node's agent announces counts before everything else: tenants cannot write it. For a pod that it has not
announced yet, what this process has booked counts, or the newest seal; annotations without a seal are only a guess
at what the agent will do. No guess is made for what says to be a mirror, nor for what the agent does not run. A
booking of ours counts until its pod ends, however late the kubelet takes it in. The sums never show less than is held
or will be held; only guesses are bounded, and the agent refuses what does not fit.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence

import msgspec

from colocate.gpus import (
    MOST_ABSENT,
    ContainerBooking,
    Dialect,
    GpuAnnouncement,
    GpuBook,
    PodBooking,
    asks_of,
    short_name,
)
from colocate.gpus.packing import GpuDemand, GpuState, NodeState
from colocate.gpus.packing.guesses import guessed
from colocate.gpus.packing.objects import PackedPod
from colocate.model.gpu import CORES, GpuInventory

_REST = "rest of the announcement"
"""Stands for the uid of what an announcement leaves unnamed."""
_GHOSTS = 30.0
"""Seconds for which an agent has time to say who has the GPU of a pod that ended in the middle of a swap."""
_MOST_LOOSE = 128
"""Pods of a node whose GPUs are guessed, the oldest: more than a kubelet takes in before its agent has spoken."""

Shape = tuple[tuple[str, int, int, int, bool, bool], ...]
"""What makes two pods alike, by container: resource, units, cores, GPUs, init, sidecar."""


class GpuChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that a pod gets on a node."""

    node: str
    demand: GpuDemand
    given: tuple[tuple[str, ...], ...]
    """UUIDs by asking container."""
    inventory: GpuInventory
    """The node's, by which the choice was made."""


class HeldPod(msgspec.Struct, kw_only=True):
    """What the scheduler knows of one pod on a node."""

    node: str
    cpu: int = 0
    memory: int = 0
    shape: Shape = ()
    pod: PackedPod | None = None
    """As the API shows it on its node; None where it does not yet."""
    booking: PodBooking | None = None
    """What this process has booked for it, or its newest seal says; None where it has no booking."""
    number: int = 0
    """Number of the seal of that booking; 0 where it has none."""
    choice: GpuChoice | None = None
    """Where this process gave it out, and the API does not show it yet."""
    until: float | None = None
    """When a choice is over that was never bound; None while it is being bound, and for what the API shows."""
    doubtful: bool = False
    """Whether the outcome of the bind is unknown: then the choice does not end by its time alone."""
    since: float = 0.0
    """When it was first heard of."""


class _Ghost(msgspec.Struct, kw_only=True):
    """What a pod had that ended while the kubelet may have taken another for it. The other pod then has this GPU, and
    the agent is about to say so: until it has, both count.
    """

    booking: PodBooking
    others: set[str]
    """Pods that it may have been swapped with, and that are not settled yet."""
    until: float


class NodeBook:
    """The bookings of one node."""

    def __init__(self, name: str, dialects: Sequence[Dialect]) -> None:
        self.name = name
        self.trouble = ""
        """Why nothing can be booked here; empty where it can."""
        self.cpu = self.memory = 0
        self.used_cpu = self.used_memory = 0
        self.told = GpuAnnouncement()
        self._dialects = dialects
        self._book = GpuBook()
        self._full: GpuBook | None = None
        """The book with all guesses; None where it is to be worked out again."""
        self._held: dict[str, HeldPod] = {}
        self._ended: set[str] = set()
        """Pods that the API has shown to end, and the agent has not yet."""
        self._loose: dict[str, PackedPod] = {}
        """Bound pods whose GPUs are unknown."""
        self._ghosts: dict[str, _Ghost] = {}

    # Facts.

    def announce(self, told: GpuAnnouncement, elsewhere: Collection[str]) -> None:
        """What the agent says by now; `elsewhere` are those of its pods that the API shows on other nodes."""
        before, self.told = self.told, told
        named = told.pods or {}
        self._ended = (self._ended | set(elsewhere)) & named.keys()
        self._book = self._book.with_gpus(told.inventory)
        changed = {
            uid for uid in {*(before.pods or {}), *named} if (before.pods or {}).get(uid) != named.get(uid)
        }
        changed |= before.absent ^ told.absent
        if before.unnamed != told.unnamed:
            changed |= {uid for uid in self._held if short_name(uid) in before.unnamed ^ told.unnamed}
        if before.inventory != told.inventory or (before.pods is None) != (told.pods is None):
            changed |= self._held.keys() | named.keys()
        for uid in changed:
            self._place(uid)
        rest = tuple(
            ContainerBooking(container=uuid, gpus=(uuid,), memory=room.memory, cores=room.cores)
            for uuid, room in told.rest.items()
        )
        self._book = self._book.release(_REST)
        if rest:
            self._book = self._book.record(PodBooking(uid=_REST, containers=rest))
        self._lay_ghosts()
        self._full = None

    def put(self, uid: str, held: HeldPod) -> None:
        """A pod that the API shows here, or for which this process has chosen."""
        self._forget(uid)
        self._ended.discard(uid)
        self._held[uid] = held
        self.used_cpu += held.cpu
        self.used_memory += held.memory
        self._place(uid)

    def drop(self, uid: str) -> None:
        """A pod that is not here after all."""
        self._forget(uid)
        self._place(uid)

    def _forget(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        if held is not None:
            self.used_cpu -= held.cpu
            self.used_memory -= held.memory

    def end(self, uid: str, now: float) -> None:
        """A pod has ended. What it had is free, unless another may have it by a swap."""
        held, booking = self._held.get(uid), self._book.pods.get(uid)
        if held is not None and held.pod is not None and booking is not None and not self.is_settled(uid):
            others = {other for other in self.alike(held.shape) if other != uid}
            self._ghosts[uid] = _Ghost(booking=booking, others=others, until=now + _GHOSTS)
        if uid in (self.told.pods or {}):
            self._ended.add(uid)
        self.drop(uid)
        self._lay_ghosts()
        self._full = None

    def expire(self, now: float) -> None:
        """Forget ghosts that no agent has spoken of in their time."""
        over = [uid for uid, ghost in self._ghosts.items() if ghost.until <= now]
        for uid in over:
            del self._ghosts[uid]
            self._place(uid)

    # Questions.

    @property
    def full(self) -> GpuBook:
        """All bookings, also those that are only guessed at."""
        if self._full is None:
            self._full = self._guessed(self._book)
        return self._full

    def is_settled(self, uid: str) -> bool:
        """Whether the agent says that the pod has its GPUs for good."""
        said = (self.told.pods or {}).get(uid)
        return said is not None and said.settled

    def alike(self, shape: Shape) -> list[str]:
        """Pods of this shape that the kubelet may still take for another. Agents that do not say which pod has
        what settle none, and nothing is known of their swaps."""
        if self.told.pods is None:
            return []
        return [uid for uid, held in self._held.items() if held.shape == shape and not self.is_settled(uid)]

    @property
    def held(self) -> Mapping[str, HeldPod]:
        """By uid."""
        return self._held

    def gpus(self, uid: str) -> frozenset[str]:
        """The GPUs of which a pod has something."""
        booking = self._book.pods.get(uid)
        return frozenset(booking.needs()) if booking is not None else frozenset()

    def ghosts(self) -> list[str]:
        return list(self._ghosts)

    def without(self, leaving: Collection[str]) -> GpuBook:
        """The book once these pods have left."""
        book = self._book
        for uid in leaving:
            book = book.release(uid)
        return self._guessed(book, leaving)

    def state(self, book: GpuBook | None = None, *, idle: bool = False) -> NodeState:
        """What is free by a book, or by the present one; with `idle`, all of its CPU and memory."""
        book = book or self.full
        gpus = []
        for gpu in book.inventory.shared:
            offered = book.offered(gpu.uuid)
            gpus.append(GpuState(gpu.memory, offered.memory, min(CORES, offered.cores), gpu.model))
        return NodeState(
            name=self.name,
            cpu=self.cpu,
            memory=self.memory,
            free_cpu=self.cpu - (0 if idle else self.used_cpu),
            free_memory=self.memory - (0 if idle else self.used_memory),
            gpus=tuple(gpus),
        )

    # The sums.

    def _place(self, uid: str) -> None:
        """Enter what counts for one pod, in place of what did."""
        self._full = None
        self._loose.pop(uid, None)
        booking = self._booking(uid)
        if booking is not None:
            self._book = self._book.record(booking)
            return
        self._book = self._book.release(uid)
        if uid in self._ghosts:
            self._book = self._book.record(self._ghosts[uid].booking)

    def _booking(self, uid: str) -> PodBooking | None:
        held, said = self._held.get(uid), (self.told.pods or {}).get(uid)
        if said is not None and uid not in self._ended:
            key = held.pod.key if held is not None and held.pod is not None else ""
            rooms = tuple(
                ContainerBooking(container=uuid, gpus=(uuid,), memory=room.memory, cores=room.cores)
                for uuid, room in said.rooms.items()
            )
            return PodBooking(uid=uid, key=key, containers=rooms)
        if self.told.unnamed and short_name(uid) in self.told.unnamed:
            return None  # It counts in the rest.
        if held is None or held.booking is not None:
            # A kubelet may take long to run what was booked: that it is absent by now says nothing.
            return held.booking if held is not None else None
        if held.pod is not None and held.shape and not held.pod.is_mirror and uid not in self.told.absent:
            self._loose[uid] = held.pod
        return None

    def _lay_ghosts(self) -> None:
        """Let go of ghosts whose partners have all been spoken of, or ended."""
        for uid, ghost in list(self._ghosts.items()):
            ghost.others = {each for each in ghost.others if each in self._held and not self.is_settled(each)}
            if not ghost.others:
                del self._ghosts[uid]
                self._place(uid)

    def _guessed(self, book: GpuBook, leaving: Collection[str] = ()) -> GpuBook:
        """With the bound pods whose GPUs are unknown, each once, where the agent would put it.

        A tenant may create any number of pods that never run. So only the oldest count, and none where the agent has
        more absent ones than it can name.
        """
        if len(self.told.absent) >= MOST_ABSENT:
            return book
        loose = [pod for uid, pod in self._loose.items() if uid not in leaving]
        return guessed(
            book, heapq.nsmallest(_MOST_LOOSE, loose, key=lambda pod: (pod.created, pod.uid)), self._dialects
        )


def shape_of(pod: PackedPod, dialects: Sequence[Dialect]) -> Shape:
    """What it asks for, container by container; empty where it asks for no GPU."""
    return tuple(
        (dialect.memory, ask.units, ask.cores, ask.count, ask.init, ask.sidecar)
        for dialect in dialects
        for ask in asks_of(pod, dialect).containers
    )
