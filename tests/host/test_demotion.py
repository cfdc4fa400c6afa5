"""Demotion in bounded steps: a kernel that drops, swaps, has no room or moves nothing ends it before it does harm."""

import asyncio
import errno
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cgroup_trees import write_numa
from tests.support.waiting import until

from colocate.clock import ManualClock, SystemClock
from colocate.host import demotion
from colocate.host.demotion import STEP, DemotionEnd, KernelDemotion, PagesDemoted, PodDemotion
from colocate.host.memory_group import GroupGone, MemoryGroup
from colocate.model.memory import NumaMemory

MIB = 1 << 20
NEAR, FAR = 0, 2


class Kernel:
    """A kernel that demotes a group's memory, as a test wants it to go wrong; amounts in MiB."""

    def __init__(
        self, folder: Path, *, anon: int = 0, shmem: int = 0, cache: int = 0, free: int = 4096
    ) -> None:
        self.proc, self.sys = folder / "proc", folder / "sys"
        for name, value in (("vm/swappiness", "60"), ("kernel/numa_balancing", "0")):
            (self.proc / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.proc / "sys" / name).write_text(f"{value}\n")
        self.switch = self.sys / "kernel/mm/numa/demotion_enabled"
        self.switch.parent.mkdir(parents=True)
        self.switch.write_text("false\n")
        for tier, nodes in ((4, "0-1"), (22, "2")):
            self.tier(tier).mkdir(parents=True)
            (self.tier(tier) / "nodelist").write_text(f"{nodes}\n")
        self.anon: list[float] = [anon, 0]
        self.shmem: list[float] = [shmem, 0]
        self.cache: list[float] = [cache, 0]
        """On the near and on the far node."""
        self.swap: float = 0
        self.free: float = free
        self.drops = self.swaps = 0.0
        """Share of each step that goes wrong so."""
        self.factor = 1.0
        """How many times what it is asked for it moves."""
        self.stuck = False
        self.asked: list[int] = []
        self.least_free: float = free
        self.folder = folder / "group"
        self.folder.mkdir()
        self.told()

    def tier(self, number: int) -> Path:
        return self.sys / f"devices/virtual/memory_tiering/memory_tier{number}"

    @property
    def demotion(self) -> KernelDemotion:
        return KernelDemotion(proc=self.proc, sys=self.sys)

    def pod(self, **options: object) -> PodDemotion:
        made: dict[str, Any] = {
            "sources": (0, 1),
            "leave": {FAR: 256 * MIB},
            "rate": 1 << 40,
            "clock": SystemClock(),
            **options,
        }
        return PodDemotion(Demoted(self.folder, 2, [self]), self.demotion, **made)

    def reclaim(self, size: int) -> None:
        self.asked.append(size)
        wanted = size / MIB
        on = self.switch.read_text().strip() == "true"
        if self.stuck or not on:
            wanted = 0 if self.stuck else wanted
            self.cache[0] -= min(self.cache[0], wanted)
            self.told()
            raise OSError(errno.EAGAIN, "not all of it")
        dropped = min(self.cache[0], self.drops * wanted)
        self.cache[0] -= dropped
        swapped = min(self.anon[0], self.swaps * wanted)
        self.anon[0] -= swapped
        self.swap += swapped
        left = wanted * self.factor - dropped - swapped
        for kind in (self.anon, self.shmem):
            moved = max(0, min(kind[0], left, self.free))
            kind[0], kind[1], self.free, left = (
                kind[0] - moved,
                kind[1] + moved,
                self.free - moved,
                left - moved,
            )
        self.least_free = min(self.least_free, self.free)
        self.told()
        if left > 1e-6 or self.factor < 1:
            raise OSError(errno.EAGAIN, "not all of it")

    def told(self) -> None:
        rows = {"anon": self.anon, "file": [s + c for s, c in zip(self.shmem, self.cache, strict=True)]}
        rows["shmem"] = self.shmem
        lines = (
            f"{name} N0={int(near * MIB)} N1=0 N2={int(far * MIB)}\n" for name, (near, far) in rows.items()
        )
        (self.folder / "memory.numa_stat").write_text("".join(lines))
        (self.folder / "memory.swap.current").write_text(str(int(self.swap * MIB)))
        write_numa(
            self.sys,
            NumaMemory(id=0, total=1 << 33, free=1 << 30),
            NumaMemory(id=2, total=1 << 32, free=int(self.free * MIB), has_cpus=False),
        )


class Demoted(MemoryGroup, frozen=True):
    """A group of that kernel."""

    kernel: list[Kernel] = []  # noqa: RUF012 -- a field of the struct, copied for each

    def write(self, name: str, value: str) -> None:
        assert name == "memory.reclaim"
        self.kernel[0].reclaim(int(value))


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    made = Kernel(tmp_path, anon=100, shmem=60, cache=40)
    made.demotion.switch(True)
    made.switch.write_text("true\n")
    return made


@settings(max_examples=40, deadline=None)
@given(
    anon=st.integers(0, 100),
    shmem=st.integers(0, 100),
    free=st.integers(0, 600),
    amount=st.integers(0, 200),
    factor=st.floats(0.3, 2),
    drops=st.floats(0, 1),
)
def test_no_far_node_is_filled_beyond_its_reserve_and_little_cache_is_dropped_whatever_the_kernel_does(
    anon: int, shmem: int, free: int, amount: int, factor: float, drops: float
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kernel = Kernel(Path(folder), anon=anon, shmem=shmem, cache=64, free=free)
        kernel.switch.write_text("true\n")
        kernel.factor, kernel.drops = factor, drops
        done = asyncio.run(kernel.pod().run(amount * MIB))
        assert kernel.least_free >= min(free, 256)
        assert all(size <= STEP for size in kernel.asked)
        assert abs(done.moved - (kernel.anon[1] + kernel.shmem[1]) * MIB) <= 8, "read from memory.numa_stat"
        assert done.moved <= max(0, amount + STEP // MIB) * MIB
        assert kernel.cache[0] >= 16 - STEP // MIB
        if drops > 0.6 * factor:
            assert len(kernel.asked) <= 1, "more was dropped than moved"


async def test_anonymous_and_tmpfs_memory_is_moved_and_counted(kernel: Kernel) -> None:
    assert await kernel.pod().run(160 * MIB) == PagesDemoted(160 * MIB, 0, DemotionEnd.ENOUGH)
    assert (kernel.anon[1], kernel.shmem[1]) == (100, 60)
    assert await kernel.pod().run(8 * MIB) == PagesDemoted(0, 0, DemotionEnd.NOTHING_LEFT)


async def test_no_step_is_taken_while_the_switch_is_off_for_it_would_drop_page_cache(kernel: Kernel) -> None:
    kernel.switch.write_text("false\n")
    assert (await kernel.pod().run(32 * MIB)).end is DemotionEnd.SWITCHED_OFF
    assert kernel.asked == []


async def test_a_switch_that_is_turned_off_on_the_way_ends_it(kernel: Kernel) -> None:
    answers = iter([True, True])

    def go_on() -> bool:
        try:
            return next(answers)
        finally:
            if len(kernel.asked) == 1:
                kernel.switch.write_text("false\n")

    done = await kernel.pod(go_on=go_on).run(100 * MIB)
    assert done.end in (DemotionEnd.SWITCHED_OFF, DemotionEnd.NOTHING_MOVES, DemotionEnd.DROPS)
    assert kernel.cache[0] >= 40 - STEP // MIB


async def test_a_kernel_that_moves_nothing_is_asked_once(kernel: Kernel) -> None:
    kernel.stuck = True
    assert await kernel.pod().run(64 * MIB) == PagesDemoted(0, 0, DemotionEnd.NOTHING_MOVES)
    assert len(kernel.asked) == 1


async def test_a_kernel_that_moves_part_of_a_step_is_asked_for_less_and_goes_on(kernel: Kernel) -> None:
    kernel.factor = 0.5
    done = await kernel.pod().run(32 * MIB)
    assert done.end is DemotionEnd.ENOUGH
    assert kernel.asked[0] == STEP
    assert max(kernel.asked[1:]) <= STEP // 2


@pytest.mark.parametrize("wrong", ["drops", "swaps"])
async def test_a_kernel_that_drops_or_swaps_more_than_it_moves_is_asked_once(
    kernel: Kernel, wrong: str
) -> None:
    setattr(kernel, wrong, 0.75)
    done = await kernel.pod().run(100 * MIB)
    assert done.end is DemotionEnd.DROPS
    assert done.dropped == 6 * MIB
    assert len(kernel.asked) == 1


async def test_a_pod_is_left_page_cache_for_its_own_program(kernel: Kernel) -> None:
    kernel.drops, kernel.cache[0] = 0.4, 20
    kernel.told()
    assert (await kernel.pod().run(160 * MIB)).end is DemotionEnd.DROPS
    assert kernel.cache[0] >= 10 - 0.4 * STEP / MIB


async def test_crumbs_of_page_cache_do_not_end_it(kernel: Kernel) -> None:
    kernel.drops, kernel.cache[0] = 0.1, 2
    kernel.told()
    done = await kernel.pod().run(32 * MIB)
    assert done.end is DemotionEnd.ENOUGH
    assert done.dropped == 2 * MIB


async def test_a_far_node_without_room_is_not_tried(kernel: Kernel) -> None:
    kernel.free = 257
    kernel.told()
    assert (await kernel.pod().run(100 * MIB)).end is DemotionEnd.NO_ROOM
    assert kernel.asked == []


async def test_pressure_stops_it_before_the_next_step(kernel: Kernel) -> None:
    answers = iter([True, True, False])
    done = await kernel.pod(go_on=lambda: next(answers)).run(100 * MIB)
    assert done == PagesDemoted(2 * STEP, 0, DemotionEnd.STOPPED)


def has_asked(kernel: Kernel, times: int) -> bool:
    return len(kernel.asked) >= times


async def test_no_faster_than_allowed(kernel: Kernel) -> None:
    clock = ManualClock()
    running = asyncio.create_task(kernel.pod(clock=clock, rate=STEP).run(4 * STEP))
    for steps in range(1, 5):
        await until(partial(has_asked, kernel, steps), "the next step")
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(kernel.asked) == steps
        await clock.advance(1.0)
    assert (await running).moved == 4 * STEP


async def test_a_group_that_vanishes_ends_it(kernel: Kernel) -> None:
    class Gone(Demoted, frozen=True):
        def write(self, name: str, value: str) -> None:
            raise GroupGone("gone")

    pod = kernel.pod()
    pod._group = Gone(kernel.folder, 2)
    assert (await pod.run(MIB * 8)).end is DemotionEnd.GONE


# --- the switch --------------------------------------------------------------------------------------------


def test_what_the_kernel_says(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.switch.write_text("false\n")
    found = kernel.demotion.read()
    assert (found.tiers, found.enabled, found.promotes, found.missing) == (
        {0: 4, 1: 4, 2: 22},
        False,
        False,
        "",
    )
    (kernel.proc / "sys/kernel/numa_balancing").write_text("2\n")
    assert kernel.demotion.read().promotes
    (kernel.proc / "sys/vm/swappiness").write_text("0\n")
    assert "vm.swappiness is 0" in kernel.demotion.read().missing
    (kernel.proc / "sys/vm/swappiness").write_text("1\n")
    monkeypatch.setattr("colocate.host.demotion.os.access", lambda path, mode: False)
    assert "cannot write " in kernel.demotion.read().missing
    kernel.switch.write_text("true\n")
    assert kernel.demotion.read().here, "nothing has to be written"
    kernel.tier(22).with_name("memory_tier22x").mkdir()
    assert kernel.demotion.read().tiers == {0: 4, 1: 4, 2: 22}
    for tier in (4, 22):
        (kernel.tier(tier) / "nodelist").unlink()
    assert "does not report memory tiers" in kernel.demotion.read().missing
    assert kernel.demotion.read().enabled, "reported, because it may have to be put back"
    kernel.switch.unlink()
    assert "5.15" in kernel.demotion.read().missing
    kernel.switch.mkdir()
    assert "5.15" in kernel.demotion.read().missing, "what cannot be read costs no turn"


def test_the_switch_is_written_only_where_it_differs_and_announced(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[str] = []
    monkeypatch.setattr(demotion, "reached", announced.append)
    kernel.switch.write_text("false\n")
    assert not kernel.demotion.switch(False)
    assert kernel.demotion.switch(True)
    assert kernel.demotion.enabled
    assert not kernel.demotion.switch(True)
    assert announced == ["demotion.switched"]
    kernel.switch.unlink()
    with pytest.raises(FileNotFoundError):
        kernel.demotion.switch(True)


def test_a_group_without_swap_accounting_is_read(kernel: Kernel) -> None:
    (kernel.folder / "memory.swap.current").unlink()
    assert msgspec.structs.asdict(kernel.pod()._look())["swap"] == 0
