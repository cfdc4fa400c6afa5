"""What a scheduler sees is recorded whole, bounded and for its owner alone; and it is replayed as a workload."""

import asyncio
import stat
import tracemalloc
import zlib
from array import array
from collections.abc import Coroutine
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.aio import first
from colocate.clock import ManualClock
from colocate.errors import UserError
from colocate.load import (
    LoadRecorder,
    LoadTable,
    decode_recording,
    encode_recording,
    hashing,
    recording,
    snapshot,
)
from colocate.model.load import Access, Amount, BoundPod, ContainerAsk, PodShape, PodUsage, Taint
from colocate.replay.load_contenders import contenders
from colocate.replay.load_recorded import recorded_workload
from colocate.replay.load_run import LoadRun
from colocate.scheduler.client import NotAnswered
from colocate.scheduler.record import Recorded, RecordSettings, record
from tests.load.facts import GIB, NOW, SIZE, load, node, pod, table

MINUTES = 90


def seen(minute: int) -> LoadTable:
    """Three nodes; a pod on each from the beginning, and half an hour later one more on the first, for as long."""
    at = NOW + 60 * minute
    later = 30 <= minute < 60
    made = table({name: load(20 + 30 * (later and name == "a"), 25, at=at) for name in "abc"})
    made.advance(at)
    usages = {}
    for name in "abc":
        made.bind(BoundPod(pod(f"first-{name}", 800, owner="d/web"), name, NOW - 3600))
        usages[f"first-{name}"] = PodUsage(Amount(800, 4 * GIB), at)
    if later:
        made.bind(BoundPod(pod("later", 2400, owner="d/db"), "a", NOW + 60 * 30))
        usages["later"] = PodUsage(Amount(2400, GIB), at)
    made.observe_pods(usages)
    return made


def recorded(recorder: LoadRecorder) -> LoadRecorder:
    for minute in range(MINUTES):
        assert recorder.add(snapshot.take(seen(minute)))
    return recorder


def test_a_recording_becomes_the_workload_that_was() -> None:
    recording = recorded(LoadRecorder()).recording()
    read = decode_recording(encode_recording(recording), "a file")
    assert read == recording
    workload = recorded_workload(read, "a file")
    assert [node.name for node in workload.nodes] == ["a", "b", "c"]
    placed = {one.facts.uid: one for one in workload.pods}
    assert placed["first-b"].node == 1
    assert placed["later"].node is None
    assert placed["later"].begin == 31
    assert placed["later"].end == 60
    assert placed["later"].use[0] == pytest.approx(2400)
    # 20 % of 8 CPUs are 1600m, of which the pod uses 800m: the rest is the node's own.
    assert workload.base is not None
    assert workload.base[0, 1] == pytest.approx(800, rel=0.01)
    ran = LoadRun(workload, contenders("default")[0], 1).run()
    assert ran.placed[[one.facts.uid for one in workload.pods].index("later")] in (0, 1, 2)
    assert ran.used.sum() == pytest.approx(
        sum(one.use.sum() for one in workload.pods) + workload.base.sum(), rel=1e-4
    )


def test_a_pod_goes_to_nodes_with_the_taints_of_its_own() -> None:
    recorder = LoadRecorder()
    for minute in range(MINUTES):
        made = seen(minute)
        made.add_nodes(
            msgspec.structs.replace(node(name), access=Access(taints=(Taint("gpu", "NoSchedule"),)))
            for name in "bc"
        )
        recorder.add(snapshot.take(made))
    workload = recorded_workload(recorder.recording(), "a file")
    (later,) = (number for number, one in enumerate(workload.pods) if one.node is None)
    for policy in ("stock", "default"):
        assert LoadRun(workload, contenders(policy)[0], 1).run().placed[later] == 0


def test_unmeasured_pods_share_what_their_node_uses() -> None:
    recorder = LoadRecorder()
    for minute in range(MINUTES):
        taken = snapshot.take(seen(minute))
        recorder.add(msgspec.structs.replace(taken, usages={}))
    workload = recorded_workload(recorder.recording(), "a file")
    used = np.zeros(workload.minutes)
    for one in workload.pods:
        if one.facts.uid in ("first-a", "later"):
            used[one.begin : one.end] += one.use[0]
    assert used[40] == pytest.approx(SIZE.cpu * 0.5, rel=0.01)


def test_names_can_be_hidden_and_what_belongs_together_still_does() -> None:
    recording = recorded(LoadRecorder(hashing(b"key"))).recording()
    text = msgspec.msgpack.encode(recording)
    for name in (b"first-a", b"later", b"d/web", b"default/"):
        assert name not in text
    owners = {one.facts.owner for one in recording.pods}
    assert len(owners) == 2
    assert {one.node for one in recording.pods} <= {one.facts.name for one in recording.nodes}
    assert hashing(b"key")("a") != hashing(b"other")("a")


@given(st.binary(max_size=200))
def test_garbage_is_told_from_a_recording(garbage: bytes) -> None:
    whole = encode_recording(LoadRecorder().recording())
    for data in (garbage, whole[:19] + garbage):
        if data != whole:
            with pytest.raises(UserError):
                decode_recording(data, "a file")


def file_of(text: bytes) -> bytes:
    """A file that says so."""
    return encode_recording(LoadRecorder().recording())[:19] + zlib.compress(text, 9)


def counting(elements: int, of: str = "times", each: bytes = b"\x01") -> bytes:
    name = bytes([0xA0 + len(of)]) + of.encode()
    return file_of(b"\x81" + name + b"\xdd" + elements.to_bytes(4, "big") + each * elements)


@pytest.mark.parametrize(
    "bomb",
    [
        counting(20_000_000),
        counting(20_000_000, "pods", b"\x80"),
        counting(20_000_000, "nodes", b"\x80"),
        file_of(b"\x81\xa5times\xdd\xff\xff\xff\xff\x01"),
    ],
    ids=["times", "pods", "nodes", "a length alone"],
)
def test_a_strangers_recording_of_billions_is_refused_before_they_are_objects(bomb: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="length <= "):
            decode_recording(bomb, "a file")
        assert tracemalloc.get_traced_memory()[1] < 4 * 20_000_000
    finally:
        tracemalloc.stop()


def test_a_strangers_recording_that_unfolds_is_read_no_further_than_any_recording_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "_MOST_DECODED", 4 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="holds more than 4 MiB"):
            decode_recording(file_of(b"\0" * (64 << 20)), "a file")
        assert tracemalloc.get_traced_memory()[1] < 80 << 20, "the text itself, and little more"
    finally:
        tracemalloc.stop()


def test_pods_of_endless_containers_in_a_strangers_recording_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "_MOST_PARTS", 100)
    whole = recorded(LoadRecorder()).recording()
    facts = msgspec.structs.replace(whole.pods[0].facts, shape=PodShape((ContainerAsk(),) * 101))
    pods = (msgspec.structs.replace(whole.pods[0], facts=facts),)
    with pytest.raises(UserError, match="more than 100 containers"):
        decode_recording(encode_recording(msgspec.structs.replace(whole, pods=pods)), "a file")


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), -1.0, 1e308])
def test_a_strangers_recording_at_times_that_no_clock_shows_is_a_broken_one(odd: float) -> None:
    whole = recorded(LoadRecorder()).recording()
    at = msgspec.structs.replace(whole, times=tuple(sorted((*whole.times[:-1], odd))))
    pods = (msgspec.structs.replace(whole.pods[0], bound_at=odd),)
    for broken in (at, msgspec.structs.replace(whole, pods=pods)):
        with pytest.raises(UserError, match="broken recording"):
            decode_recording(encode_recording(broken), "a file")


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 3e38])
def test_a_strangers_recording_of_uses_that_are_none_is_a_broken_one(odd: float) -> None:
    whole = recorded(LoadRecorder()).recording()
    samples = array("f", [odd] * MINUTES).tobytes()
    nodes = (msgspec.structs.replace(whole.nodes[0], cpu=samples), *whole.nodes[1:])
    with pytest.raises(UserError, match="has impossible values"):
        recorded_workload(msgspec.structs.replace(whole, nodes=nodes), "a file")


def test_a_strangers_recording_of_two_snapshots_that_are_weeks_apart_does_not_fill_the_memory() -> None:
    whole = recorded(LoadRecorder()).recording()
    two = array("f", [1.0, 1.0]).tobytes()
    node = msgspec.structs.replace(whole.nodes[0], cpu=two, memory=two)
    pod = msgspec.structs.replace(whole.pods[0], first=0, last=2, cpu=two, memory=two)
    apart = msgspec.structs.replace(whole, times=(NOW, NOW + 59 * 86_400), nodes=(node,), pods=(pod,))
    for many in ({"nodes": (node,) * 1000}, {"pods": (pod,) * 5000}):
        with pytest.raises(UserError, match="too large to be replayed"):
            recorded_workload(msgspec.structs.replace(apart, **many), "a file")


def test_parts_that_do_not_belong_together_are_told() -> None:
    recording = recorded(LoadRecorder()).recording()
    broken = msgspec.structs.replace(recording, times=recording.times[:-1])
    with pytest.raises(UserError, match="do not belong together"):
        decode_recording(encode_recording(broken), "a file")
    with pytest.raises(UserError, match="needs 30 min"):
        recorded_workload(LoadRecorder().recording(), "a file")


async def through(clock: ManualClock, running: Coroutine[None, None, Recorded]) -> Recorded:
    """Move the clock until it is done."""
    task = asyncio.ensure_future(running)
    while not task.done():
        await first(asyncio.wait([task]), clock.until_someone_sleeps())
        await clock.advance(60)
    return task.result()


class TestTheProcess:
    async def take(self) -> bytes:
        self.minute = getattr(self, "minute", -1) + 1
        if self.minute in (5, 6):
            raise NotAnswered("the scheduler is away")
        return snapshot.encode(snapshot.take(seen(self.minute)))

    async def test_it_ends_in_time_and_the_file_is_for_its_owner_alone(self, tmp_path: Path) -> None:
        file, clock = tmp_path / "cluster.recording", ManualClock()
        told: list[str] = []
        settings = RecordSettings(file, seconds=50 * 60)
        running = record(self.take, settings, LoadRecorder(), clock, told.append)
        done = await through(clock, running)
        assert done.snapshots == 48
        assert not done.full
        assert len(told) == 2
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert len(decode_recording(file.read_bytes(), str(file)).times) == 48

    async def test_it_ends_when_it_is_as_large_as_it_may_be(self, tmp_path: Path) -> None:
        file, clock = tmp_path / "cluster.recording", ManualClock()
        settings = RecordSettings(file, most=2000)
        done = await through(clock, record(self.take, settings, LoadRecorder(), clock))
        assert done.full
        assert done.snapshots < 30
        assert file.exists()
