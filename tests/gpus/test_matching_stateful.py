"""Pods come, go, crash and are taken for one another; agent and watch fail in between. What must never be, never is.

No container starts with a GPU that it was not given, nor with another's figures; no GPU's memory is oversold by what
runs; and when all pods have gone, nothing is booked.
"""

from typing import NamedTuple

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from colocate.gpus import (
    DOSLAB,
    SEAL,
    AnswerKey,
    Dialect,
    GpuMatch,
    GpuPod,
    GpuRoom,
    GpuSettings,
    Unassumed,
    asks_of,
    claim_of,
    dialect,
)
from colocate.gpus.answers import reserved
from colocate.model.gpu import Gpu, GpuInventory
from tests.gpus.node import KEY, Node, annotated, booked, gpu_pod

GPUS = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")
SHARE = dialect("gpushare", 2)


def inventory(sick: frozenset[str] = frozenset()) -> GpuInventory:
    sizes = {"GPU-aaaa": 8, "GPU-bbbb": 8, "GPU-cccc": 12}
    return GpuInventory(
        tuple(
            Gpu(uuid=uuid, index=place, memory=sizes[uuid], model="T4", healthy=uuid not in sick)
            for place, uuid in enumerate(GPUS)
        )
    )


class PodShape(NamedTuple):
    """What pods differ in: little, so that they are often alike."""

    units: tuple[int, ...]
    init: tuple[int, ...]
    gpus: str
    cores: int
    gpus_asked: int
    share: bool
    ours: bool


ALIKE = st.builds(
    PodShape,
    units=st.just((2,)),
    init=st.just(()),
    gpus=st.sampled_from(GPUS),
    cores=st.just(0),
    gpus_asked=st.just(0),
    share=st.just(False),
    ours=st.booleans(),
)
PODS = ALIKE | st.builds(
    PodShape,
    units=st.sampled_from([(2,), (2,), (2,), (3,), (2, 2), (2, 1)]),
    init=st.sampled_from([(), (), (), (2,), (4,)]),
    gpus=st.sampled_from(["", *GPUS, *GPUS, "GPU-gone", "GPU-aaaa,GPU-bbbb", ";"]),
    cores=st.sampled_from([0, 0, 0, 40]),
    gpus_asked=st.sampled_from([0, 0, 0, 2]),
    share=st.sampled_from([False, False, False, True]),
    ours=st.booleans(),
)


def made(uid: str, shape: PodShape) -> GpuPod:
    """A pod of that shape; where it is ours, a scheduler has booked as it wishes."""
    spoken = SHARE if shape.share else DOSLAB
    places = {uuid: str(place) for place, uuid in enumerate(GPUS)}
    gpus = ",".join(places.get(each, each) for each in shape.gpus.split(",")) if shape.share else shape.gpus
    pod = gpu_pod(
        uid,
        *shape.units,
        init=shape.init,
        gpus=gpus,
        time=None if not gpus else int(uid[1:]),
        cores=0 if shape.share else shape.cores,
        count=shape.gpus_asked,
        dialect=spoken,
    )
    known = all(each in GPUS for each in shape.gpus.split(","))
    enough = len(shape.gpus.split(",")) >= max(1, shape.gpus_asked)
    if shape.ours and known and enough and not shape.share:
        return booked(pod, shape.gpus.split(","), time=int(uid[1:]))
    return pod


def shapes(pod: GpuPod) -> list[object]:
    spoken = DOSLAB if asks_of(pod, DOSLAB) else SHARE
    return [spoken.name, *((ask.shape, ask.init) for ask in asks_of(pod, spoken).containers)]


def kinds(gpus: str) -> list[int]:
    """Of GPUs, as far as these differ."""
    return [gpu.memory for uuid in gpus.split(",") if (gpu := inventory().get(uuid)) is not None]


class GpuNode(RuleBasedStateMachine):
    """One node, its kubelet's order of things, and an agent that may die at any moment."""

    @initialize(serve=st.booleans(), with_key=st.booleans())
    def begin(self, serve: bool, with_key: bool) -> None:
        unassumed = Unassumed.SERVE if serve else Unassumed.REFUSE
        keys = (KEY,) if with_key else ()
        self.node = Node(inventory(), GpuSettings(dialects=(DOSLAB, SHARE), unassumed=unassumed, keys=keys))
        self.number = 0
        self.admitted: dict[str, list[str]] = {}
        self.running: dict[AnswerKey, str] = {}
        """Containers that were started, with the GPUs that they were started with."""
        self.wished: dict[str, GpuPod] = {}
        """All pods that ever were, as they were created."""

    def language(self, uid: str) -> Dialect:
        return DOSLAB if asks_of(self.node.api[uid], DOSLAB) else SHARE

    @rule(
        burst=st.lists(PODS, min_size=2, max_size=5),
        late=st.integers(0, 8),
        order=st.permutations(range(8)),
        then=st.lists(st.sampled_from(["admit", "start", "crash", "hear", "flags", "announce"]), max_size=6),
    )
    def create(self, burst: list[PodShape], late: int, order: list[int], then: list[str]) -> None:
        """Some pods at once, many of them alike; the agent hears late of one, and may die in between."""
        for place, shape in enumerate(burst):
            self.number += 1
            self.add(made(f"p{self.number}", shape), place == late)
        deeds = {
            "start": self.start,
            "crash": self.crash,
            "hear": self.watch,
            "flags": self.flags,
            "announce": self.announce,
        }
        for deed in ("admit", *then, "start"):
            if deed == "admit":
                self.admit(order, True)
            else:
                deeds[deed]()

    def add(self, pod: GpuPod, late: bool) -> None:
        self.node.add(pod)
        self.wished[pod.uid] = pod
        if late:
            self.node.blind.add(pod.uid)

    @rule()
    def watch(self) -> None:
        self.node.blind.clear()

    @rule(order=st.permutations(range(8)), stored=st.sampled_from([True, True, True, False]))
    def admit(self, order: list[int], stored: bool) -> None:
        """The kubelet admits pods in its own order, as far as it has devices."""
        waiting = [uid for uid in self.node.api if uid not in self.admitted]
        for place in order:
            if place < len(waiting):
                self.admit_one(waiting[place], stored)

    def admit_one(self, uid: str, stored: bool) -> None:
        spoken = self.language(uid)
        asks = asks_of(self.node.api[uid], spoken).containers
        taken: list[str] = []
        for ask in asks:
            if len(self.node.free_ids(spoken)) < ask.units:
                self.fail(uid)
                return
            result = self.node.allocate(uid, ask.container, dialect=spoken, stored=stored)
            if not stored:
                return  # The kubelet or the agent died before it was written down; it asks again.
            if not isinstance(result, GpuMatch):
                assert result.sentence.isprintable()
                event("not admitted")
                self.fail(uid)
                return
            taken.append(ask.container)
        self.admitted[uid] = taken

    def fail(self, uid: str) -> None:
        """UnexpectedAdmissionError: the pod has failed for good, and its devices are free."""
        self.node.delete(uid)
        self.node.blind.discard(uid)
        self.running = {key: gpus for key, gpus in self.running.items() if key.uid != uid}

    @rule()
    def start(self) -> None:
        """PreStartContainer of all that are admitted; a container that may start runs."""
        for uid, containers in self.admitted.items():
            for container in containers:
                self.start_one(uid, container)

    def start_one(self, uid: str, container: str) -> None:
        spoken = self.language(uid)
        key = AnswerKey(uid, spoken.memory, container)
        refused = self.node.start(uid, container, spoken)
        event("refused" if refused else "started")
        if not refused:
            gpus = self.node.gpus(uid, container, spoken)
            self.was_given(key, gpus)
            self.running[key] = gpus

    def was_given(self, key: AnswerKey, gpus: str) -> None:
        """Its annotations name these GPUs, or those of a pod just like it, wished or chosen for it. What was booked
        for it may be replaced by GPUs of the same kind, and a mere wish by any."""
        wish = self.wish(key.uid, self.wished[key.uid])
        if not wish:
            return  # Nobody had chosen for it.
        place = [
            ask.container for ask in asks_of(self.wished[key.uid], self.language(key.uid)).containers
        ].index(key.container)
        if wish[place] == gpus or key in self.running:
            return
        event("swapped")
        mine = self.is_ours(self.wished[key.uid])
        if not mine or kinds(wish[place]) == kinds(gpus):
            return
        alike = [
            uid
            for uid, pod in self.wished.items()
            if not (other := self.wish(uid, pod)) or other[place : place + 1] == [gpus]
            if uid != key.uid and self.is_ours(pod) == mine and shapes(pod) == shapes(self.wished[key.uid])
        ]
        assert alike, (key, gpus)

    def is_ours(self, pod: GpuPod) -> bool:
        return bool(self.node.settings.keys) and SEAL in pod.annotations

    def wish(self, uid: str, pod: GpuPod) -> list[str]:
        spoken = DOSLAB if asks_of(pod, DOSLAB) else SHARE
        claim = claim_of(pod, spoken, inventory(), GpuSettings(dialects=(spoken,)))
        return [",".join(gpus) for gpus in claim.all_gpus] if claim and claim.wish.is_booked else []

    @rule()
    def flags(self) -> None:
        self.node.patch_pods()

    @rule()
    def announce(self) -> None:
        self.node.settle()
        self.node.announce()

    @rule(data=st.data(), gpu=st.sampled_from([*GPUS, "GPU-none", ""]), keep=st.booleans())
    def a_tenant_changes_a_booking(self, data: st.DataObject, gpu: str, keep: bool) -> None:
        """Of a pod that the agent has seen booked: nothing comes of it."""
        self.node.settle()
        sealed = sorted(uid for uid, pod in self.node.seen.items() if self.is_ours(pod))
        if sealed and self.node.settings.keys:
            uid = data.draw(st.sampled_from(sealed))
            old = self.wished[uid].annotations if keep else {SEAL: ""}
            self.node.api[uid] = annotated(self.node.api[uid], {"doslab.io/gpu-uuid": gpu, **old})

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.node.api:
            uid = data.draw(st.sampled_from(sorted(self.node.api)))
            self.node.delete(uid)
            self.node.blind.discard(uid)
            self.admitted.pop(uid, None)
            self.running = {key: gpus for key, gpus in self.running.items() if key.uid != uid}

    @rule()
    def crash(self) -> None:
        """The agent starts anew. What a kubelet has forgotten as well nobody knows then."""
        if not self.node.answers.lost:
            self.node.crash()

    @rule(asks=st.booleans(), order=st.permutations(range(8)))
    def kubelet_loses_its_checkpoint(self, asks: bool, order: list[int]) -> None:
        """Older kubelets ask for all pods anew, newer ones for none that runs."""
        self.watch()
        self.node.settle()
        self.node.restart_kubelet(checkpoint=False)
        started = {key.uid for key in self.running}
        again = [uid for uid in self.admitted if asks or uid not in started]
        self.admitted = {uid: each for uid, each in self.admitted.items() if uid not in again}
        for uid in [again[place] for place in order if place < len(again)] + again[len(order) :]:
            asked = asks_of(self.node.api[uid], self.language(uid)).containers
            runs = all(
                AnswerKey(uid, self.language(uid).memory, ask.container) in self.running for ask in asked
            )
            self.admit_one(uid, True)
            assert uid in self.admitted or not runs, "a pod that runs was not admitted again"

    def is_known(self, key: AnswerKey) -> bool:
        """Whether the kubelet has what the container runs with: one that lost its checkpoint may have another's."""
        answer = self.node.answers.by_key.get(key)
        return key in self.node.held and (answer is None or not answer.reason)

    @rule(seconds=st.sampled_from([1.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.node.now += seconds
        self.node.settle()

    @rule(sick=st.frozensets(st.sampled_from(GPUS), max_size=1))
    def health(self, sick: frozenset[str]) -> None:
        self.node.inventory = inventory(sick)

    @invariant()
    def what_runs_has_its_own(self) -> None:
        if not hasattr(self, "node"):
            return
        for key, gpus in self.running.items():
            pod = self.node.api[key.uid]
            spoken = self.language(key.uid)
            asks = {ask.container: ask for ask in asks_of(pod, spoken).containers}
            ask = asks[key.container]
            if not self.is_known(key):
                continue
            injected = self.node.held[key].injected
            assert injected is not None
            assert len(gpus.split(",")) == ask.count
            assert set(gpus.split(",")) <= set(GPUS)
            own = (
                "DOSLAB_IO_GPU_RESOURCE_USED_BY_CONTAINER"
                if spoken is DOSLAB
                else "ALIYUN_COM_GPU_MEM_CONTAINER"
            )
            assert injected.envs[own] == str(ask.units)
            assert gpus == self.node.gpus(key.uid, key.container, spoken)

    @invariant()
    def no_memory_is_oversold(self) -> None:
        if not hasattr(self, "node"):
            return
        for uuid in GPUS:
            gpu = self.node.inventory.get(uuid)
            assert gpu is not None
            used = 0
            for uid in {key.uid for key in self.running}:
                mine = [
                    key for key in self.running if key.uid == uid and uuid in self.running[key].split(",")
                ]
                asks = {
                    each.container: each
                    for each in asks_of(self.node.api[uid], self.language(uid)).containers
                }
                amounts = {key.container: asks[key.container].memory for key in mine}
                init = max((n for name, n in amounts.items() if name.startswith("i")), default=0)
                used += max(init, sum(n for name, n in amounts.items() if name.startswith("c")))
            assert used <= gpu.memory, (uuid, used)

    @invariant()
    def what_is_held_would_be_announced(self) -> None:
        """Whenever it is looked at, and whatever was written last: what runs and is to run is in the sums."""
        if not hasattr(self, "node"):
            return
        self.node.settle()
        sums = self.node.used(self.node.holders())
        book = self.node.answers.book(self.node.inventory)
        for uuid in GPUS:
            assert sums.get(uuid, GpuRoom()).memory >= book.used.get(uuid, GpuRoom()).memory
            # Nothing is announced twice: bookings of ours never exceed a GPU.
            kept = reserved(self.node.seen.values(), self.node.answers, book, self.node.settings)
            assert sums.get(uuid, GpuRoom()).memory >= kept.used.get(uuid, GpuRoom()).memory

    def teardown(self) -> None:
        if not hasattr(self, "node"):
            return
        for uid in list(self.node.api):
            self.node.delete(uid)
        self.node.blind.clear()
        self.node.now += 1000
        self.node.settle()
        assert list(self.node.answers) == []
        assert self.node.answers.due == {}
        assert self.node.answers.started == set()
        assert self.node.answers.lost == {}
        assert self.node.answers.book(inventory()).used == {}


GpuNode.TestCase.settings = settings(max_examples=60, stateful_step_count=10, deadline=None)
TestGpuNode = GpuNode.TestCase
