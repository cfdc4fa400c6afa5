"""Pages move in slices, at a rate, until they are there or cannot be; what stays is counted with the reason."""

import asyncio
import ctypes
import errno
import mmap
import os
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_pages import PAGE, FakeKernel
from tests.support.memory_probe import bytes_by_node

from colocate.clock import ManualClock, SystemClock
from colocate.host.memory_group import MemoryGroup
from colocate.host.node_memory import read_numa
from colocate.host.numa_maps import MappingKind, parse
from colocate.host.page_calls import Kernel
from colocate.host.page_migration import MoveEnd, PageMigration, PagesMoved

HEAP, STACK = 0x5500_0000_0000, 0x7FFF_0000_0000


class Pod:
    """A pod's group with processes that a fake kernel knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "pod"
        self.folder.mkdir()
        self.kernel = FakeKernel(folder / "proc")

    def run(self, pid: int, mappings: dict[int, dict[int, int]], names: dict[int, str] | None = None) -> None:
        self.kernel.process(pid, mappings, names)
        procs = self.folder / "cgroup.procs"
        procs.write_text((procs.read_text() if procs.exists() else "") + f"{pid}\n")

    def migration(
        self,
        sources: set[int],
        target: int,
        *,
        rate: int = 1 << 40,
        at_most: int | None = None,
        pages: int = 8,
    ) -> PageMigration:
        return PageMigration(
            MemoryGroup(self.folder, 2),
            sources=frozenset(sources),
            target=target,
            rate=rate,
            clock=SystemClock(),
            calls=self.kernel,
            at_most=at_most,
            slice_size=pages * PAGE,
            proc=self.kernel.proc,
        )

    def on(self, node: int) -> int:
        return sum(list(pages.values()).count(node) for pages in self.kernel.pages.values())


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


mappings = st.dictionaries(
    st.sampled_from([HEAP, HEAP + (3 << 30), STACK, STACK + 0x1000_5000]),
    st.dictionaries(st.integers(0, 2000), st.integers(0, 3), min_size=1, max_size=40),
    max_size=3,
)


@settings(max_examples=40)
@given(
    processes=st.dictionaries(st.integers(100, 104), mappings, max_size=3),
    sources=st.sets(st.integers(0, 3), min_size=1),
    target=st.integers(0, 3),
    stubborn=st.integers(0, 5),
    pages=st.integers(1, 600),
)
def test_every_page_of_the_sources_moves_but_the_stubborn_and_no_other_does(
    processes: dict[int, dict[int, dict[int, int]]], sources: set[int], target: int, stubborn: int, pages: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pod = Pod(Path(folder))
        for pid, mapped in processes.items():
            pod.run(pid, mapped)
        before = {
            (pid, address): node for pid, own in pod.kernel.pages.items() for address, node in own.items()
        }
        pod.kernel.stubborn = {address for _, address in sorted(before)[::7][:stubborn]}
        report = asyncio.run(pod.migration(sources, target, pages=pages).run())
        after = {
            (pid, address): node for pid, own in pod.kernel.pages.items() for address, node in own.items()
        }
        wanted = {key for key, node in before.items() if node in sources - {target}}
        free = {key for key in wanted if key[1] not in pod.kernel.stubborn}
        assert after == {key: target if key in free else node for key, node in before.items()}
        assert report.moved == len(free) * PAGE
        assert report.stayed == len(wanted - free) * PAGE
        assert report.end is MoveEnd.DONE


async def test_a_library_that_others_map_too_stays_and_memory_of_the_pods_own_does_not(pod: Pod) -> None:
    names = {HEAP: "file=/usr/lib/libc.so.6 mapped=3", STACK: "file=/dev/zero\\040(deleted) anon=3"}
    pod.run(100, {HEAP: {0: 0, 1: 0}, STACK: {0: 0, 1: 0}}, names)
    pod.kernel.shared = {HEAP, STACK, STACK + PAGE}
    report = await pod.migration({0}, 2).run()
    assert (report.moved, report.stayed) == (3 * PAGE, PAGE)
    assert pod.kernel.pages[100][HEAP] == 0


async def test_pages_that_numa_balancing_has_marked_are_seen_and_moved(pod: Pod) -> None:
    pod.run(100, {HEAP: dict.fromkeys(range(1000), 0)})
    pod.kernel.marked = {HEAP + number * PAGE for number in range(600)}
    report = await pod.migration({0}, 2).run()
    assert (report.moved, report.stayed) == (1000 * PAGE, 0)


async def test_a_process_that_ends_on_the_way_is_counted_and_no_error(pod: Pod) -> None:
    pod.run(100, {HEAP: dict.fromkeys(range(2000), 0)})
    pod.kernel.ends_at_call = 5
    report = await pod.migration({0}, 2).run()
    assert (report.ended, report.end) == (1, MoveEnd.DONE)


async def test_a_process_that_has_ended_before_it_is_looked_at(pod: Pod) -> None:
    (pod.folder / "cgroup.procs").write_text("4194000\n")
    assert await pod.migration({0}, 2).run() == PagesMoved(ended=1, end=MoveEnd.DONE)


async def test_a_process_forked_meanwhile_moves_too(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod.run(100, {HEAP: {0: 0}})
    real = pod.kernel.move

    def forking(pid: int, addresses: "array[int]", node: int, *, shared: bool) -> "array[int]":
        if 101 not in pod.kernel.pages:
            pod.run(101, {HEAP: {0: 0, 1: 0}})
        return real(pid, addresses, node, shared=shared)

    monkeypatch.setattr(pod.kernel, "move", forking)
    report = await pod.migration({0}, 2).run()
    assert report.moved == 3 * PAGE


async def test_a_node_without_room_ends_it(pod: Pod) -> None:
    pod.run(100, {HEAP: dict.fromkeys(range(2000), 0)})
    pod.run(101, {HEAP: {0: 0}})
    pod.kernel.room = 700
    report = await pod.migration({0}, 2).run()
    assert (report.end, report.moved) == (MoveEnd.NO_ROOM, 700 * PAGE)
    assert pod.on(2) == 700


async def test_a_node_that_is_taken_off_ends_it(pod: Pod) -> None:
    pod.run(100, {HEAP: {0: 0}})
    pod.kernel.offline = {2}
    report = await pod.migration({0}, 2).run()
    assert (report.end, report.moved, report.stayed) == (MoveEnd.NO_NODE, 0, PAGE)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.EPERM, "CAP_SYS_NICE"), (errno.EACCES, "its cpuset does not allow memory of NUMA node 2")],
)
async def test_a_process_that_may_not_be_touched_is_named_with_the_reason(
    pod: Pod, code: int, reason: str
) -> None:
    pod.run(100, {HEAP: {0: 0}})
    pod.kernel.refuses = code
    report = await pod.migration({0}, 2).run()
    assert (report.end, report.moved) == (MoveEnd.DONE, 0)
    assert [refused.pid for refused in report.refused] == [100]
    assert reason in report.refused[0].reason


async def test_processes_of_a_pid_namespace_that_is_not_seen_from_here(pod: Pod) -> None:
    (pod.folder / "cgroup.procs").write_text("0\n0\n")
    report = await pod.migration({0}, 2).run()
    assert "hostPID" in report.refused[0].reason


async def test_about_as_much_as_asked_for_is_moved(pod: Pod) -> None:
    pod.run(100, {HEAP: dict.fromkeys(range(2000), 0)})
    report = await pod.migration({0}, 2, at_most=100 * PAGE).run()
    assert (report.end, report.moved) == (MoveEnd.ENOUGH, 100 * PAGE)
    assert pod.on(2) == 100


async def test_every_slice_that_moved_announces_itself(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod.run(100, {HEAP: {number * 512: 0 for number in range(3)}})
    announced: list[str] = []
    monkeypatch.setattr("colocate.host.page_migration.reached", announced.append)
    await pod.migration({0}, 2, pages=1).run()
    assert announced == ["pages.moved"] * 3


async def test_no_faster_than_the_rate_and_cancelled_in_between_with_a_report(pod: Pod) -> None:
    clock = ManualClock()
    # One page in each of four stretches of the size of a huge page: four slices.
    pod.run(100, {HEAP: {number * 512: 0 for number in range(4)}})
    migration = PageMigration(
        MemoryGroup(pod.folder, 2),
        sources=frozenset({0}),
        target=2,
        rate=PAGE // 2,
        clock=clock,
        calls=pod.kernel,
        slice_size=PAGE,
        proc=pod.kernel.proc,
    )
    running = asyncio.create_task(migration.run())
    for moved in (1, 2, 3):
        await clock.until_someone_sleeps()
        assert migration.report.moved == moved * PAGE
        if moved < 3:
            await clock.advance(1.5)
            assert migration.report.moved == moved * PAGE
            await clock.advance(0.6)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert migration.report == PagesMoved(moved=3 * PAGE, end=MoveEnd.UNFINISHED)
    assert pod.on(0) == 1


NUMA_MAPS = rb"""55d0c0a00000 default file=/usr/bin/python3.11 mapped=112 active=0 N0=112 kernelpagesize_kB=4
55d0c1000000 default heap anon=900 dirty=900 N0=600 N2=300 kernelpagesize_kB=4
7f0000000000 bind:0-1 anon=512 dirty=512 N1=512 kernelpagesize_kB=4
7f1000000000 default file=/dev/zero\040(deleted) anon=8 dirty=8 N1=8 kernelpagesize_kB=4
7f2000000000 default file=/dev/hugepages/x huge anon=2 dirty=2 N0=2 kernelpagesize_kB=2048
7f3000000000 default
7ffd00000000 default stack anon=3 dirty=3 N0=3 kernelpagesize_kB=4
7fff00000000 default
"""


def test_numa_maps_are_read_by_kind_node_and_page_size() -> None:
    starts = [int(line.split()[0], 16) for line in NUMA_MAPS.splitlines()]
    read = parse(NUMA_MAPS, {start: start + (1 << 30) for start in starts})
    kinds = [mapping.kind for mapping in read]
    assert kinds == [
        MappingKind.FILE,
        MappingKind.PRIVATE,
        MappingKind.PRIVATE,
        MappingKind.SHARED_MEMORY,
        MappingKind.HUGE,
        MappingKind.PRIVATE,
    ]
    assert read[1].count == 900
    assert bytes_by_node(read) == {0: 715 * 4096 + (4 << 20), 1: 520 * 4096, 2: 300 * 4096}


def test_a_mapping_that_has_just_gone_is_passed_over() -> None:
    assert parse(NUMA_MAPS, {}) == []


# --- the kernel of this machine ------------------------------------------------------------------------


def test_the_kernel_says_where_pages_are_and_that_others_are_not() -> None:
    with mmap.mmap(-1, 8 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, 8, 2):
            memory[page * PAGE] = 1
        view = ctypes.c_char.from_buffer(memory)
        start = ctypes.addressof(view)
        addresses = array("Q", [start + page * PAGE for page in range(8)])
        kernel, nodes = Kernel(), {node.id for node in read_numa()} or {0}
        there = kernel.where(os.getpid(), addresses)
        assert all(node in nodes for node in there[::2])
        assert all(node < 0 for node in there[1::2])
        # Unreadable ones in between do not keep the others from being touched.
        kernel.touch(os.getpid(), array("Q", [PAGE, start + PAGE, PAGE, start + 3 * PAGE]))
        assert kernel.where(os.getpid(), addresses)[::2] == there[::2]
        del view


def test_pages_already_on_their_node_are_moved_there_without_complaint() -> None:
    with mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[0] = 1
        view = ctypes.c_char.from_buffer(memory)
        addresses = array("Q", [ctypes.addressof(view)])
        (node,) = Kernel().where(os.getpid(), addresses)
        assert list(Kernel().move(os.getpid(), addresses, node, shared=False)) == [node]
        with pytest.raises(OSError) as refused:
            Kernel().move(os.getpid(), addresses, 1000, shared=False)
        assert refused.value.errno == errno.ENODEV
        del view


def test_a_process_that_is_not_there_is_said_to_be_none() -> None:
    with pytest.raises(ProcessLookupError):
        Kernel().where((1 << 22) - 3, array("Q", [PAGE]))


def test_a_process_without_the_right_learns_from_a_call_that_moves_nothing() -> None:
    ask = "from colocate.host import page_calls; print(page_calls.refusal())"
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    said = subprocess.run([*without, sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert said.stdout == "operation not permitted\n"
