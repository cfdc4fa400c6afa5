"""Real processes in real control groups of this machine, v1 or v2: what is read, limited and reclaimed is so."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.memory_probe import oom_kills
from tests.support.real_pods import MIB, RealPods, real_pods
from tests.support.waiting import until

from colocate.host.cgroups import Naming
from colocate.host.memory_capabilities import memory_capabilities
from colocate.host.memory_group import GroupGone
from colocate.host.memory_limits import GroupLimits, read_limits, set_limits
from colocate.host.node_memory import read_node_memory
from colocate.host.reclaim import ReclaimEnd, reclaim
from colocate.model.pod import QosClass

ONE, OTHER = "5b1c0001-4f0e-9d6c-aaaa-000000000001", "5b1c0002-4f0e-9d6c-aaaa-000000000002"


@pytest.fixture(params=Naming)
async def pods(request: pytest.FixtureRequest) -> AsyncIterator[RealPods]:
    async with real_pods(request.param) as made:
        yield made


async def test_what_a_process_takes_is_read_as_its_pods(pods: RealPods, tmp_path: Path) -> None:
    pods.create(ONE, QosClass.BURSTABLE)
    eater = await pods.run(ONE, QosClass.BURSTABLE)
    before = pods.read(ONE)
    await eater.anon(64 * MIB)
    await eater.cache(32 * MIB, tmp_path / "cache")
    after = pods.read(ONE)
    assert after.qos is QosClass.BURSTABLE
    assert 64 * MIB <= after.anon - before.anon < 70 * MIB
    # Files of a tmpfs are shared memory, and no page cache that could be dropped.
    assert 32 * MIB <= (after.file + after.shmem) - (before.file + before.shmem) < 36 * MIB
    assert after.usage >= after.anon + after.file + after.shmem
    assert after.working_set == after.usage - after.inactive_file
    assert sum((after.numa or {}).values()) >= 64 * MIB
    await eater.free()
    assert pods.read(ONE).anon < 10 * MIB


async def test_pods_come_and_go_under_a_reader_that_keeps_their_files_open(pods: RealPods) -> None:
    reader = pods.reader()
    assert reader.read().pods == ()
    pods.create(ONE)
    pods.create(OTHER, QosClass.GUARANTEED)
    assert {pod.uid for pod in reader.read().pods} == {ONE, OTHER}
    pods.remove(ONE)
    reading = reader.read()
    assert ({pod.uid for pod in reading.pods}, reading.unread) == ({OTHER}, ())
    reader.close()


async def test_a_group_made_again_under_the_same_name_is_read_again(pods: RealPods) -> None:
    pods.create(ONE)
    reader = pods.reader()
    reader.read()
    pods.remove(ONE)
    set_limits(pods.create(ONE), GroupLimits(memory=64 * MIB))
    assert [pod.limit for pod in reader.read().pods] == [64 * MIB]
    reader.close()


async def test_limits_are_set_read_and_put_back(pods: RealPods) -> None:
    group = pods.create(ONE)
    before = read_limits(group)
    assert before == GroupLimits()
    wanted = GroupLimits(memory=64 * MIB, swap=0)
    for limits in (
        wanted,
        GroupLimits(memory=128 * MIB, swap=8 * MIB),
        GroupLimits(memory=32 * MIB, swap=0),
        wanted,
    ):
        done = set_limits(group, limits)
        assert done.written
        assert read_limits(group).memory == limits.memory
        assert done.missing or read_limits(group) == limits
        assert set_limits(group, limits).written == ()
    assert pods.read(ONE).limit == 64 * MIB
    set_limits(group, before)
    assert read_limits(group) == before


async def test_a_process_beyond_its_limit_is_stopped_and_nothing_else_is_touched(pods: RealPods) -> None:
    limited, free = pods.create(ONE), pods.create(OTHER)
    set_limits(limited, GroupLimits(memory=64 * MIB, swap=0))
    greedy, bystander = await pods.run(ONE), await pods.run(OTHER)
    await bystander.anon(100 * MIB)
    with pytest.raises(ProcessLookupError, match="-9"):
        await greedy.anon(128 * MIB)
    assert (oom_kills(limited), oom_kills(free)) == (1, 0)
    assert pods.read(OTHER).anon >= 100 * MIB
    await bystander.anon(MIB)


async def test_v1_refuses_a_limit_below_what_it_cannot_reclaim(pods: RealPods) -> None:
    if pods.tree.version != 1:
        pytest.skip("only cgroup v1 refuses; v2 takes any limit and kills inside the group")
    if read_node_memory().swap_total:
        pytest.skip("with swap, anonymous memory can be reclaimed")
    group = pods.create(ONE)
    eater = await pods.run(ONE)
    await eater.anon(64 * MIB)
    done = set_limits(group, GroupLimits(memory=32 * MIB))
    assert done.busy is not None
    assert done.busy >= 64 * MIB
    assert (done.written, read_limits(group)) == ((), GroupLimits())
    await eater.anon(MIB)


async def test_page_cache_is_reclaimed_in_steps_and_the_limit_is_as_before(
    pods: RealPods, tmp_path: Path
) -> None:
    if not memory_capabilities(pods.tree, below=pods.parent).reclaim.here:
        pytest.skip("this kernel has no memory.reclaim")
    group = pods.create(ONE)
    limits = GroupLimits(memory=512 * MIB, swap=0)
    set_limits(group, limits)
    eater = await pods.run(ONE)
    await eater.cache(64 * MIB, tmp_path / "cache")
    before = pods.read(ONE)
    if before.shmem >= 64 * MIB:
        pytest.skip(f"{tmp_path} is in memory: its files are no page cache that could be reclaimed")
    done = await reclaim(group, 32 * MIB, step=4 * MIB)
    after = pods.read(ONE)
    assert (done.amount, done.end) == (32 * MIB, ReclaimEnd.ENOUGH)
    assert before.file - after.file >= 30 * MIB
    assert after.limit == 512 * MIB
    await eater.anon(MIB)


async def test_memory_that_cannot_be_reclaimed_is_left_and_its_process_lives(pods: RealPods) -> None:
    if read_node_memory().swap_total:
        pytest.skip("with swap, anonymous memory can be reclaimed")
    group = pods.create(ONE)
    eater = await pods.run(ONE)
    await eater.anon(64 * MIB)
    done = await reclaim(group, 64 * MIB, step=4 * MIB)
    assert done.end is ReclaimEnd.NOTHING_LEFT
    assert done.amount < 16 * MIB
    assert pods.read(ONE).anon >= 64 * MIB
    await eater.anon(MIB)


async def test_a_pod_that_ends_under_ones_hands(pods: RealPods) -> None:
    group = pods.create(ONE)
    eater = await pods.run(ONE)
    eater.process.kill()
    await eater.ends()
    await until(lambda: not (group.folder / "main/cgroup.procs").read_text(), "the group is empty")
    pods.remove(ONE)
    with pytest.raises(GroupGone):
        set_limits(group, GroupLimits(memory=MIB))
    assert (await reclaim(group, MIB)).end is ReclaimEnd.GONE


_READ_ONLY = """
import sys
from pathlib import Path
from colocate.errors import Unavailable
from colocate.host import cgroups
from colocate.host.memory_capabilities import memory_capabilities
from colocate.host.memory_limits import GroupLimits, set_limits
from colocate.host.pod_memory import PodMemoryReader
tree, below, uid = cgroups.find_tree(), Path(sys.argv[1]), sys.argv[2]
print(memory_capabilities(tree, below=below).limits.found)
reader = PodMemoryReader(tree, below=below)
print(len(reader.read().pods))
try:
    set_limits(reader.find(uid).group, GroupLimits(memory=1 << 20))
except Unavailable as error:
    print(error)
"""


async def test_control_groups_that_are_read_only_are_read_and_the_remedy_is_said(pods: RealPods) -> None:
    pods.create(ONE)
    mount = pods.tree.roots["memory"]
    script = f'mount --bind -o ro {mount} {mount} && mount -o remount,ro,bind {mount} && exec "$@"'
    process = await asyncio.create_subprocess_exec(
        *[
            "unshare",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            sys.executable,
            "-c",
            _READ_ONLY,
            str(pods.parent),
            ONE,
        ],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    if b"unshare" in errors or b"mount:" in errors:
        pytest.skip(f"no read-only mount can be made here: {errors.decode()}")
    found, count, refused = out.decode().splitlines()
    assert "is mounted read-only; mount the host's /sys/fs/cgroup with rw" in found
    assert count == "1"
    assert "mounted read-only here" in refused
    assert read_limits(pods.create(ONE)) == GroupLimits()


async def test_what_this_machine_allows_is_said_with_reasons(pods: RealPods) -> None:
    pods.create(ONE)
    found = memory_capabilities(pods.tree, below=pods.parent)
    assert found.pods.here
    assert str(pods.parent) in found.pods.found
    assert str(pods.naming) in found.pods.found
    assert found.limits.here
    assert found.controls.cgroup == pods.tree.version
    assert found.controls.writable
    assert found.throttle.here is (pods.tree.version == 2)
