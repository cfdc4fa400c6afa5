"""Two replicas, crashes at every write, conflicts, lost answers, deletions, loss of nodes and GPUs: whatever happens,
no GPU is oversold, no pod is bound without its GPU, and no booking leaks."""

import asyncio
from typing import Any, cast

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.lease import LeaseHolder
from colocate.gpus import DOSLAB, AnnotationKeys, GpuBook, PodBooking, asks_of, gpus_for, wish_of
from colocate.gpus.packing import PackingPolicy, demand_of
from colocate.gpus.packing.cluster_book import ClusterBook
from colocate.gpus.packing.objects import PackedPod
from colocate.model.gpu import GpuInventory
from colocate.scheduler.gpus.binder import GpuBinder
from colocate.scheduler.gpus.feed import GpuFeed
from colocate.scheduler.gpus.judge import GpuJudge
from colocate.wire.extender_questions import BindingAsked, read_question
from tests.gpu_scheduler.clusters import gpus
from tests.gpu_scheduler.fake_api import Crashed, FakeApi, FakeLease, Fault, FaultyClient, typed

KEY = b"the key of the agents"
HOLD, DOUBT = 10.0, 60.0
NODES = ("a", "b")
NAMES = tuple(f"p{number}" for number in range(4))
SIZE = 1000


class Follower:
    """What a replica knows: all that it was told, up to some point. See `GpuFeed`."""

    def __init__(self, api: FakeApi, book: ClusterBook) -> None:
        self._api = api
        self.book = book
        self.read = 0
        self._pods: dict[str, PackedPod] = {}

    def follow(self, events: int) -> None:
        for kind, what in self._api.log[self.read : self.read + events]:
            match kind:
                case "pod":
                    old = self._pods.get(what.metadata.name)
                    if old is not None and old.uid != what.uid:
                        self.book.remove_pod(old.uid)
                    self._pods[what.metadata.name] = what
                    self.book.put_pod(what)
                case "pod gone":
                    self._pods = {name: pod for name, pod in self._pods.items() if pod.uid != what}
                    self.book.remove_pod(what)
                case "node":
                    self.book.put_node(what)
                case "node gone":
                    self.book.remove_node(what)
        self.read = min(len(self._api.log), self.read + events)

    def relist(self) -> None:
        """After a gap: what happened in it is not told, but what is different since."""
        for name, pod in list(self._pods.items()):
            now = self._api.pods.get(name)
            if now is None or typed(now).uid != pod.uid:
                self.book.remove_pod(pod.uid)
        self._pods = {name: typed(pod) for name, pod in self._api.pods.items()}
        for pod in self._pods.values():
            self.book.put_pod(pod)
        for node in [name for name in self.book.books if name not in self._api.nodes]:
            self.book.remove_node(node)
        for node in self._api.nodes:
            self.book.put_node(self._api.node(node))
        self.read = len(self._api.log)

    def pod(self, namespace: str, name: str, uid: str) -> PackedPod | None:
        found = self._pods.get(name)
        return found if found is not None and found.uid == uid else None

    def shows(self, pod: PackedPod) -> bool:
        return self.pod("default", pod.metadata.name, pod.uid) is not None

    def unready(self) -> list[str]:
        return []


class Replica:
    def __init__(self, api: FakeApi, clock: ManualClock) -> None:
        self.lease = FakeLease()
        self.client = FaultyClient(api, self.lease, clock)
        self.feed = Follower(api, ClusterBook(PackingPolicy.OURS, (DOSLAB,), (KEY,)))
        self.feed.follow(len(api.log))
        self.judge = GpuJudge(self.feed, clock, hold=HOLD)
        self.binder = GpuBinder(
            cast(GpuFeed, self.feed),
            cast(Client, self.client),
            cast(LeaseHolder, self.lease),
            clock,
            keys=(KEY,),
            doubt=DOUBT,
        )

    @property
    def book(self) -> ClusterBook:
        return self.feed.book


class TwoReplicas(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.api = FakeApi()
        self.clock = ManualClock()
        self.loop = asyncio.new_event_loop()
        self.inventories = {"a": gpus("a", 2, size=SIZE), "b": gpus("b", 1, size=SIZE)}
        for name, inventory in self.inventories.items():
            self.api.put_node(name, inventory)
        self.replicas = [Replica(self.api, self.clock) for _ in range(2)]
        self.lead(0)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.settle()
            self.loop.close()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def lead(self, number: int) -> None:
        """The lease is this replica's: whoever had it stopped before, and it has caught up."""
        for replica in self.replicas:
            replica.lease.held = False
            replica.binder.caught_up = False
        leader = self.replicas[number]
        leader.lease.held = True
        self.run(leader.binder.catch_up())

    # What users and nodes do.

    @rule(
        name=st.sampled_from(NAMES),
        memory=st.sampled_from([300, 600, 1000]),
        cores=st.sampled_from([0, 40, 100]),
        count=st.sampled_from([1, 1, 2]),
    )
    def create(self, name: str, memory: int, cores: int, count: int) -> None:
        if name not in self.api.pods:
            self.api.create(name, memory, cores, count)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if name in self.api.pods:
            self.api.delete(name)

    @rule(name=st.sampled_from(NAMES))
    def finish(self, name: str) -> None:
        if name in self.api.pods and typed(self.api.pods[name]).spec.node_name:
            self.api.change(name, lambda pod: pod["status"].update(phase="Succeeded"))

    @rule(
        name=st.sampled_from(NAMES),
        keys=st.sampled_from(DOSLAB.annotations),
        gpu=st.sampled_from(["GPU-a-0", "GPU-b-0", "GPU-none", ""]),
    )
    def a_tenant_writes_annotations(self, name: str, keys: AnnotationKeys, gpu: str) -> None:
        """On his own pod that waits; a pod on a node is watched over by its agent."""
        if name in self.api.pods and not typed(self.api.pods[name]).spec.node_name:
            wish = {keys.gpus: gpu, keys.assume_time: "1", keys.assigned: "false"}
            self.api.change(name, lambda pod: pod["metadata"].setdefault("annotations", {}).update(wish))

    @rule(node=st.sampled_from(NODES), sick=st.booleans())
    def a_gpu_falls_ill_or_recovers(self, node: str, sick: bool) -> None:
        if node in self.api.nodes:
            first, *others = self.api.nodes[node].gpus
            changed = msgspec.structs.replace(first, healthy=not sick)
            self.api.put_node(node, GpuInventory((changed, *others)))

    @rule(node=st.sampled_from(NODES))
    def a_node_leaves_or_comes_back(self, node: str) -> None:
        if node in self.api.nodes:
            self.api.remove_node(node)
        else:
            self.api.put_node(node, self.inventories[node])

    # What the replicas do.

    @rule(number=st.integers(0, 1), events=st.integers(1, 8))
    def news_arrive(self, number: int, events: int) -> None:
        self.replicas[number].feed.follow(events)

    @rule(number=st.integers(0, 1))
    def a_watch_is_lost_and_all_is_read_anew(self, number: int) -> None:
        self.replicas[number].feed.relist()

    @rule(name=st.sampled_from(NAMES), node=st.sampled_from(NODES))
    def the_other_replica_is_asked_too(self, name: str, node: str) -> None:
        """It has not the lease."""
        for replica in self.replicas:
            if not replica.lease.held and name in self.api.pods:
                uid = typed(self.api.pods[name]).uid
                before = typed(self.api.pods[name]).spec.node_name
                told = self.run(replica.binder.bind(BindingAsked(name, "default", uid, node)))
                assert told
                assert typed(self.api.pods[name]).spec.node_name == before

    @rule(number=st.integers(0, 1))
    def a_replica_restarts(self, number: int) -> None:
        self.replicas[number] = Replica(self.api, self.clock)

    @rule(seconds=st.sampled_from([1.0, HOLD, DOUBT]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.clock.advance(seconds))
        for replica in self.replicas:
            replica.book.expire(self.clock.monotonic())
            self.run(replica.binder.resolve_doubts())

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 1))
    def kube_scheduler_asks(self, name: str, number: int) -> None:
        self.ask(name, self.replicas[number])

    def ask(self, name: str, replica: Replica) -> list[str]:
        if name not in self.api.pods:
            return []
        body = msgspec.json.encode({"Pod": self.api.pods[name], "Nodes": None, "NodeNames": list(NODES)})
        sieved = replica.judge.filter(read_question(body), "")
        left = [node for node in NODES if node not in sieved.failed and node not in sieved.unresolvable]
        if len(left) > 1:
            body = msgspec.json.encode({"Pod": self.api.pods[name], "Nodes": None, "NodeNames": left})
            scores = replica.judge.prioritize(read_question(body), "")
            left = [left[place] for place in sorted(range(len(left)), key=lambda place: -scores[place])]
        return left

    @rule(
        name=st.sampled_from(NAMES),
        hand_over=st.booleans(),
        asked=st.booleans(),
        node=st.sampled_from(NODES),
        faults=st.lists(st.sampled_from(Fault), max_size=3),
    )
    def kube_scheduler_binds(
        self, name: str, hand_over: bool, asked: bool, node: str, faults: list[Fault]
    ) -> None:
        number = next((place for place, one in enumerate(self.replicas) if one.lease.held), 0)
        if hand_over:
            number = 1 - number
            self.lead(number)
        replica = self.replicas[number]
        if name not in self.api.pods:
            self.api.create(name, 600, 0, 1)
        chosen = self.ask(name, replica) if asked else [node]
        if not chosen:
            return
        replica.client.faults = list(faults)
        asked_for = BindingAsked(name, "default", typed(self.api.pods[name]).uid, chosen[0])
        try:
            self.run(replica.binder.bind(asked_for))
        except Crashed:
            self.replicas[number] = Replica(self.api, self.clock)
        replica.client.faults = []

    # What must hold.

    def bound(self) -> list[PackedPod]:
        pods = [typed(pod) for pod in self.api.pods.values()]
        return [pod for pod in pods if pod.spec.node_name and not pod.is_finished]

    def booking(self, pod: PackedPod) -> PodBooking:
        demand = demand_of(pod, (DOSLAB,))
        assert demand is not None
        asks = asks_of(pod, DOSLAB).containers
        wish = wish_of(pod, DOSLAB, asks, self.inventories[pod.spec.node_name], (KEY,))
        assert not wish.problem
        assert wish.sealed, "bound without the seal of its booking"
        given = [gpus_for(wish, asks, ask.container) for ask in asks]
        assert all(given), "bound without its GPU"
        return demand.booking(pod, given)

    @invariant()
    def nothing_is_oversold_and_every_pod_has_its_gpu(self) -> None:
        if not hasattr(self, "api"):
            return
        for node in NODES:
            here = [self.booking(pod) for pod in self.bound() if pod.spec.node_name == node]
            assert not GpuBook.of_gpus(self.inventories[node], here).oversold

    @precondition(lambda self: hasattr(self, "api"))
    @rule()
    def settle(self) -> None:
        """Once all is told and every time is over, a book has what the API has, and nothing else."""
        for replica in self.replicas:
            replica.feed.follow(len(self.api.log))
        self.run(self.clock.advance(10 * DOUBT))
        for replica in self.replicas:
            replica.book.expire(self.clock.monotonic())
            self.run(replica.binder.resolve_doubts())
            expected = {
                pod.uid: pod.spec.node_name for pod in self.bound() if pod.spec.node_name in self.api.nodes
            }
            assert replica.book.held == expected
            for node, book in replica.book.books.items():
                assert set(book.pods) == {uid for uid, place in expected.items() if place == node}
                assert not book.oversold


TestTwoReplicas = TwoReplicas.TestCase
TestTwoReplicas.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
