"""Memory comes back in bounded steps, and a limit that was lowered for it never stays so."""

import asyncio
import errno
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from colocate.host import reclaim as module
from colocate.host.memory_group import GroupGone, MemoryGroup
from colocate.host.reclaim import Reclaimed, ReclaimEnd, reclaim

MIB = 1 << 20
_USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}


class Reclaiming(MemoryGroup, frozen=True):
    """A group of whose memory the kernel can reclaim all but `held`."""

    held: int = 0
    writes: list[tuple[str, int]] = []  # noqa: RUF012 -- a field of the struct, copied for each

    def write(self, name: str, value: str) -> None:
        self.writes.append((name, int(value)))
        usage = self.usage
        if name == "memory.reclaim":
            left = max(self.held, usage - int(value))
            failed = errno.EAGAIN if usage - left < int(value) else 0
        else:
            left = min(usage, max(self.held, int(value)))
            failed = errno.EBUSY if left > int(value) else 0
        (self.folder / _USAGE[self.version]).write_text(str(left))
        if failed:
            raise OSError(failed, "not all of it")
        super().write(name, value)


def group_of(folder: Path, version: int, usage: int, held: int) -> Reclaiming:
    (folder / _USAGE[version]).write_text(str(usage))
    (folder / "memory.reclaim").write_text("")
    (folder / "memory.limit_in_bytes").write_text(f"{1 << 40}\n")
    return Reclaiming(folder, version, held)


@settings(max_examples=60)
@given(
    version=st.sampled_from([1, 2]),
    usage=st.integers(0, 400 * MIB),
    held=st.integers(0, 400 * MIB),
    amount=st.integers(0, 400 * MIB),
    step=st.integers(MIB, 64 * MIB),
)
@example(version=1, usage=0, held=0, amount=1, step=MIB)
def test_as_much_as_there_is_comes_back_in_steps_and_the_limit_is_as_before(
    version: int, usage: int, held: int, amount: int, step: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        held = min(usage, held)
        group = group_of(Path(folder), version, usage, held)
        done = asyncio.run(reclaim(group, amount, step=step))
        assert done.amount == usage - group.usage <= amount
        assert (Path(folder) / "memory.limit_in_bytes").read_text().strip() == str(1 << 40)
        if done.end is ReclaimEnd.ENOUGH:
            assert done.amount == amount
        else:
            # A little may be left: the kernel does not search a pod for its last pages.
            assert done.end is ReclaimEnd.NOTHING_LEFT
            assert usage - held < amount
            assert group.usage - held < MIB
        if version == 2:
            assert all(size <= step for _, size in group.writes)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Reclaiming:
    return group_of(tmp_path, request.param, 200 * MIB, 0)


async def test_it_ends_when_told_to(group: Reclaiming) -> None:
    answers = iter([True, True, False])
    done = await reclaim(group, 100 * MIB, step=10 * MIB, go_on=lambda: next(answers))
    assert done == Reclaimed(20 * MIB, ReclaimEnd.STOPPED)


async def test_a_group_that_vanishes_ends_it(group: Reclaiming, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter([None, None])
    real = module.reclaim_once

    def vanishing(of: MemoryGroup, size: int, leave: int) -> module.ReclaimStep:
        try:
            next(steps)
        except StopIteration:
            raise GroupGone("gone") from None
        return real(of, size, leave)

    monkeypatch.setattr(module, "reclaim_once", vanishing)
    done = await reclaim(group, 100 * MIB, step=10 * MIB)
    assert done == Reclaimed(20 * MIB, ReclaimEnd.GONE)


async def test_cancelled_it_finishes_its_step(group: Reclaiming, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    real = module.reclaim_once

    def slow(of: MemoryGroup, size: int, leave: int) -> module.ReclaimStep:
        loop.call_soon_threadsafe(begun.set)
        go.wait()
        return real(of, size, leave)

    monkeypatch.setattr(module, "reclaim_once", slow)
    running = asyncio.create_task(reclaim(group, 100 * MIB, step=10 * MIB))
    await begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert group.usage == 190 * MIB
    assert (group.folder / "memory.limit_in_bytes").read_text().strip() == str(1 << 40)


async def test_cache_that_is_to_be_left_on_v1_is_left_whatever_is_asked_for(tmp_path: Path) -> None:
    group = group_of(tmp_path, 1, 200 * MIB, 0)

    class Counting(Reclaiming, frozen=True):
        """The cache of a group that uses nothing else; 60 MiB of it are gone since it was asked for."""

        def read(self, name: str) -> bytes:
            if name != "memory.stat":
                return super().read(name)
            return f"total_rss 0\ntotal_active_file 0\ntotal_inactive_file {self.usage - 60 * MIB}\n".encode()

    done = await reclaim(Counting(group.folder, 1), 200 * MIB, leave=16 * MIB, step=32 * MIB)
    assert done.end is ReclaimEnd.NOTHING_LEFT
    assert 76 * MIB <= group.usage < 77 * MIB


@pytest.mark.parametrize(
    ("version", "there", "raised"), [(1, 20, True), (1, 64, False), (1, 80, False), (2, 20, False)]
)
def test_only_a_limit_that_was_left_lowered_is_put_back(
    tmp_path: Path, version: int, there: int, raised: bool
) -> None:
    group = group_of(tmp_path, version, 10 * MIB, 0)
    limit = tmp_path / "memory.limit_in_bytes"
    limit.write_text(f"{there * MIB}\n")
    assert module.put_back(group, 64 * MIB) is raised
    assert int(limit.read_text()) == (64 if raised else there) * MIB


async def test_an_error_of_another_kind_is_not_taken_for_an_answer(group: Reclaiming) -> None:
    def broken(of: MemoryGroup, name: str, value: str) -> None:
        raise OSError(errno.EIO, "broken")

    broken_group = type("Broken", (Reclaiming,), {"write": broken}, frozen=True)(group.folder, group.version)
    with pytest.raises(OSError, match="broken"):
        await reclaim(broken_group, MIB)
