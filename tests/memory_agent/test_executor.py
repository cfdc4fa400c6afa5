"""Jobs that take longer than a turn, on groups made of files: how they end, and what ends them."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from colocate.clock import ManualClock
from colocate.errors import Unavailable
from colocate.host.memory_group import MemoryGroup
from colocate.memory.actions import (
    ActionOutcome,
    ActionResult,
    Demote,
    Evict,
    MovePages,
    PodRef,
    ReturnPages,
    SwitchDemotion,
)
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.executor import Executor
from colocate.memory.agent.jobs import Jobs
from colocate.memory.agent.machine import Machine
from colocate.memory.agent.pod_moves import PodMoves
from colocate.memory.agent.pod_pages import pressure_of

POD = PodRef("u", "default", "batch")
MOVE = MovePages(pod=POD, sources=(0,), targets=(1,), bytes=1, reason="")
BACK = ReturnPages(pod=POD, sources=(1,), targets=(0,), bytes=1, reason="")


class FakeJob:
    """A job that ends when told."""

    def __init__(self, outcome: ActionOutcome | Exception) -> None:
        self.outcome = outcome
        self.begun = 0
        self.cancelled = False
        self.end = asyncio.Event()

    async def __call__(self) -> ActionOutcome:
        self.begun += 1
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_job_that_is_under_way_is_not_begun_again_and_is_reported_once() -> None:
    reported: list[ActionOutcome] = []
    jobs = Jobs(reported.append)
    job = FakeJob(ActionOutcome(MOVE, ActionResult.DONE))
    for _ in range(3):
        jobs.start(MOVE, job)
        await settled()
    job.end.set()
    await settled()
    assert job.begun == 1
    assert reported == [ActionOutcome(MOVE, ActionResult.DONE)]
    assert not jobs.any


async def test_the_reverse_of_a_job_ends_it() -> None:
    reported: list[ActionOutcome] = []
    jobs = Jobs(reported.append)
    away, back = (
        FakeJob(ActionOutcome(MOVE, ActionResult.DONE)),
        FakeJob(ActionOutcome(BACK, ActionResult.DONE)),
    )
    jobs.start(MOVE, away)
    await settled()
    jobs.start(BACK, back)
    back.end.set()
    await settled()
    assert away.cancelled
    assert reported == [ActionOutcome(BACK, ActionResult.DONE)]


async def test_a_pod_that_goes_ends_what_is_done_to_it() -> None:
    jobs = Jobs(lambda outcome: None)
    job = FakeJob(ActionOutcome(MOVE, ActionResult.DONE))
    jobs.start(MOVE, job)
    await settled()
    jobs.keep_only(frozenset({"another"}))
    await settled()
    assert job.cancelled
    assert not jobs.any


async def test_jobs_of_one_kind_are_ended_and_seen_to_end_and_others_go_on() -> None:
    jobs = Jobs(lambda outcome: None)
    away = FakeJob(ActionOutcome(MOVE, ActionResult.DONE))
    demote = Demote(pod=PodRef("v", "default", "other"), sources=(0,), leave={1: 0}, bytes=1, reason="")
    demoting = FakeJob(ActionOutcome(demote, ActionResult.DONE))
    jobs.start(MOVE, away)
    jobs.start(demote, demoting)
    await settled()
    await jobs.end(Demote)
    assert (away.cancelled, demoting.cancelled) == (False, True)
    assert jobs.is_busy("u")
    assert not jobs.is_busy("v")
    await jobs.close()


class OneGroup:
    """A machine with a switch, and nothing else that is asked."""

    def __init__(self, demotion: object) -> None:
        self.demotion = demotion


class Switch:
    """The kernel's, as a test wants it."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error
        self.written: list[bool] = []

    def switch(self, on: bool) -> bool:
        if self.error:
            raise self.error
        self.written.append(on)
        return True


def executor(switch: Switch) -> Executor:
    machine = cast(Machine, OneGroup(switch))
    return Executor(
        machine, cast(ClusterView, None), cast(PodMoves, None), ManualClock(), rate=1, most_pressure=1
    )


async def test_the_switch_is_put_back_only_when_no_step_of_a_demotion_is_under_way() -> None:
    switch = Switch()
    hands = executor(switch)
    demote = Demote(pod=POD, sources=(0,), leave={1: 0}, bytes=1, reason="")
    step, ended = asyncio.Event(), []

    async def job() -> ActionOutcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await step.wait()
            ended.append(list(switch.written))
            raise
        raise AssertionError

    hands._jobs.start(demote, job)
    await settled()
    off = asyncio.create_task(
        hands.carry_out([SwitchDemotion(on=False, reason="")], frozenset({"u"}), off=False)
    )
    await settled()
    assert switch.written == []
    step.set()
    [outcome] = await off
    assert (outcome.result, switch.written, ended) == (ActionResult.DONE, [False], [[]])


@pytest.mark.parametrize("on", [True, False])
async def test_a_switch_that_may_not_be_written_is_a_failure_and_no_end_of_the_turn(on: bool) -> None:
    hands = executor(Switch(PermissionError(13, "Permission denied")))
    action = SwitchDemotion(on=on, reason="")
    assert await hands.carry_out([action], frozenset(), off=False) == [
        ActionOutcome(action, ActionResult.FAILED, "[Errno 13] Permission denied")
    ]


@pytest.mark.parametrize("error", [OSError("odd"), Unavailable("away")])
async def test_a_job_that_fails_is_reported_as_failed(error: Exception) -> None:
    reported: list[ActionOutcome] = []
    jobs = Jobs(reported.append)
    evict = Evict(pod=POD, reason="")
    job = FakeJob(error)
    jobs.start(evict, job)
    job.end.set()
    await settled()
    assert reported == [ActionOutcome(evict, ActionResult.FAILED, str(error))]


def test_pressure_is_that_of_the_pod_and_none_where_it_is_not_measured(tmp_path: Path) -> None:
    group = MemoryGroup(tmp_path, 2)
    assert pressure_of(group) == 0.0
    lines = [f"{kind} avg10=12.50 avg60=1.00 avg300=0.10 total=99\n" for kind in ("some", "full")]
    (tmp_path / "memory.pressure").write_text("".join(lines))
    assert pressure_of(group) == 12.5
