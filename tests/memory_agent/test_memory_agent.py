"""The agent as a process that sells memory: reloads, refusals, and what it may not do without."""

import json
import signal
from typing import Any

import pytest

from colocate.agent.configuration import build
from colocate.errors import UserError
from colocate.memory.forecast import Koordinator, KoordinatorPolicy
from colocate.memory.settings import Rung
from tests.memory_agent.lab import MIB, MemoryLab, memory_lab
from tests.support.waiting import until

SMALL = {"blockSize": "64Mi", "forecast": {"kind": "instant"}, "coolDown": "1s"}


def logged(lab: MemoryLab, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in lab.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


async def test_sighup_takes_new_figures_and_refuses_another_size_while_blocks_are_held() -> None:
    async with memory_lab() as lab:
        lab.configure(**SMALL)
        await lab.start_agent()
        await lab.until_blocks(3)
        assert lab.agent is not None
        before = (await lab.report()).bar.safety
        lab.create_pod("batch", 3)
        await lab.until_running("batch")
        await lab.until_report(lambda report: report.held == 3, "the pod's blocks")

        lab.configure(**SMALL, margin="20%")
        lab.agent.send_signal(signal.SIGHUP)
        await lab.until_report(lambda report: report.bar.safety > before, "a greater safety")

        lab.configure(**{**SMALL, "blockSize": "128Mi"})
        lab.agent.send_signal(signal.SIGHUP)
        await until(lambda: bool(logged(lab, "config.refused")), "the refusal")
        assert "switch colocation off" in logged(lab, "config.refused")[0]["reason"]
        assert (await lab.report()).block_size == 64 * MIB
        assert await lab.stop_agent() == 0

        await lab.start_agent()
        assert lab.agent is not None
        assert await lab.agent.wait() == 2
        assert "while pods hold 3 blocks" in lab.log().splitlines()[-1]
        assert lab.limit("batch") == 192 * MIB, "the pod is held as it was"


async def test_what_waits_for_the_next_start_is_named() -> None:
    async with memory_lab() as lab:
        lab.configure(**SMALL)
        await lab.start_agent()
        await lab.until_blocks(1)
        assert lab.agent is not None
        lab.configure(**{**SMALL, "blockSize": "128Mi", "swap": True})
        lab.agent.send_signal(signal.SIGHUP)
        await until(lambda: bool(logged(lab, "config.reloaded")), "the reload")
        assert logged(lab, "config.reloaded")[0]["at_next_start"] == ["memory.block_size", "memory.swap"]


async def test_a_killed_agent_comes_back_with_the_same_ids_holders_and_limits() -> None:
    async with memory_lab() as lab:
        lab.configure(**SMALL)
        await lab.start_agent()
        await lab.until_blocks(3)
        uid = lab.create_pod("batch", 3)
        await lab.until_running("batch")
        await lab.until_report(lambda report: report.held == 3, "the pod's blocks")
        await lab.stop_agent(signal.SIGKILL)
        await until(lambda: lab.healthy() == [], "the kubelet to notice")
        await lab.start_agent()
        await lab.until_blocks(3)
        report = await lab.until_report(lambda report: report.held == 3, "the same holder")
        assert [(pod.uid, pod.blocks) for pod in report.pods] == [(uid, ("CM-0000", "CM-0001", "CM-0002"))]
        assert lab.limit("batch") == 192 * MIB


async def test_a_second_agent_with_the_same_state_is_refused_and_the_first_goes_on() -> None:
    async with memory_lab() as lab:
        lab.configure(**SMALL)
        await lab.start_agent()
        await lab.until_blocks(1)
        first = lab.agent
        assert first is not None
        await lab.start_agent()
        second, lab.agent = lab.agent, first
        assert second is not None
        assert await second.wait() == 2
        assert "another agent works with" in lab.log(), "the first logs there, too, meanwhile"
        before = (await lab.report()).at
        await lab.until_report(lambda report: report.at > before, "another turn of the first")
        assert await lab.stop_agent() == 0


async def test_without_a_cluster_memory_cannot_be_sold() -> None:
    async with memory_lab() as lab:
        lab.configure(kubeconfig=str(lab.root / "nowhere"))
        await lab.start_agent()
        assert lab.agent is not None
        assert await lab.agent.wait() == 2
        assert "nowhere" in lab.log()


async def test_a_stored_state_that_cannot_be_read_is_not_written_over() -> None:
    async with memory_lab() as lab:
        lab.configure()
        (lab.root / "state").mkdir()
        file = lab.root / "state" / "memory-state.json"
        file.write_text('{"version": 99}')
        await lab.start_agent()
        assert lab.agent is not None
        assert await lab.agent.wait() == 2
        assert "has version 99" in lab.log()
        assert file.read_text() == '{"version": 99}'


def refusal(memory: str) -> str:
    with pytest.raises(UserError) as refused:
        build(f"version: 1\nmemory: {memory}".encode(), "agent.yaml")
    return str(refused.value)


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("{blockSize: 1Ki}", "memory: block size is 1024 bytes; give at least 1Mi"),
        (
            "{blockSize: lots}",
            "memory.blockSize: 'lots' is not an amount of memory; write it like 512Mi or 2Gi",
        ),
        ("{margin: 120%}", "memory: margin is 1.2; give a share below 1"),
        ("{margin: much}", "memory.margin: 'much' is not a share; write it like 10% or 0.1"),
        ("{refresh: 0}", "memory.refresh: 0s is out of range; choose 1s to 1m"),
        ("{without: [withdraw]}", "the rung 'withdraw' cannot be left out"),
        (
            "{without: [sqeeze]}",
            "memory.without[0]: 'sqeeze' is not known here; choose one of withdraw, reclaim",
        ),
        ("{cgroupRoot: /kubepods}", "memory.cgroupRoot: '/kubepods' is a path below the top"),
        ("{stateFolder: here}", "memory.stateFolder: 'here' is not an absolute path"),
        ("{farNodes: [-1]}", "memory.farNodes[0]: -1 is not a NUMA node"),
        ("{resource: memory}", "memory: resource is 'memory', but it needs a domain"),
        ("{forecast: {kind: oracle}}", "choose one of instant, window-max, koordinator"),
        ("{migrationRate: 0}", "memory.migrationRate: 0 bytes a second; give at least 1Mi"),
        ("{moveExpiry: 5s}", "memory.moveExpiry: 5s is out of range; choose 1m to 168h"),
    ],
)
def test_what_is_wrong_with_the_memory_section_is_one_sentence(memory: str, said: str) -> None:
    assert said in refusal(memory)


def test_the_memory_section_becomes_settings() -> None:
    text = """
        {enabled: true, margin: 15%, without: [far], farNodes: [2],
         forecast: {kind: koordinator, policy: request, threshold: 70%}}
    """
    settings = build(f"version: 1\nmemory: {text}".encode(), "agent.yaml").config.memory.settings()
    assert settings.forecast == Koordinator(policy=KoordinatorPolicy.REQUEST, threshold=70.0)
    assert (settings.margin, settings.without, settings.far_nodes) == (0.15, (Rung.FAR,), (2,))
