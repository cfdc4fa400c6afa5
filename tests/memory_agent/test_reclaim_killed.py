"""On cgroup v1 a reclaim lowers the pod's limit and puts it back; an agent killed in between does no harm."""

import signal
from collections.abc import AsyncIterator

import pytest
import yaml

from colocate.errors import ColocateError
from colocate.host import cgroups
from tests.memory_agent.agent_process import Process
from tests.memory_agent.driving import BLOCK, MIB
from tests.memory_agent.eating import Eater
from tests.memory_agent.lab import MemoryLab, memory_lab
from tests.memory_agent.small_machine import SYSTEM
from tests.support.memory_probe import oom_kills
from tests.support.waiting import until


@pytest.fixture
async def lab() -> AsyncIterator[MemoryLab]:
    if cgroups.find_tree().version != 1:
        pytest.skip("cgroup v2 reclaims without touching a limit")
    async with memory_lab() as made:
        yield made


async def lowered(lab: MemoryLab) -> Eater:
    """A pod of 4 blocks whose limit an agent has lowered, and then been killed."""
    async with Process(lab, 1) as agent:
        assert await agent.hears("ok")
        assert await agent.tell("turn")
        await until(lambda: len(lab.healthy()) >= 8, "blocks")
        batch, other = Eater(lab, "batch", 4), Eater(lab, "other", 4)
        await batch.ready()
        await other.ready()
        await batch.anon(20 * MIB)
        await batch.cache(24 * MIB)
        await other.anon(48 * MIB)
        assert await agent.tell("turn")
        assert lab.limit("batch") == 4 * BLOCK
        assert await agent.tell(f"system {SYSTEM + 150 * MIB}")
        assert await agent.tell("die cgroup.memory.limit_in_bytes")
        assert not await agent.tell("turn", 4), "it is killed in the middle of a reclaim"
        assert agent.exit_code == -signal.SIGKILL
    assert (lab.limit("batch") or 0) < 4 * BLOCK
    return batch


async def test_a_pod_that_allocates_under_the_lowered_limit_lives(lab: MemoryLab) -> None:
    batch = await lowered(lab)
    await batch.anon(14 * MIB)
    assert oom_kills(lab.group("batch")) == 0
    assert (lab.limit("batch") or 0) < 4 * BLOCK, "it is not raised yet"


async def test_the_successor_puts_the_limit_back_before_it_has_looked_at_anything(lab: MemoryLab) -> None:
    await lowered(lab)
    lab.configure(blockSize="16Mi", kubeconfig=str(away(lab)))
    await lab.start_agent()
    await until(lambda: lab.limit("batch") == 4 * BLOCK, "the limit to be put back")
    with pytest.raises(ColocateError):
        await lab.report()


def away(lab: MemoryLab) -> object:
    """A kubeconfig of an API server that does not answer."""
    config = yaml.safe_load((lab.root / "kubeconfig").read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    file = lab.root / "away"
    file.write_text(yaml.safe_dump(config))
    return file
