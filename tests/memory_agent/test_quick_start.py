"""The quick start of seed 000, with real processes on this machine: blocks on the node, a pod held from its start."""

from colocate.lab.cluster import MACHINE
from tests.memory_agent.lab import NAMESPACE, RESOURCE, memory_lab
from tests.support.waiting import until

THREE_BLOCKS = 1_610_612_736
# Shells drop variables whose names they do not like, which the process still has.
SAY_IDS = (
    f"echo \"ids $(tr '\\0' '\\n' < /proc/$$/environ | grep ^{RESOURCE}=)\"; "
    "sh -c 'echo \"$COLOCATION_MEMORY_BLOCKS has $COLOCATION_MEMORY_BYTES\"'; exec sleep infinity"
)


async def test_a_pod_with_three_blocks_finds_its_limit_set_when_its_process_starts() -> None:
    async with memory_lab() as lab:
        lab.configure(namespaces=[NAMESPACE])
        await lab.start_agent()
        await lab.until_blocks(3)
        uid = lab.create_pod("test-pod", 3, SAY_IDS)
        await lab.until_running("test-pod")
        await until(lambda: len(lab.said("test-pod")) == 3, "its first words")
        limit, ids, variables = lab.said("test-pod")
        assert limit == f"limit {THREE_BLOCKS}"
        assert ids == f"ids {RESOURCE}=CM-0000,CM-0001,CM-0002"
        assert variables == f"CM-0000,CM-0001,CM-0002 has {THREE_BLOCKS}"
        assert lab.held() == {uid: {"CM-0000", "CM-0001", "CM-0002"}}
        assert lab.allocatable() >= 3
        report = await lab.report()
        assert report.node == MACHINE
        assert await lab.stop_agent() == 0
