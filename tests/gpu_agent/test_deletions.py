"""How many pods an agent deletes within an hour, over all its lives."""

from collections.abc import Mapping
from pathlib import Path

from colocate.clock import ManualClock
from colocate.gpus import DOSLAB, AnswerKey, AnswerState, GpuAnswer, GpuAnswers, GpuPod, GpuSettings
from colocate.gpus.agent.notices import OF_A_CONTROLLER, GpuNotices
from colocate.gpus.agent.pods import NodePods
from colocate.gpus.agent.started import StartedContainers
from tests.gpus.node import TWO, gpu_pod


class Condemned(NodePods):
    """A node with one pod of a ReplicaSet that must not start, and another as soon as that one is deleted."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.told: list[str] = []

    @property
    def pod(self) -> GpuPod:
        return gpu_pod(f"p{len(self.deleted)}", 4, owner="ReplicaSet")

    @property
    def pods(self) -> Mapping[str, GpuPod]:
        return {self.pod.uid: self.pod}

    def tell(self, pod: GpuPod, reason: str, message: str, *, warning: bool = True) -> None:
        self.told.append(message)

    async def delete(self, pod: GpuPod) -> None:
        self.deleted.append(pod.uid)

    @property
    def answers(self) -> GpuAnswers:
        key = AnswerKey(self.pod.uid, DOSLAB.memory, "c0")
        condemned = GpuAnswer(
            key=key,
            pod=self.pod.key,
            ids=frozenset("a"),
            gpus=("GPU-aaaa",),
            memory=4,
            state=AnswerState.CONDEMNED,
            reason="it must not start",
        )
        return GpuAnswers().having(condemned)


async def live(pods: Condemned, folder: Path | None, clock: ManualClock) -> None:
    """One life of an agent, which dies right after the first deletion that it makes."""
    started = StartedContainers(folder)
    started.load()

    async def keep() -> None:
        started.save(frozenset(), {}, notices.deletions)

    notices = GpuNotices(pods, clock, started.deletions, keep)
    await notices.see_to_all(pods.answers, TWO, GpuSettings())


async def test_an_agent_that_dies_after_each_deletion_makes_no_more_of_them(tmp_path: Path) -> None:
    pods, clock = Condemned(), ManualClock()
    for _ in range(20):
        await live(pods, tmp_path, clock)
        await clock.advance(10)
    assert len(pods.deleted) == OF_A_CONTROLLER
    assert "it is not deleted, because 3 pods of its ReplicaSet were within the hour" in pods.told[-1]
    await clock.advance(3600)
    await live(pods, tmp_path, clock)
    assert len(pods.deleted) == OF_A_CONTROLLER + 1


async def test_a_file_of_an_agent_that_kept_no_deletions_is_read(tmp_path: Path) -> None:
    (tmp_path / "gpus-started.json").write_text('{"started": [], "due": []}')
    started = StartedContainers(tmp_path)
    assert started.load() == (frozenset(), {})
    assert not started.deletions
    assert not started.trouble
