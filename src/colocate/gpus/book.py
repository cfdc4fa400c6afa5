"""Who has how much of which GPU: the truth about one node, whatever device ids say.

A booking is checked against what is free; `record` writes down what is already so, and may find more given out than
there is. Values alone: every change makes a new book.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from colocate.errors import ColocateError
from colocate.model.gpu import CORES, Cores, Gpu, GpuInventory, Mebibytes
from colocate.model.pod import peak


class GpuOversold(ColocateError):
    """A booking would take more than a GPU has; says of which, and how much there is."""


class GpuRoom(msgspec.Struct, frozen=True):
    """An amount of one GPU."""

    memory: Mebibytes = 0
    cores: Cores = 0

    def __add__(self, other: "GpuRoom") -> "GpuRoom":
        return GpuRoom(self.memory + other.memory, self.cores + other.cores)

    def __sub__(self, other: "GpuRoom") -> "GpuRoom":
        return GpuRoom(self.memory - other.memory, self.cores - other.cores)


class ContainerBooking(msgspec.Struct, frozen=True, kw_only=True):
    """What one container has: the same amount of each of its GPUs."""

    container: str
    gpus: tuple[str, ...]
    """UUIDs, in the order in which the container is told them."""
    memory: Mebibytes
    cores: Cores = 0
    init: bool = False
    sidecar: bool = False


class PodBooking(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod has."""

    uid: str
    key: str = ""
    """namespace/name; empty where it is unknown."""
    containers: tuple[ContainerBooking, ...] = ()

    def needs(self) -> Mapping[str, GpuRoom]:
        """By GPU, the most that it takes at one time: init containers run one by one and hand on what they had."""
        gpus = {gpu for each in self.containers for gpu in each.gpus}
        return {gpu: GpuRoom(self._most(gpu, "memory"), self._most(gpu, "cores")) for gpu in sorted(gpus)}

    def _most(self, gpu: str, what: str) -> int:
        mine = [(each, getattr(each, what) if gpu in each.gpus else 0) for each in self.containers]
        return peak(
            (amount for each, amount in mine if not each.init),
            [(amount, each.sidecar) for each, amount in mine if each.init],
        )

    def of(self, container: str) -> ContainerBooking | None:
        return next((each for each in self.containers if each.container == container), None)

    def having(self, booking: ContainerBooking) -> "PodBooking":
        """This pod with the container's booking replaced or added."""
        others = tuple(each for each in self.containers if each.container != booking.container)
        return msgspec.structs.replace(self, containers=(*others, booking))


class GpuBook(msgspec.Struct, frozen=True):
    """All bookings of one node. Made by `of_gpus` and its own methods, so that the sums are right."""

    inventory: GpuInventory = GpuInventory()
    pods: Mapping[str, PodBooking] = {}
    """By uid."""
    used: Mapping[str, GpuRoom] = {}
    """By GPU: the sum of all bookings, also of GPUs that are not there any more."""

    @staticmethod
    def of_gpus(inventory: GpuInventory, bookings: Iterable[PodBooking] = ()) -> "GpuBook":
        """A book of these GPUs, with what is found to be booked already."""
        book = GpuBook(inventory)
        for booking in bookings:
            book = book.record(booking)
        return book

    def with_gpus(self, inventory: GpuInventory) -> "GpuBook":
        """These bookings on other GPUs."""
        return GpuBook(inventory, self.pods, self.used)

    def total(self, uuid: str) -> GpuRoom:
        """All that a GPU has to give; nothing where it is not there or not shared."""
        gpu = self.inventory.get(uuid)
        return GpuRoom(gpu.memory, CORES) if gpu is not None and gpu.is_shared else GpuRoom()

    def free(self, uuid: str) -> GpuRoom:
        """What is left of a GPU, sick or not; never negative."""
        left = self.total(uuid) - self.used.get(uuid, GpuRoom())
        return GpuRoom(max(0, left.memory), max(0, left.cores))

    def offered(self, uuid: str) -> GpuRoom:
        """What a new pod may have of a GPU: what is left, and nothing of a sick one."""
        gpu = self.inventory.get(uuid)
        return self.free(uuid) if gpu is not None and gpu.healthy else GpuRoom()

    def why_not(self, booking: PodBooking) -> str:
        """Why a pod cannot have this, in place of what it has; empty where it can."""
        troubles = (_why_no_gpu(uuid, self.inventory.get(uuid)) for uuid in booking.needs())
        return next(filter(None, troubles), "") or self.why_no_room(booking)

    def why_no_room(self, booking: PodBooking) -> str:
        """Why its GPUs have no room for this, healthy or not, in place of what the pod has; empty where they have."""
        held = self.pods.get(booking.uid)
        before = held.needs() if held is not None else {}
        for uuid, need in booking.needs().items():
            # Not `free`, which is never negative: what is oversold already counts against the booking, too.
            left = self.total(uuid) - self.used.get(uuid, GpuRoom()) + before.get(uuid, GpuRoom())
            if need.memory > left.memory:
                has, of = max(0, left.memory), self.total(uuid).memory
                return f"GPU {uuid} has {has} MiB of {of} MiB free, and {need.memory} MiB are asked for"
            if need.cores > left.cores:
                has = max(0, left.cores)
                return f"GPU {uuid} has {has} of {CORES} cores free, and {need.cores} are asked for"
        return ""

    def book(self, booking: PodBooking) -> "GpuBook":
        """With this booking of a pod, in place of an earlier one; GpuOversold where it does not fit."""
        if reason := self.why_not(booking):
            raise GpuOversold(reason)
        return self.record(booking)

    def record(self, booking: PodBooking) -> "GpuBook":
        """Book what a pod already has, without a check, in place of what was booked for it."""
        book = self.release(booking.uid)
        used = dict(book.used)
        for uuid, need in booking.needs().items():
            used[uuid] = used.get(uuid, GpuRoom()) + need
        return GpuBook(self.inventory, {**book.pods, booking.uid: booking}, used)

    def release(self, uid: str) -> "GpuBook":
        """Without a pod."""
        held = self.pods.get(uid)
        if held is None:
            return self
        used = dict(self.used)
        for uuid, need in held.needs().items():
            used[uuid] = used[uuid] - need
            if used[uuid] == GpuRoom():
                del used[uuid]
        pods = {each: booking for each, booking in self.pods.items() if each != uid}
        return GpuBook(self.inventory, pods, used)

    def holders(self, uuid: str) -> Iterator[PodBooking]:
        """The pods that have something of a GPU."""
        return (pod for pod in self.pods.values() if any(uuid in each.gpus for each in pod.containers))

    @property
    def oversold(self) -> tuple[str, ...]:
        """GPUs of which more is given out than they have; those that went away with pods on them are among them."""
        return tuple(
            uuid
            for uuid, used in sorted(self.used.items())
            if used.memory > self.total(uuid).memory or used.cores > self.total(uuid).cores
        )


def _why_no_gpu(uuid: str, gpu: Gpu | None) -> str:
    if gpu is None:
        return f"this node has no GPU {uuid}"
    if gpu.mig:
        return f"GPU {uuid} is in MIG mode and not shared"
    if not gpu.healthy:
        return f"GPU {uuid} is not healthy{f' ({gpu.trouble})' if gpu.trouble else ''}"
    return ""
