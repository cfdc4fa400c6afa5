"""A node in a few lines: a kubelet that admits, holds and starts, and an agent that answers it by the pure room.

What the API knows, what the agent's watch has seen, what the kubelet holds and what the agent remembers are four
things here, as they are in life: tests set them apart.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from colocate.gpus import (
    ANNOUNCED,
    DOSLAB,
    SEAL,
    AnnouncedPod,
    AnswerKey,
    AnswerState,
    Dialect,
    Dues,
    GpuAnnouncement,
    GpuAnswers,
    GpuHolding,
    GpuMatch,
    GpuPod,
    GpuRecords,
    GpuRefusal,
    GpuRoom,
    GpuSettings,
    annotations_for,
    announced,
    announcement_of,
    asks_of,
    claim_of,
    flags_for,
    holders,
    match,
    recalled,
    seal,
    settle,
    slices_of,
)
from colocate.model.gpu import Gpu, GpuInventory

KEY = b"k" * 32
TWO = GpuInventory(
    (
        Gpu(uuid="GPU-aaaa", index=0, memory=16, model="T4"),
        Gpu(uuid="GPU-bbbb", index=1, memory=16, model="T4"),
    )
)


def gpu_pod(
    uid: str,
    *units: int,
    init: Sequence[int] = (),
    gpus: str = "",
    time: int | str | None = None,
    cores: int = 0,
    count: int = 0,
    dialect: Dialect = DOSLAB,
    keys: int = 0,
    created: int = 0,
    owner: str = "",
    annotations: Mapping[str, str] | None = None,
    phase: str = "Pending",
    run: bool = False,
) -> GpuPod:
    """A pod with one container for each of `units`, and one init container for each of `init`."""
    limits = {dialect.cores: cores} if cores else {}
    limits |= {dialect.count: count} if count else {}
    words = dialect.annotations[keys]
    said = {words.gpus: gpus} if gpus else {}
    said |= {words.assume_time: str(time), words.assigned: "false"} if time is not None else {}
    names = [f"c{place}" for place in range(len(units))]
    shape = {
        "metadata": {
            "uid": uid,
            "name": uid,
            "namespace": "default",
            "annotations": {**said, **(annotations or {})} or None,
            "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
            "ownerReferences": [{"kind": owner, "name": "o", "uid": owner, "controller": True}]
            if owner
            else [],
        },
        "spec": {
            "containers": [
                {"name": name, "resources": {"limits": {dialect.memory: each, **limits}}}
                for name, each in zip(names, units, strict=True)
            ],
            "initContainers": [
                {"name": f"i{place}", "resources": {"limits": {dialect.memory: each}}}
                for place, each in enumerate(init)
            ],
        },
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": name, "state": {"running": {}}} for name in names] if run else [],
        },
    }
    return msgspec.convert(shape, GpuPod)


def booked(
    pod: GpuPod, gpus: Sequence[str], time: int = 1, dialect: Dialect = DOSLAB, key: bytes = KEY
) -> GpuPod:
    """The pod as a scheduler of ours leaves it: every container on these GPUs."""
    asks = asks_of(pod, dialect).containers
    given = [tuple(gpus[: ask.count]) for ask in asks]
    said = annotations_for(dialect, dialect.annotations[0], asks, given, TWO, assume_time=time)
    return annotated(pod, {**said, SEAL: seal(pod.uid, dialect, asks, given, time, key)})


def annotated(pod: GpuPod, annotations: Mapping[str, str]) -> GpuPod:
    metadata = msgspec.structs.replace(pod.metadata, annotations={**pod.annotations, **annotations})
    return msgspec.structs.replace(pod, metadata=metadata)


class Node:
    """One node with its kubelet and its agent."""

    def __init__(self, inventory: GpuInventory = TWO, settings: GpuSettings | None = None) -> None:
        self.inventory = inventory
        self.settings = settings or GpuSettings(keys=(KEY,))
        self.api: dict[str, GpuPod] = {}
        self.held: dict[AnswerKey, GpuHolding] = {}
        self.answers = GpuAnswers()
        self.blind: set[str] = set()
        """Pods that the agent's watch has not told of yet."""
        self.passed: list[GpuPod] = []
        """States of pods that the watch has told of since the agent settled last."""
        self.disk: frozenset[AnswerKey] = frozenset()
        self.disk_due: Dues = {}
        self.text = announcement_of(inventory)
        """What the node's annotation says."""
        self.kubelet = 1
        self.now = 0.0
        self._reusable: dict[str, list[str]] = {}

    def add(self, *pods: GpuPod) -> None:
        self.api |= {pod.uid: pod for pod in pods}

    def hear(self, pod: GpuPod) -> None:
        """The agent's watch tells of a state of a pod; nothing is settled yet."""
        self.api[pod.uid] = pod
        if SEAL in pod.annotations:
            self.passed.append(pod)

    def delete(self, uid: str) -> None:
        """The pod is gone from the API, and the kubelet frees what it held."""
        del self.api[uid]
        self.held = {key: held for key, held in self.held.items() if key.uid != uid}

    @property
    def seen(self) -> dict[str, GpuPod]:
        return {uid: pod for uid, pod in self.api.items() if uid not in self.blind}

    def free_ids(self, dialect: Dialect) -> list[str]:
        held = {id for each in self.held.values() for id in each.ids if each.key.resource == dialect.memory}
        slices = slices_of(self.inventory.shared, dialect.unit)
        return [id for ids in slices.ids.values() for id in ids if id not in held]

    def settle(self) -> None:
        passed, self.passed = tuple(self.passed), []
        records = GpuRecords(self.seen, tuple(self.held.values()), str(self.kubelet), passed)
        self.answers = settle(records, self.answers, self.inventory, self.settings, self.now)

    def allocate(
        self, uid: str, container: str = "c0", *, dialect: Dialect = DOSLAB, stored: bool = True
    ) -> GpuMatch | GpuRefusal:
        """The kubelet asks for a container, and keeps the answer if it is `stored`: it, or the agent, may die."""
        ask = next(each for each in asks_of(self.api[uid], dialect).containers if each.container == container)
        reused = [id for id in self._reusable.get(uid, []) if stored][: ask.units]
        ids = (reused + [id for id in self.free_ids(dialect) if id not in reused])[: ask.units]
        assert len(ids) == ask.units, "the kubelet has not so many free"
        self.settle()
        result = match(
            ids, dialect, self.seen.values(), self.answers, self.inventory, self.settings, self.now
        )
        if isinstance(result, GpuMatch):
            self.answers = result.answers
            if stored:
                key = AnswerKey(uid, dialect.memory, container)
                self.held[key] = GpuHolding(key=key, ids=frozenset(ids), injected=result.answer.injected)
                pool = self._reusable.setdefault(uid, [])
                if ask.hands_on:
                    pool += [id for id in ids if id not in pool]
                else:
                    self._reusable[uid] = [id for id in pool if id not in ids]
        return result

    def admit(self, uid: str, dialect: Dialect = DOSLAB) -> GpuRefusal | None:
        """Ask for every container in turn; the first refusal ends it, and the pod has failed."""
        for ask in asks_of(self.api[uid], dialect).containers:
            result = self.allocate(uid, ask.container, dialect=dialect)
            if isinstance(result, GpuRefusal):
                return result
        return None

    def start(self, uid: str, container: str = "c0", dialect: Dialect = DOSLAB) -> str:
        """PreStartContainer: why the container must not start; empty where it may."""
        self.settle()
        answer = self.answers.by_key.get(AnswerKey(uid, dialect.memory, container))
        if answer is None or answer.state is AnswerState.GIVEN:
            return "nobody knows"
        if not answer.reason:
            self.disk, self.disk_due = self.answers.proven, self.answers.due
        return answer.reason

    def restart_kubelet(self, *, checkpoint: bool) -> None:
        """Another kubelet, which knows what the first one held, or nothing."""
        self.kubelet += 1
        if not checkpoint:
            self.held.clear()
            self._reusable.clear()

    def crash(self) -> None:
        """The agent dies and starts anew, with what it has on disk and what it has announced."""
        self.passed.clear()
        kept = GpuAnswers(started=self.disk, due=self.disk_due)
        self.answers = kept.recalling(recalled(self.announced.pods or {}))

    def holders(self, absent: Collection[str] = ()) -> Mapping[str, AnnouncedPod]:
        return holders(self.seen, self.answers, self.inventory, self.settings, absent)

    def announce(self) -> None:
        """One write of the node's annotation."""
        self.text = announcement_of(self.inventory, {}, self.holders())

    @property
    def announced(self) -> GpuAnnouncement:
        found = announced({ANNOUNCED: self.text})
        assert found is not None
        return found

    def used(self, pods: Mapping[str, AnnouncedPod] | None) -> Mapping[str, GpuRoom]:
        """What these pods have of each GPU."""
        found: dict[str, GpuRoom] = {}
        for pod in (pods or {}).values():
            for uuid, room in pod.rooms.items():
                found[uuid] = found.get(uuid, GpuRoom()) + room
        return found

    def gpus(self, uid: str, container: str = "c0", dialect: Dialect = DOSLAB) -> str:
        """What the kubelet starts the container with."""
        injected = self.held[AnswerKey(uid, dialect.memory, container)].injected
        assert injected is not None
        return injected.envs["NVIDIA_VISIBLE_DEVICES"]

    def flags(self, uid: str, dialect: Dialect = DOSLAB) -> Mapping[str, str]:
        claim = claim_of(self.api[uid], dialect, self.inventory, self.settings, self.answers.due)
        assert claim is not None
        return flags_for(claim, self.answers, self.inventory, 5, self.settings.keys)

    def write_flags(self) -> None:
        """The agent announces, and then patches."""
        self.announce()
        self.patch_pods()

    def patch_pods(self) -> None:
        """The agent patches what it may: of what a pod is due, only what is announced."""
        told, now = self.announced.pods or {}, self.holders()
        for uid, pod in self.seen.items():
            for dialect in self.settings.dialects:
                due = told[uid].due if uid in told else {}
                settled = (
                    uid in told and told[uid].settled
                )  # What it is due is what it has, and not said again.
                if uid in now and now[uid].due and now[uid].due != due and not settled:
                    continue
                if asks_of(pod, dialect):
                    self.api[uid] = annotated(self.api[uid], self.flags(uid, dialect))
