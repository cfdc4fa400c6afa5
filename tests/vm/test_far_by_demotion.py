"""The far rung by the kernel's own demotion: anonymous and tmpfs memory, fewer rights, a switch that is put back."""

import ctypes
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from colocate.clock import SystemClock
from colocate.doctor.check import Patient
from colocate.doctor.memory_checks import memory
from colocate.host import memory_files
from colocate.host.cgroups import Naming
from colocate.host.demotion import KernelDemotion
from colocate.host.memory_group import MemoryGroup
from colocate.host.page_calls import Kernel
from colocate.host.page_migration import PageMigration
from colocate.kubelet.paths import KubeletPaths
from colocate.memory.actions import Demote, MovePages, ReturnPages
from colocate.memory.decision import MemoryDecision
from colocate.memory.settings import Deadlines, Rung
from colocate.memory.state import MemoryState
from tests.support.memory_probe import oom_kills
from tests.support.real_pods import MIB, Eater, RealPods, real_pods
from tests.vm.dying_agents import Agent
from tests.vm.nodes import BATCH, SETTINGS, WEB, Node, far_node, running_node, state_store

pytestmark = [pytest.mark.vm("mini"), pytest.mark.timeout(300)]

KERNEL = KernelDemotion()
TMPFS = Path("/dev/shm/colocated")
DEMOTES = msgspec.structs.replace(
    SETTINGS,
    demotion=True,
    deadlines=Deadlines(withdraw=0, reclaim=0, throttle=0, far=0),
    without=(Rung.EVICT, Rung.RECREATE),
    cool_down=0.0,
    undo_pause=0.0,
)
CLONE_NEWPID = 0x20000000
PR_CAPBSET_DROP, CAPABILITY_VERSION = 24, 0x20080522


@pytest.fixture(autouse=True)
def tmpfs() -> Iterator[Path]:
    """A file in memory; and the kernel's switch is as it was."""
    assert not is_on()
    yield TMPFS
    TMPFS.unlink(missing_ok=True)
    KERNEL.switch(False)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, DEMOTES) as made:
        yield made


def is_on() -> bool:
    """The kernel's switch."""
    return bool(KERNEL.enabled)


def on_far_node(group: MemoryGroup) -> tuple[int, int]:
    """Anonymous memory and tmpfs of a group on the far node, by memory.numa_stat."""
    data = group.read("memory.numa_stat")
    anon, shmem = (memory_files.numa_row(data, row)[far_node().id] for row in (b"anon", b"shmem"))
    return anon, shmem


def drop_rights() -> None:
    """No capability is left to this process, and none can come back."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    assert libc.capset(header, (ctypes.c_uint32 * 6)()) == 0


@contextmanager
def children_in_their_own_pid_namespace() -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    ours = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        assert libc.unshare(CLONE_NEWPID) == 0, os.strerror(ctypes.get_errno())
        yield
    finally:
        assert libc.setns(ours, CLONE_NEWPID) == 0
        os.close(ours)


def node_without_rights(pods: RealPods, folder: Path) -> Node:
    """Made in the agent's own process."""
    drop_rights()
    return Node(pods, folder, DEMOTES)


async def pressed(node: Node, tmpfs: Path) -> tuple[Eater, Eater]:
    """Online work wants 60 of the 80 MiB that a colocated process has, half of them in tmpfs."""
    batch, web = await node.side_by_side(anon=40 * MIB)
    await batch.cache(40 * MIB, tmpfs)
    await web.bulk((await node.turn()).balance.slack + 60 * MIB)
    return batch, web


async def until_demoted(node: Node) -> MemoryDecision:
    """Turns, until memory is to go."""
    for _ in range(6):
        decision = await node.turn()
        if any(isinstance(action, Demote) for action in decision.plan.actions):
            return decision
    raise AssertionError(f"no memory is to go: {decision.plan.notes}")


async def until_restored(node: Node) -> list[MemoryDecision]:
    calm: list[MemoryDecision] = []
    while len(calm) < 10 and (not calm or not node.part.report.restored):
        calm.append(await node.turn())
    assert node.part.report.restored, calm[-1].state.ladder
    return calm


async def test_an_agent_without_capabilities_and_host_pids_has_anonymous_and_tmpfs_memory_demoted(
    tmp_path: Path, tmpfs: Path
) -> None:
    async with real_pods(Naming.SYSTEMD) as pods:
        group, online = pods.create(BATCH), pods.create(WEB)
        batch, web = await pods.run(BATCH), await pods.run(WEB)
        agent = Agent(partial(node_without_rights, pods, tmp_path), 1000.0)
        with children_in_their_own_pid_namespace():
            await agent.__aenter__()
        try:
            await _turn(agent)
            await batch.anon(40 * MIB)
            await batch.cache(40 * MIB, tmpfs)
            held = pods.read(BATCH)
            # Near memory is 512 MiB, of which 150 are the system's and some 150 the safety's.
            await web.bulk(210 * MIB)
            for _ in range(12):
                state = await _turn(agent)
                if sum(on_far_node(group)) >= 60 * MIB:
                    break
            anon, shmem = on_far_node(group)
            assert anon >= 16 * MIB, state.ladder
            assert shmem >= 16 * MIB
            after = pods.read(BATCH)
            assert after.anon + after.shmem >= held.anon + held.shmem - MIB, "moved, not dropped"
            assert [oom_kills(each) for each in (group, online)] == [0, 0]
            assert sum(on_far_node(online)) < MIB, "nothing is done to a pod that holds no block"

            await web.free()
            for _ in range(4):
                state = await _turn(agent)
            assert state.ladder.rung is None
            assert not is_on()
            assert not state.ladder.demotion_is_ours
        finally:
            await agent.__aexit__(None, None, None)


async def _turn(agent: Agent) -> MemoryState:
    state = await agent.turn()
    assert state is not None
    return state


async def test_move_pages_leaves_most_of_tmpfs_where_it_is_and_demotion_does_not(
    node: Node, tmpfs: Path
) -> None:
    batch, _ = await node.side_by_side(anon=MIB)
    await batch.cache(40 * MIB, tmpfs)
    group, far = node.pods.create(BATCH), far_node()
    near = frozenset(each.id for each in node.read().numa if each.has_cpus)
    await PageMigration(
        group, sources=near, target=far.id, rate=1 << 34, clock=SystemClock(), calls=Kernel()
    ).run()
    assert on_far_node(group)[1] < 4 * MIB
    await pressed_by(node, 40 * MIB)
    for _ in range(8):
        if on_far_node(group)[1] < 30 * MIB:
            await node.turn()
    assert on_far_node(group)[1] >= 30 * MIB


async def pressed_by(node: Node, amount: int) -> None:
    web = await node.pods.run(WEB)
    await web.bulk((await node.turn()).balance.slack + amount)


async def test_off_puts_the_switch_back_and_brings_back_what_processes_have_mapped(
    node: Node, tmpfs: Path
) -> None:
    batch, web = await pressed(node, tmpfs)
    decision = await until_demoted(node)
    group = node.pods.create(BATCH)
    assert is_on()
    assert state_store(node.folder).load().ladder.demotion_is_ours, "remembered before it is done"
    assert not [action for action in decision.plan.actions if isinstance(action, MovePages)]
    assert sum(on_far_node(group)) >= 30 * MIB

    await web.free()
    node.part.switch(True)
    calm = await until_restored(node)
    assert not is_on()
    assert any(isinstance(action, ReturnPages) for each in calm for action in each.plan.actions)
    assert on_far_node(group)[0] < 4 * MIB, "by move_pages, as this process has that right"
    await batch.anon(4096)


async def test_a_switch_that_was_on_before_stays_on_after_off(node: Node, tmpfs: Path) -> None:
    KERNEL.switch(True)
    _, web = await pressed(node, tmpfs)
    decision = await until_demoted(node)
    assert not decision.state.ladder.demotion_is_ours
    await web.free()
    node.part.switch(True)
    await until_restored(node)
    assert is_on()


async def test_an_agent_that_is_stopped_puts_the_switch_back(node: Node, tmpfs: Path) -> None:
    await pressed(node, tmpfs)
    await until_demoted(node)
    assert is_on()
    await node.part._demotion_off()
    assert not is_on()


async def test_a_far_node_that_is_almost_full_is_left_its_reserve_and_page_cache_is_not_dropped_instead(
    node: Node, tmpfs: Path
) -> None:
    batch, _ = await pressed(node, tmpfs)
    group, far = node.pods.create(BATCH), far_node()
    filler, reserve = await node.pods.run_outside(), far.total // 20
    await filler.bound(far.free - reserve - 24 * MIB, far.id)
    await until_demoted(node)
    file = node.pods.read(BATCH).file
    await node.turns(4)
    assert far_node().free >= reserve - 4 * MIB
    assert 6 * MIB <= sum(on_far_node(group)) <= 48 * MIB
    assert node.pods.read(BATCH).file >= file // 2
    assert oom_kills(group) == 0
    await batch.anon(4096)
    await filler.anon(MIB)


async def test_the_doctor_says_which_ways_to_far_memory_there_are(tmp_path: Path) -> None:
    assert await _told("far by move_pages", tmp_path) == "by move_pages"
    assert "possible, without rights over processes" in await _told("far by demotion", tmp_path)
    swappiness = Path("/proc/sys/vm/swappiness")
    before = swappiness.read_text()
    swappiness.write_text("0")
    try:
        assert "vm.swappiness is 0" in await _told("far by demotion", tmp_path)
    finally:
        swappiness.write_text(before)


async def _told(part: str, root: Path) -> str:
    """What the doctor says of one part of selling memory."""
    patient = Patient(KubeletPaths(root), root / "agent.sock", "here", SystemClock(), "no cluster")
    told = [each.reason.partition(": ") async for each in memory(patient)]
    return next(reason for name, _, reason in told if name == part)
