"""What goes wrong around a placer: its own code, the clock, the disk, its file, the runtime, the configuration."""

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colocate.clock import ManualClock
from colocate.cpus import CpuAllocator, CpuMode
from colocate.cpus.placer import upkeep
from colocate.cpus.placer.placements import Placements
from colocate.cpus.placer.placer import Placer
from colocate.cpus.placer.section import CpuPoolSection
from colocate.cpus.placer.store import PlacementStore
from colocate.errors import UserError
from colocate.model.container import CpuPin, RuntimeContainer
from colocate.model.cpu_shapes import machine
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass
from colocate.runtime.events import Placing
from colocate.telemetry import CPUS_DRIFT, CPUS_PASSED, CPUS_STATE_STORED
from tests.placer.fake_runtime import GIB, resources
from tests.placer.placing import SECTION, SHAPE, PlacingTest, manual
from tests.support.broken_disk import broken
from tests.support.logs import logged
from tests.support.waiting import until

WHOLE = resources(4000, 4000, GIB)


def passed(reason: str) -> float:
    return float(CPUS_PASSED.labels(reason)._value.get())


async def with_a_database(test: PlacingTest) -> str:
    await test.runtime.connect(test.placer)
    return await test.runtime.create(test.placer, test.runtime.sandbox("db"), "main", WHOLE)


async def test_a_policy_that_fails_lets_the_container_through_on_the_shared_cpus_and_the_audit_places_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = PlacingTest(tmp_path)
    await with_a_database(test)
    before = passed("failure")
    with monkeypatch.context() as patch:
        patch.setattr(Placements, "create", _failing_unless_passed(Placements.create))
        web = test.runtime.sandbox("web")
        own = await test.runtime.create(test.placer, web, "main", WHOLE)
    assert passed("failure") == before + 1
    assert test.runtime.cpus(own) == "2-7,10-15", "the shared CPUs, without exclusive ones"
    test.check()
    await test.upkeep.audit()
    assert test.runtime.cpus(own) == "2-3,10-11"
    test.check()


def _failing_unless_passed(real: Any) -> Any:
    def create(self: Any, sandbox: Any, container: Any, beside: Any = (), passed: str = "") -> Any:
        if not passed:
            raise ZeroDivisionError("a fault of the policy")
        return real(self, sandbox, container, beside, passed)

    return create


async def test_a_decision_that_takes_too_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = manual(tmp_path)
    assert isinstance(test.clock, ManualClock)
    await with_a_database(test)
    ends = threading.Event()
    real = Placements.create

    def slow(self: Any, sandbox: Any, container: Any, beside: Any = (), passed: str = "") -> Any:
        if not passed:
            ends.wait(60)
        return real(self, sandbox, container, beside, passed)

    before = passed("deadline")
    monkeypatch.setattr(Placements, "create", slow)
    sandbox = test.runtime.sandbox("web")
    about = RuntimeContainer(sandbox_id=sandbox.id, name="main", resources=WHOLE)
    asked = asyncio.create_task(test.placer.create(sandbox, about))
    await test.clock.until_someone_sleeps()
    await test.clock.advance(0.09)
    assert not asked.done()
    await test.clock.advance(0.02)
    assert await asked == Placing(CpuPin(cpus=CpuSet.parse("2-7,10-15")))
    assert passed("deadline") == before + 1
    ends.set()
    monkeypatch.undo()
    test.check()


async def test_a_resize_without_a_decision_goes_through_and_the_audit_decides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = PlacingTest(tmp_path)
    own = await with_a_database(test)
    before = passed("failure")
    with monkeypatch.context() as patch, logged() as logs:
        patch.setattr(CpuAllocator, "resize", _failing)
        assert await test.runtime.update(test.placer, own, resources(8000, 8000, GIB))
    assert passed("failure") == before + 1
    assert [each["container"] for each in logs if each["event"] == "placement.passed"] == ["main"]
    assert test.runtime.cpus(own) == "0-1,8-9", "it keeps what it has"
    await test.upkeep.audit()
    assert test.runtime.cpus(own) == "0-3,8-11", "and has what it asks for within a minute"
    test.check()
    test.agree()


def _failing(*_: object, **__: object) -> object:
    raise ZeroDivisionError("a fault of the policy")


async def test_who_was_let_through_has_all_cpus_again_when_placement_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = PlacingTest(tmp_path)
    await with_a_database(test)
    with monkeypatch.context() as patch:
        patch.setattr(CpuAllocator, "assign", _failing)
        own = await test.runtime.create(test.placer, test.runtime.sandbox("web"), "main", WHOLE)
    assert test.runtime.cpus(own) == "2-7,10-15"
    await test.keeper.step("switch", lambda placements: placements.switch(True))
    await test.settle()
    assert test.runtime.cpus(own) == "0-15"
    await test.keeper.step("switch", lambda placements: placements.switch(False))
    await test.settle()
    assert len(test.runtime.containers[own].cpus) == 4
    test.check()


async def test_a_container_keeps_its_cpus_when_its_next_start_fails_after_a_decision_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = PlacingTest(tmp_path)
    await test.runtime.connect(test.placer)
    sandbox = test.runtime.sandbox("db")
    first = await test.runtime.create(test.placer, sandbox, "main", WHOLE)
    await test.runtime.stop(test.placer, first)
    with monkeypatch.context() as patch:
        patch.setattr(CpuAllocator, "assign", _failing)
        assert not await test.runtime.create(test.placer, sandbox, "main", WHOLE, fails=True)
    other = await test.runtime.create(test.placer, test.runtime.sandbox("web"), "main", WHOLE)
    assert test.runtime.cpus(other) == "2-3,10-11"
    again = await test.runtime.create(test.placer, sandbox, "main", WHOLE)
    assert test.runtime.cpus(again) == "0-1,8-9"
    test.check()


async def test_a_container_keeps_its_cpus_when_the_runtime_goes_while_it_starts_again(tmp_path: Path) -> None:
    test = PlacingTest(tmp_path)
    await test.runtime.connect(test.placer)
    sandbox = test.runtime.sandbox("db")
    first = await test.runtime.create(test.placer, sandbox, "main", WHOLE)
    await test.runtime.stop(test.placer, first)
    about = RuntimeContainer(sandbox_id=sandbox.id, name="main", attempt=1, resources=WHOLE)
    await test.placer.create(sandbox, about)
    await test.runtime.remove(test.placer, first)
    await test.runtime.connect(test.placer)
    await test.placer.not_created(sandbox.id, "main", 1)
    other = await test.runtime.create(test.placer, test.runtime.sandbox("web"), "main", WHOLE)
    assert test.runtime.cpus(other) == "2-3,10-11"
    again = await test.runtime.create(test.placer, sandbox, "main", WHOLE)
    assert test.runtime.cpus(again) == "0-1,8-9"
    test.check()


@pytest.mark.parametrize("part", ["rebalance_plan", "tell_figures", "same_cpus"])
async def test_a_part_of_the_audit_that_fails_keeps_neither_the_others_nor_the_process_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    test = manual(tmp_path)
    assert isinstance(test.clock, ManualClock)
    own = await with_a_database(test)
    monkeypatch.setattr(upkeep, part, _failing)
    running = asyncio.create_task(test.upkeep.run())
    try:
        for _ in range(2):
            await test.clock.until_someone_sleeps()
            test.runtime.tamper(own, CpuSet.parse("5"))
            await test.clock.advance(upkeep.AUDIT + 1)
            await until(lambda: test.runtime.cpus(own) == "0-1,8-9", "drift is healed")
        assert not running.done()
    finally:
        running.cancel()


async def test_a_configuration_that_the_policy_cannot_follow_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = PlacingTest(tmp_path)
    own = await with_a_database(test)
    changed = msgspec.structs.replace(SECTION, reserved_cpus="0")
    with monkeypatch.context() as patch:
        patch.setattr(Placements, "place_all", _failing)
        await test.keeper.reconfigure(changed)
    assert test.keeper.section == test.section
    await test.upkeep.audit()
    assert test.runtime.cpus(own) == "0-1,8-9"


@pytest.mark.parametrize("nri", [False, True])
async def test_a_topology_that_can_be_read_later_is_gone_by_as_if_it_could_all_the_time(
    tmp_path: Path, nri: bool
) -> None:
    test = manual(tmp_path, nri=nri)
    assert isinstance(test.clock, ManualClock)
    database = await with_a_database(test)
    small = await test.runtime.create(
        test.placer, test.runtime.sandbox("small"), "main", resources(2000, 2000, GIB)
    )
    gone = test.runtime.sandbox("gone")
    await test.runtime.create(test.placer, gone, "main", WHOLE)
    test.blind = "/sys: there is no devices/system/cpu/online; dump it again"
    with logged() as logs:
        await test.again()
        running = asyncio.create_task(test.upkeep.run())
        try:
            before = passed("no topology")
            web = await test.runtime.create(test.placer, test.runtime.sandbox("web"), "main", WHOLE)
            sandbox = test.runtime.sandbox("ends")
            ends = await test.runtime.create(test.placer, sandbox, "main", WHOLE)
            await test.runtime.create(test.placer, sandbox, "not made", WHOLE, fails=True)
            await test.runtime.remove(test.placer, ends)
            await test.runtime.end_sandbox(test.placer, gone)
            await test.runtime.update(test.placer, small, WHOLE)
            assert passed("no topology") == before + 3
            assert test.runtime.cpus(web) == "0-15", "it starts as it would without us"
            await test.clock.advance(600)
            assert test.keeper.is_blind
            test.blind = ""
            await test.clock.advance(upkeep.AUDIT)
            await until(lambda: test.runtime.cpus(web) != "0-15", "it is placed")
        finally:
            running.cancel()
    told = [each["event"] for each in logs]
    assert (told.count("placement.doubtful"), told.count("placement.begun_late")) == (1, 1)
    assert test.runtime.cpus(database) == "0-1,8-9", "what was stored is gone by"
    assert len(test.runtime.containers[small].cpus) == 4
    assert len(test.runtime.containers[web].cpus) == 4
    test.check()
    test.agree()
    await test.again()
    test.agree()


async def test_a_container_that_is_being_made_when_the_topology_can_be_read_is_placed_by_the_audit(
    tmp_path: Path,
) -> None:
    test = PlacingTest(tmp_path)
    test.blind = "there is no /sys"
    await test.again()
    sandbox = test.runtime.sandbox("db")
    about = RuntimeContainer(sandbox_id=sandbox.id, name="main", resources=WHOLE)
    assert await test.placer.create(sandbox, about) == Placing()
    other = msgspec.structs.replace(about, name="other")
    assert await test.placer.create(sandbox, other) == Placing()
    test.blind = ""
    await test.placer.look_again()
    await test.placer.created(sandbox.id, "main", 0, "ab")
    await test.placer.not_created(sandbox.id, "other", 0)
    await test.upkeep.audit()
    assert {key: str(pin.cpus) for key, pin in test.keeper.pins.items()} == {(sandbox.id, "main"): "0-1,8-9"}
    assert (sandbox.id, "main") in test.keeper.unwritten


async def test_a_container_that_ended_unseen_before_the_topology_could_be_read_has_ended(
    tmp_path: Path,
) -> None:
    test = PlacingTest(tmp_path)
    before = await with_a_database(test)
    test.blind = "there is no /sys"
    await test.again()
    since = await test.runtime.create(test.placer, test.runtime.sandbox("web"), "main", WHOLE)
    for own in (before, since):
        await test.runtime.stop(None, own)
    test.blind = ""
    await test.upkeep.audit()
    await test.settle()
    assert not test.keeper.pins


async def test_a_switch_stays_off_where_the_topology_cannot_be_read_at_first(tmp_path: Path) -> None:
    test = PlacingTest(tmp_path)
    own = await with_a_database(test)
    await test.keeper.step("switch", lambda placements: placements.switch(True))
    await test.settle()
    test.blind = "there is no /sys"
    await test.again()
    test.blind = ""
    await test.runtime.connect(test.placer)
    assert test.keeper.placements is not None
    assert test.keeper.placements.off
    assert test.runtime.cpus(own) == "0-15"


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (errno.ENOSPC, "mkstemp"),
        (errno.ENOSPC, "write"),
        (errno.EIO, "fsync"),
        (errno.EROFS, "mkstemp"),
        (errno.EDQUOT, "write"),
        (errno.EIO, "replace"),
    ],
)
async def test_a_state_that_cannot_be_stored_stops_nothing_and_is_rebuilt_from_what_runs(
    tmp_path: Path, code: int, call: str
) -> None:
    test = PlacingTest(tmp_path)
    await with_a_database(test)
    with broken(tmp_path / "state", code, call) as failed:
        web = await test.runtime.create(test.placer, test.runtime.sandbox("web"), "main", WHOLE)
        assert failed
        assert test.keeper.store.unstored
        assert CPUS_STATE_STORED._value.get() == 0
        test.check()
        before = {own: each.cpus for own, each in test.runtime.running().items()}
        assert len(before[web]) == 4
        await test.again()
        test.check()
        test.agree()
        assert {own: each.cpus for own, each in test.runtime.running().items()} == before
    await test.upkeep.audit()
    assert not test.keeper.store.unstored, "the audit has tried again"
    assert CPUS_STATE_STORED._value.get() == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b'{"version": 1}',
        b'{"version": 0, "cpus": {}}',
        b'{"version": 2, "cpus": {"version": 1}}',
        b'{"version": 1, "cpus": {"version": 9}}',
        b'{"version": 1, "containers": 7, "cpus": {}}',
        b'{"policyName": "topology-aware", "checksum": 1}',
        b'{"version": 1, "cpus": ' + b"[" * 100_000,
    ],
)
async def test_a_file_that_makes_no_sense_is_set_aside_and_the_state_rebuilt(
    tmp_path: Path, content: bytes
) -> None:
    test = PlacingTest(tmp_path)
    own = await with_a_database(test)
    file = tmp_path / "state" / "cpus-state.json"
    file.write_bytes(content)
    await test.again()
    assert test.runtime.cpus(own) == "0-1,8-9"
    assert test.keeper.placements is not None
    assert [each.mode for each in test.keeper.placements.allocator.assignments.values()] == [
        CpuMode.EXCLUSIVE
    ]
    assert (tmp_path / "state" / "cpus-state.json.set-aside").read_bytes() == content


def _asks_for_less_than_nothing(state: Any) -> None:
    state["containers"][0]["request"]["limit"] = -1


def _stands_on_no_rung(state: Any) -> None:
    state["cpus"]["assignments"][1]["rung"] = "the moon"


@pytest.mark.parametrize("damage", [_asks_for_less_than_nothing, _stands_on_no_rung])
async def test_a_file_that_can_be_read_and_makes_no_sense_stops_nothing(tmp_path: Path, damage: Any) -> None:
    test = PlacingTest(tmp_path)
    own = await with_a_database(test)
    shared = test.runtime.sandbox("web", QosClass.BURSTABLE)
    web = await test.runtime.create(test.placer, shared, "main", resources(1500))
    file = tmp_path / "state" / "cpus-state.json"
    state = msgspec.json.decode(file.read_bytes())
    damage(state)
    file.write_bytes(msgspec.json.encode(state))
    with logged() as logs:
        await test.again()
        await test.upkeep.audit()
    assert "rebalance" not in [each.get("what") for each in logs]
    assert test.runtime.cpus(own) == "0-1,8-9"
    assert test.runtime.cpus(web) == "2-3,10-11"
    test.check()
    test.agree()


async def test_a_policy_that_fails_on_any_state_lets_everything_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = PlacingTest(tmp_path)
    await with_a_database(test)
    with monkeypatch.context() as patch:
        patch.setattr(Placements, "restored", _failing)
        await test.again()
        own = await test.runtime.create(test.placer, test.runtime.sandbox("web"), "main", WHOLE)
        assert test.runtime.cpus(own) == "0-15"
    await test.runtime.connect(test.placer)
    test.check()
    test.agree()


async def test_a_second_placer_refuses_to_start_with_one_sentence(tmp_path: Path) -> None:
    test = PlacingTest(tmp_path)
    second = Placer(test.section, PlacementStore(tmp_path / "state"), test.keeper.machine)
    with pytest.raises(UserError, match=r"^another placer works with .*; stop it .*cpus\.stateFolder$"):
        second.keeper.begin()
    test.keeper.close()
    second.keeper.begin()
    second.keeper.close()


async def test_drift_is_healed_by_the_audit_and_reported_where_it_comes_back(tmp_path: Path) -> None:
    test = PlacingTest(tmp_path)
    own = await with_a_database(test)
    healed, again = (CPUS_DRIFT.labels(word)._value.get() for word in ("healed", "reported"))
    test.runtime.tamper(own, CpuSet.parse("5"))
    await test.upkeep.audit()
    assert test.runtime.cpus(own) == "0-1,8-9"
    test.runtime.tamper(own, CpuSet.parse("5"))
    await test.upkeep.audit()
    await test.upkeep.audit()
    assert test.runtime.cpus(own) == "0-1,8-9"
    assert CPUS_DRIFT.labels("healed")._value.get() == healed + 1
    assert CPUS_DRIFT.labels("reported")._value.get() == again + 1


async def test_what_the_runtime_does_not_take_is_tried_again_later_each_time(tmp_path: Path) -> None:
    test = manual(tmp_path)
    assert isinstance(test.clock, ManualClock)
    await test.runtime.connect(test.placer)
    idle = await test.runtime.create(
        test.placer, test.runtime.sandbox("idle", QosClass.BEST_EFFORT), "main", resources(0)
    )
    database = test.runtime.sandbox("db")
    await test.runtime.create(test.placer, database, "main", WHOLE)
    running = asyncio.create_task(test.upkeep.run())
    try:
        await test.clock.advance(5)
        test.runtime.refuses.add(idle)
        await test.runtime.end_sandbox(test.placer, database)
        await test.clock.advance(5)
        assert test.runtime.cpus(idle) == "2-7,10-15"
        test.runtime.refuses.clear()
        await test.clock.advance(30)
        await until(lambda: test.runtime.cpus(idle) == "0-15", "it is taken in the end")
    finally:
        running.cancel()


async def test_another_configuration_moves_only_containers_that_no_longer_fit(tmp_path: Path) -> None:
    test = PlacingTest(tmp_path)
    first = await with_a_database(test)
    second = await test.runtime.create(test.placer, test.runtime.sandbox("web"), "main", WHOLE)
    before = test.runtime.cpus(second)
    pool = CpuPoolSection(name="own", size=4, namespaces=("own",))
    test.section = msgspec.structs.replace(SECTION, reserved_cpus="0", pools=(pool,))
    await test.keeper.reconfigure(test.section)
    await test.settle()
    assert 0 not in test.runtime.containers[first].cpus
    assert len(test.runtime.containers[first].cpus) == 4
    test.check()
    test.agree()
    after = {own: test.runtime.cpus(own) for own in (first, second)}
    assert after[second] == before or "2-3" in before
    await test.again()
    assert {own: test.runtime.cpus(own) for own in (first, second)} == after, "a restart keeps all of it"


async def test_cpus_that_go_off_and_come_back_are_followed(tmp_path: Path) -> None:
    test = PlacingTest(tmp_path)
    own = await with_a_database(test)
    test.shape = msgspec.structs.replace(SHAPE, offline=CpuSet.parse("0"))
    test.runtime.everything = machine(test.shape).online
    await test.upkeep.audit()
    assert len(test.runtime.containers[own].cpus) == 4
    assert 0 not in test.runtime.containers[own].cpus
    test.check()
    test.shape = SHAPE
    test.runtime.everything = machine(SHAPE).online
    await test.upkeep.audit()
    test.check()
    test.agree()


async def test_environment_and_labels_decide_nothing(tmp_path: Path) -> None:
    """A container has no such fields here: what a pod writes comes in by its annotations alone."""
    assert {"env", "envs", "labels"}.isdisjoint(RuntimeContainer.__struct_fields__)
    test = PlacingTest(tmp_path)
    await test.runtime.connect(test.placer)
    forged = {
        "colocate.dev/cpuset": "0-3",
        "cpuset.cri-resource-manager": "0",
        "colocate.dev/cpus.other": "opt-out",
    }
    sandbox = test.runtime.sandbox("forger", QosClass.BURSTABLE, "tenant", forged)
    own = await test.runtime.create(test.placer, sandbox, "main", resources(2000))
    assert test.runtime.cpus(own) == "0-1,8-9"
    strict = test.runtime.sandbox(
        "wisher", namespace="tenant", annotations={"colocate.dev/cpus": "isolated, strict"}
    )
    assert await test.runtime.create(test.placer, strict, "main", resources(5000, 5000, GIB)), "not refused"


async def test_shared_containers_move_to_better_pools_when_some_get_free(tmp_path: Path) -> None:
    test = PlacingTest(tmp_path)
    await test.runtime.connect(test.placer)
    first = [test.runtime.sandbox(f"p{number}", QosClass.BURSTABLE) for number in range(4)]
    for sandbox in first:
        await test.runtime.create(test.placer, sandbox, "main", resources(3000))
    wide = await test.runtime.create(
        test.placer, test.runtime.sandbox("wide", QosClass.BURSTABLE), "main", resources(2000)
    )
    assert len(test.runtime.containers[wide].cpus) > 4, "no CCX had room"
    await test.upkeep.audit()
    assert len(test.runtime.containers[wide].cpus) > 4
    await test.runtime.end_sandbox(test.placer, first[2])
    await test.upkeep.audit()
    assert test.runtime.cpus(wide) == "4-5,12-13"
    before = test.keeper.placements
    await test.upkeep.audit()
    assert test.keeper.placements is before, "who sits well stays"


async def test_a_fault_of_the_audit_ends_nothing_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = manual(tmp_path)
    assert isinstance(test.clock, ManualClock)
    own = await with_a_database(test)
    running = asyncio.create_task(test.upkeep.run())
    try:
        with monkeypatch.context() as patch:
            patch.setattr(test.keeper.machine, "group", lambda *_: 1 / 0)
            await test.clock.advance(61)
            await until(lambda: not running.done(), "it goes on")
        test.runtime.tamper(own, CpuSet.parse("5"))
        await test.clock.advance(61)
        await until(lambda: test.runtime.cpus(own) == "0-1,8-9", "the next audit")
    finally:
        running.cancel()


async def test_who_must_lose_cpus_is_written_at_once(tmp_path: Path) -> None:
    test = manual(tmp_path)
    assert isinstance(test.clock, ManualClock)
    await test.runtime.connect(test.placer)
    idle = await test.runtime.create(
        test.placer, test.runtime.sandbox("idle", QosClass.BEST_EFFORT), "main", resources(0)
    )
    running = asyncio.create_task(test.upkeep.run())
    try:
        await test.clock.advance(5)
        reserved = msgspec.structs.replace(SECTION, reserved_cpus="0,8")
        await test.keeper.reconfigure(reserved)
        await until(lambda: test.runtime.cpus(idle) == "1-7,9-15", "no time has to pass")
    finally:
        running.cancel()
