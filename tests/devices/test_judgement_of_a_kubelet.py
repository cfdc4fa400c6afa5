"""The judgement against a kubelet of which the truth is known: whatever happens, it promises nothing that is not so.

A little model of a kubelet syncs a node's status by the rules that the embedded one has; plugins come, fall ill and
go, the kubelet restarts, people patch. After every second something is looked at.
"""

import hypothesis.strategies as st
from hypothesis import given, settings

from colocate.devices.extended_resources import (
    GRACE,
    SYNC,
    Before,
    ExtendedResource,
    ResourceState,
    judge,
    remember,
)
from colocate.devices.node_facts import KubeletFacts, NodeRecords, Writer
from colocate.lab.api.managed_fields import FieldWriter as Signature
from colocate.lab.api.managed_fields import recorded
from colocate.lab.api.objects import Object, clone
from colocate.lab.nodes.heartbeat import synced

FAN = "example.com/fan"
HEARTBEAT = 300


class Model:
    """A node, its kubelet and its plugin; one second is one step."""

    def __init__(self) -> None:
        self.now = 0
        self.plugin: tuple[int, int] | None = None
        """Healthy and unhealthy devices of a plugin that runs."""
        self.known: tuple[int, int] | None = None
        """What the kubelet has of it."""
        self.stopped: int | None = None
        self.seen_to_stop = True
        """The status had healthy devices when the plugin stopped, so that its going shows."""
        self.written: int = 0
        self.node: Object = {
            "metadata": {},
            "status": {"capacity": {}, "allocatable": {}, "conditions": [_ready(0)]},
        }
        self.checkpoint: int | None = None

    def start(self, healthy: int, sick: int) -> None:
        self.plugin = self.known = (healthy, sick)
        self.stopped, self.checkpoint = None, healthy

    def stop(self) -> None:
        if self.plugin is not None and self.known is not None:
            self.plugin, self.known, self.stopped = None, (0, sum(self.known)), self.now
            self.seen_to_stop = self.node["status"]["allocatable"].get(FAN, "0") != "0"

    def restart(self) -> None:
        """The kubelet starts again, and the plugin, if it runs, registers within the same second or never."""
        if self.known is not None:
            self.known, self.stopped, self.seen_to_stop = (0, 0), self.now, True
        self.written = -HEARTBEAT
        if self.plugin is not None:
            self.start(*self.plugin)

    def patch(self, count: int | None) -> None:
        new = clone(self.node)
        if count is None:
            new["status"]["capacity"].pop(FAN, None)
        else:
            new["status"]["capacity"][FAN] = str(count)
        self._write(new, "kubectl-patch")

    def tick(self) -> None:
        self.now += 1
        if self.now % SYNC == 0:
            self._sync()

    def _sync(self) -> None:
        capacity, allocatable = {}, {}
        if self.known is not None:
            if self.stopped is not None and self.now - self.stopped >= GRACE:
                self.known = self.stopped = self.checkpoint = None
                capacity, allocatable = {FAN: 0}, {FAN: 0}
            else:
                capacity, allocatable = {FAN: sum(self.known)}, {FAN: self.known[0]}
        status = self.node["status"]
        new, usable = synced(status["capacity"], capacity, allocatable)
        if (new, usable) != (
            status["capacity"],
            status["allocatable"],
        ) or self.now - self.written >= HEARTBEAT:
            self.written = self.now
            fresh = {"capacity": new, "allocatable": usable, "conditions": [_ready(self.now)]}
            self._write({"metadata": clone(self.node["metadata"]), "status": fresh}, "kubelet")

    def _write(self, new: Object, manager: str) -> None:
        entries = self.node["metadata"].get("managedFields", [])
        signed = recorded(entries, self.node, new, Signature(manager, "status"), str(self.now))
        self.node = new | {"metadata": {"managedFields": signed}}

    def look(self, before: dict[str, Before], on_node: bool) -> ExtendedResource | None:
        status = self.node["status"]
        writers = tuple(
            Writer(
                one["manager"],
                float(one["time"]),
                frozenset(key[2:] for key in one["fieldsV1"]["f:status"].get("f:capacity", {})),
                "f:conditions" in one["fieldsV1"]["f:status"],
            )
            for one in self.node["metadata"].get("managedFields", [])
        )
        itself = KubeletFacts()
        if on_node:
            known = {} if self.checkpoint is None else {FAN: self.checkpoint}
            itself = KubeletFacts(known, {FAN: self.known[0]} if self.known and self.known[0] else {})
        facts = NodeRecords(
            name="n1",
            capacity=status["capacity"],
            allocatable=status["allocatable"],
            writers=writers,
            heartbeat=float(status["conditions"][0]["lastHeartbeatTime"]),
            kubelet=itself,
        )
        found = judge(facts, [], self.now, before)
        return found[0] if found else None


def _ready(now: int) -> Object:
    return {"type": "Ready", "lastHeartbeatTime": str(now)}


counts = st.integers(0, 3)
events = st.one_of(
    st.tuples(st.just("start"), counts, counts),
    st.tuples(st.just("stop")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("patch"), counts | st.none()),
)
story = st.lists(st.tuples(events, st.integers(1, 400)), min_size=1, max_size=8)


@given(story, st.booleans(), st.booleans())
@settings(max_examples=150)
def test_nothing_is_promised_that_does_not_hold(
    story: list[tuple[tuple[object, ...], int]], on_node: bool, remembering: bool
) -> None:
    model = Model()
    before: dict[str, Before] = {}
    promised: tuple[float, ExtendedResource] | None = None
    for (name, *arguments), seconds in story:
        getattr(model, str(name))(*arguments)
        before, promised, quiet_since = {}, None, model.now
        for _ in range(seconds):
            model.tick()
            found = model.look(before if remembering else {}, on_node)
            if found is None or model.now - quiet_since <= SYNC:
                continue  # The status shows what happened with the next sync, and not before.
            before = remember([found])
            if found.certain:
                _check_certain(model, found)
            if found.state is ResourceState.ALIVE:
                assert model.plugin is not None
            if found.state is ResourceState.HAND_PATCHED:
                kubelets = model.known is not None and sum(model.known) == found.capacity
                assert model.known is None or kubelets, "or a plugin with as many devices, as its reason says"
            if found.state is ResourceState.UNHEALTHY:
                assert model.plugin is not None or not model.seen_to_stop
                assert model.plugin is None or model.plugin[0] == 0
            seen = model.plugin is None and model.seen_to_stop
            if found.state is ResourceState.STALE and seen and found.remaining is not None:
                deadline = model.now + found.remaining + SYNC
                promised = promised if promised and promised[0] <= deadline else (deadline, found)
            if promised and model.now > promised[0]:
                assert model.known is None, f"the kubelet should have let go: {promised[1]}"


def _check_certain(model: Model, found: ExtendedResource) -> None:
    match found.state:
        case ResourceState.REMOVABLE:
            assert model.known is None, "the kubelet would put it back"
        case ResourceState.STALE:
            assert model.known is not None
            assert model.plugin is None
        case ResourceState.HAND_PATCHED:
            assert model.known is None
