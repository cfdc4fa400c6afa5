"""Scheduler, kubelet and agent of a node together, with an observer who looks between any two writes.

Pods alike and nearly alike are booked in bursts, admitted in another order, swapped, ended and rewritten by their
owners; agent and scheduler die at any moment. The scheduler's book never shows less than is or will be held, and no
pod that it booked is refused or condemned.
"""

import asyncio
from typing import Any

import msgspec
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from colocate.clock import ManualClock
from colocate.gpus import DOSLAB as SPOKEN
from colocate.gpus import SEAL, GpuMatch, GpuRoom, GpuSettings, asks_of
from colocate.wire.extender_questions import BindingAsked, read_question
from tests.gpu_scheduler.clusters import gpus, uuid
from tests.gpu_scheduler.fake_api import FakeApi, typed
from tests.gpu_scheduler.test_stateful import KEY, Replica
from tests.gpus.node import Node

SIZE = 100
GPUS = 3
NODE = "a"
SHAPES = [(50, 40, 1), (50, 40, 1), (50, 40, 1), (50, 0, 1), (30, 0, 1), (100, 0, 1), (50, 0, 2)]
"""Memory, cores, GPUs: most of them alike, some alike to the kubelet alone."""


class Observed(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.api = FakeApi()
        self.clock = ManualClock()
        self.loop = asyncio.new_event_loop()
        inventory = gpus(NODE, GPUS, size=SIZE)
        self.node = Node(inventory, GpuSettings(keys=(KEY,)))
        self.number = 0
        self.admitted: list[str] = []
        self.started: set[str] = set()
        self.spoilt: set[str] = set()
        """Pods whose booked state the agent's watch never delivered: it broke, and their owners had changed them."""
        self.heard = 0
        """How much of the API's log the watch has delivered."""
        self.api.put_node(NODE, inventory)
        self.announce()
        self.observer = Replica(self.api, self.clock)
        self.scheduler = Replica(self.api, self.clock)
        self.lead()
        self.api.observe = self.look

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    def lead(self) -> None:
        self.scheduler.lease.held = True
        self.loop.run_until_complete(self.scheduler.binder.catch_up())

    # The observer.

    def look(self) -> None:
        """Called after each write: whatever the agent has in mind, nobody else is booked into it."""
        self.observer.feed.follow(len(self.api.log))
        shown = self.observer.book.books[NODE].used
        alive = {typed(pod).uid for pod in self.api.pods.values() if not typed(pod).is_finished}
        held: dict[str, GpuRoom] = {}
        for uid, pod in self.node.holders().items():
            for gpu, room in pod.rooms.items() if uid in alive else ():
                held[gpu] = held.get(gpu, GpuRoom()) + room
        for gpu, room in (*held.items(), *self.running(alive).items()):
            seen = shown.get(gpu, GpuRoom())
            assert seen.memory >= room.memory, (gpu, seen, room)
            assert seen.cores >= room.cores, (gpu, seen, room)

    def running(self, alive: set[str]) -> dict[str, GpuRoom]:
        """What containers run with, by the kubelet's record alone; no GPU has more than there is."""
        found: dict[str, GpuRoom] = {}
        for key, held in self.node.held.items():
            if key.uid not in self.started & alive or key.uid not in self.node.api:
                continue
            assert held.injected is not None
            (ask,) = asks_of(self.node.api[key.uid], SPOKEN).containers
            for gpu in held.injected.envs["NVIDIA_VISIBLE_DEVICES"].split(","):
                found[gpu] = found.get(gpu, GpuRoom()) + GpuRoom(len(held.ids), ask.cores)
        assert all(room.memory <= SIZE and room.cores <= 100 for room in found.values()), found
        return found

    # What users do.

    @rule(
        shapes=st.lists(st.sampled_from(SHAPES), min_size=2, max_size=6),
        order=st.permutations(range(8)),
        many=st.integers(0, 8),
        told=st.booleans(),
        ends=st.integers(0, 8),
    )
    def a_burst(
        self, shapes: list[tuple[int, int, int]], order: list[int], many: int, told: bool, ends: int
    ) -> None:
        """Booked at once, admitted in another order; one of them ends while the agent has told, or has not."""
        names: list[str] = []
        for memory, cores, count in shapes:
            self.number += 1
            names.append(f"p{self.number}")
            self.api.create(names[-1], memory, cores, count)
        for name in names:
            self.schedule(name)
        self.the_node_hears()
        if told:
            self.announce()
        self.the_kubelet_admits(order, many)
        self.containers_start()
        if ends < len(names) and names[ends] in self.api.pods:
            self.api.delete(names[ends])

    @rule()
    def those_that_wait_are_tried_again(self) -> None:
        for name, pod in list(self.api.pods.items()):
            if not typed(pod).spec.node_name:
                self.schedule(name)

    def schedule(self, name: str) -> None:
        self.scheduler.feed.follow(len(self.api.log))
        body = msgspec.json.encode({"Pod": self.api.pods[name], "Nodes": None, "NodeNames": [NODE]})
        sieved = self.scheduler.judge.filter(read_question(body), "")
        if not sieved.failed and not sieved.unresolvable:
            asked = BindingAsked(name, "default", typed(self.api.pods[name]).uid, NODE)
            event("waits" if self.loop.run_until_complete(self.scheduler.binder.bind(asked)) else "bound")

    @rule(data=st.data(), heard=st.booleans())
    def a_pod_ends(self, data: st.DataObject, heard: bool) -> None:
        if self.api.pods:
            self.api.delete(data.draw(st.sampled_from(sorted(self.api.pods))))
            if heard:
                self.the_node_hears()

    @rule(
        data=st.data(),
        change=st.sampled_from(
            [
                {"doslab.io/gpu-uuid": uuid(NODE, 0)},
                {"doslab.io/gpu-uuid": "GPU-none"},
                {SEAL: ""},
                {"colocate.dev/gpu-models": "m" * 600},
            ]
        ),
    )
    def a_tenant_changes_a_pod(self, data: st.DataObject, change: dict[str, str]) -> None:
        bound = sorted(name for name, pod in self.api.pods.items() if typed(pod).spec.node_name)
        if bound:
            name = data.draw(st.sampled_from(bound))
            self.api.change(name, lambda pod: pod["metadata"]["annotations"].update(change))

    # What the node does.

    @rule(broken=st.booleans())
    def the_node_hears(self, broken: bool = False) -> None:
        """Kubelet and agent have the API's pods: every state of them, or the last one where the watch broke."""
        unheard, self.heard = self.api.log[self.heard :], len(self.api.log)
        now = {typed(pod).uid: typed(pod) for pod in self.api.pods.values() if typed(pod).spec.node_name}
        known = set(self.node.api)
        for kind, said in unheard:
            if kind != "pod" or not said.spec.node_name:
                continue
            if not broken:
                self.node.hear(said)
            elif said.uid not in known:
                known.add(said.uid)
                if said.uid in now and now[said.uid].annotations != said.annotations:
                    self.spoilt.add(said.uid)
        for uid in [uid for uid in self.node.api if uid not in now]:
            self.node.delete(uid)
            self.admitted = [each for each in self.admitted if each != uid]
            self.started.discard(uid)
        self.node.api.update(now)
        self.node.settle()

    @rule(order=st.permutations(range(8)), many=st.integers(1, 8))
    def the_kubelet_admits(self, order: list[int], many: int) -> None:
        waiting = [uid for uid in self.node.api if uid not in self.admitted]
        for place in order[:many]:
            if place < len(waiting):
                self.admit(waiting[place])

    def admit(self, uid: str) -> None:
        (ask,) = asks_of(self.node.api[uid], SPOKEN).containers
        result = self.node.allocate(uid, ask.container)
        if isinstance(result, GpuMatch):
            self.admitted.append(uid)
        else:
            assert self.spoilt & self.node.api.keys(), result.sentence
            self.fail(uid)
        self.look()

    def fail(self, uid: str) -> None:
        name = next((name for name, pod in self.api.pods.items() if typed(pod).uid == uid), None)
        if name is not None:
            self.api.change(name, lambda pod: pod["status"].update(phase="Failed"))
            self.api.delete(name)
        self.the_node_hears()

    @rule()
    def containers_start(self) -> None:
        for uid in list(self.admitted):
            refused = self.node.start(uid, "main")
            if refused:
                assert self.spoilt & self.node.api.keys(), refused
                self.fail(uid)
            else:
                self.started.add(uid)
        self.look()

    @rule()
    def announce(self) -> None:
        """One write."""
        self.node.settle()
        self.node.announce()
        self.api.announce(NODE, self.node.text)

    @rule()
    def annotations_are_written_back(self) -> None:
        """A write for each pod; the announcement came before."""
        before = dict(self.node.api)
        self.node.patch_pods()
        for uid, pod in self.node.api.items():
            name = pod.metadata.name
            if pod != before[uid] and name in self.api.pods and typed(self.api.pods[name]).uid == uid:
                said = dict(pod.annotations)

                def write(stored: Any, said: dict[str, str] = said) -> None:
                    stored["metadata"]["annotations"].update(said)

                self.api.change(name, write)

    @rule()
    def the_agent_dies(self) -> None:
        self.node.crash()
        self.node.settle()

    @rule()
    def the_scheduler_dies(self) -> None:
        """Another reads what there is, once the agent has said what it knows."""
        self.announce()
        self.scheduler = Replica(self.api, self.clock)
        self.lead()

    @rule()
    def all_is_well_in_the_end(self) -> None:
        """Everybody has spoken and heard: the book is what is held, and no more."""
        self.the_node_hears()
        self.the_kubelet_admits(list(range(8)), 8)
        self.the_kubelet_admits(list(range(8)), 8)
        self.containers_start()
        self.announce()
        self.scheduler.feed.follow(len(self.api.log))
        for book in (self.scheduler.book.books[NODE], self.observer.book.books[NODE]):
            held = self.node.used(self.node.holders())
            waiting = [uid for uid in self.node.api if uid not in self.admitted]
            if not waiting:
                assert dict(book.used) == {gpu: room for gpu, room in held.items() if room != GpuRoom()}
            assert not book.oversold


TestObserved = Observed.TestCase
TestObserved.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
