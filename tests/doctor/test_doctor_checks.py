"""The doctor's checks themselves: what one is, and what becomes of one that fails or hangs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.doctor.examining import found, patient

from colocate.clock import ManualClock
from colocate.doctor.check import CHECKS, Check, DoctorSection, Patient, check
from colocate.doctor.examination import PATIENCE, chosen, examine
from colocate.doctor.report import CheckResult, CheckVerdict, Examined, absent, good, no_right, warn
from colocate.errors import UserError
from colocate.host.identity import this_node


async def test_a_check_is_one_function(tmp_path: Path) -> None:
    @check(DoctorSection.MACHINE, "fans turn")
    async def fans(patient: Patient) -> AsyncIterator[CheckResult]:
        yield warn(f"{patient.node} is warm", "dust it")

    try:
        assert await found(patient(tmp_path), "fans*") == {"fans turn": (warn("worker is warm", "dust it"),)}
    finally:
        CHECKS.pop()


async def test_a_check_that_fails_or_hangs_is_a_finding_and_stops_no_other(tmp_path: Path) -> None:
    async def breaks(_: Patient) -> AsyncIterator[CheckResult]:
        yield good("so far")
        raise ZeroDivisionError("by zero")

    async def refuses(patient: Patient) -> AsyncIterator[CheckResult]:
        if patient:
            raise UserError("cannot do that")
        yield good("never")

    async def hangs(_: Patient) -> AsyncIterator[CheckResult]:
        await asyncio.Event().wait()
        yield good("never")

    async def works(_: Patient) -> AsyncIterator[CheckResult]:
        yield good("fine")

    clock = ManualClock()
    checks = [Check(DoctorSection.MACHINE, look.__name__, look) for look in (breaks, refuses, hangs, works)]

    async def gather() -> list[Examined]:
        return [e async for e in examine(patient(tmp_path, clock=clock), checks)]

    looking = asyncio.create_task(gather())
    while not looking.done():
        await clock.advance(PATIENCE)
    broken, refused, hung, fine = await looking
    assert [r.verdict for r in broken.results] == [CheckVerdict.GOOD, CheckVerdict.BAD]
    assert "ZeroDivisionError: by zero" in broken.results[1].reason
    assert refused.results[0].reason == "cannot do that"
    assert hung.results[0].reason == "no answer within 30 s"
    assert fine.worst is CheckVerdict.GOOD


async def test_whether_an_agent_runs_behind_a_folder_that_is_shut_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shut(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", shut)
    names = ("agent", "memory evictions")
    [told] = [e async for e in examine(patient(tmp_path), chosen(names))]
    assert told.check == "needs root"
    assert told.results[0].reason == "not checked, or only in part: agent, memory evictions"


async def test_what_this_user_may_not_look_at_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path, **_: object) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    async def looks(patient: Patient) -> AsyncIterator[CheckResult]:
        yield good(str(denied(patient.paths.checkpoint)))

    checks = [Check(DoctorSection.KUBELET, "looks", looks)]
    [one] = [e async for e in examine(patient(tmp_path), checks)]
    assert (one.check, one.results[0].remedy) == ("needs root", "run this as root")
    monkeypatch.setattr(Path, "is_dir", denied)
    [whole] = [e async for e in examine(patient(tmp_path), checks)]
    assert whole.check == "needs root"
    assert whole.results[0].reason == "not checked, or only in part: all of its kubelet"


async def test_that_root_is_needed_is_said_once_for_all_checks(tmp_path: Path) -> None:
    async def half(patient: Patient) -> AsyncIterator[CheckResult]:
        yield good("seen")
        yield no_right()
        yield no_right()

    async def nothing(patient: Patient) -> AsyncIterator[CheckResult]:
        yield no_right()

    checks = [Check(DoctorSection.KUBELET, "half", half), Check(DoctorSection.KUBELET, "nothing", nothing)]
    seen, told = [e async for e in examine(patient(tmp_path), checks)]
    assert (seen.check, len(seen.results)) == ("half", 1)
    assert [result.reason for result in told.results] == ["not checked, or only in part: half, nothing"]
    assert told.worst is CheckVerdict.WARN


def test_what_is_not_available_here_is_no_fault() -> None:
    assert Examined("this machine", "memory", (absent("no far node"),)).worst is CheckVerdict.GOOD
    assert absent("no far node").verdict.sign == "–"


def test_every_check_has_a_name_of_its_own_and_says_what_it_looks_at() -> None:
    checks = chosen()
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.look.__doc__ for check in checks)


def test_a_node_is_named_by_its_pod_or_by_its_machine() -> None:
    assert this_node({"NODE_NAME": "worker-1"}) == "worker-1"
    assert this_node({}) == this_node({}).lower() != ""
