"""A disk that is full, read-only, broken, or out of descriptors, at every write of the memory part."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colocate.errors import UserError
from colocate.host.memory_limits import GroupLimits, set_limits
from colocate.kubelet.plugin import Refused
from colocate.lab.api.resources import NAMESPACES
from colocate.memory.actions import ActionResult, Evict, Reclaim
from colocate.memory.agent.objects import MAY_MOVE
from colocate.memory.agent.store import MemoryStore, PodNote
from colocate.memory.state import MemoryState
from colocate.model.pod import Phase
from tests.cli.running import colocate
from tests.memory_agent.driving import BLOCK, MIB, Driven, driven
from tests.memory_agent.eating import Eater
from tests.memory_agent.lab import NAMESPACE, memory_lab
from tests.support.broken_disk import CALLS, broken
from tests.support.waiting import until

CODES = [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EMFILE]
every_code = pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
NOTE = PodNote("pod", "default", "mover", {"spec": {}}, noted=1.0)
STATE = MemoryState(boot="one")
WRITES: dict[str, Callable[[MemoryStore], None]] = {
    "state": lambda store: store.save(MemoryState(boot="two")),
    "off": lambda store: store.switch(True),
    "on": lambda store: store.switch(False),
    "note": lambda store: store.remember(msgspec.structs.replace(NOTE, name="other")),
    "no note": lambda store: store.forget("pod"),
    "expired note": lambda store: store.expire("pod"),
}
"""By kind of file, a write of each."""
REACHED = {
    "state": {"mkstemp", "write", "fchmod", "fsync", "replace", "open"},
    "off": {"mkstemp", "write", "fchmod", "fsync", "replace", "open"},
    "on": {"unlink", "fsync", "open"},
    "note": {"mkstemp", "write", "fchmod", "fsync", "replace", "open"},
    "no note": {"unlink", "fsync", "open"},
    "expired note": {"rename", "fsync", "open"},
}
"""The calls that each makes: else the table would prove nothing."""


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    made = MemoryStore(tmp_path)
    made.save(STATE)
    made.remember(NOTE)
    return made


@every_code
@pytest.mark.parametrize("kind", WRITES)
def test_a_fault_at_any_call_of_any_write_is_an_os_error_and_leaves_every_file_old_or_new(
    store: MemoryStore, tmp_path: Path, kind: str, code: int
) -> None:
    if kind == "on":
        store.switch(True)
    old = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    reached = set()
    for call in CALLS:
        with broken(tmp_path, code, call) as failed:
            if call in REACHED[kind]:
                with pytest.raises(OSError, check=lambda error: error.errno == code):
                    WRITES[kind](store)
        if not failed:
            continue
        reached.add(call)
        found = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        assert not any(name.startswith(".") for name in found), "a temporary file is left"
        assert store.load() in (STATE, MemoryState(boot="two"))
        moves = store.moves()
        assert {note.name for note in moves.manifests} <= {"mover", "other"}
        assert not any("is damaged" in lost for lost in moves.lost), "no file is half-written"
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        for name, content in old.items():
            (tmp_path / name).write_bytes(content)
    assert reached == REACHED[kind]
    WRITES[kind](store)


@every_code
async def test_while_the_state_cannot_be_stored_no_block_is_offered_or_given_out(code: int) -> None:
    async with driven() as node:
        lab = node.lab
        first = await node.turn()
        assert first.offered > 0
        await node.listed(first)
        await node.run_pod("batch", 2)
        held = sorted(*lab.held().values())
        for call in sorted(REACHED["state"]):
            with broken(lab.root / "state", code, call) as failed:
                last = await node.turn()
                assert failed == [call]
                await node.listed(last)
                assert lab.healthy() == held, f"{call}: free blocks stay on offer"
                with pytest.raises(Refused, match=r"gives out no block of .* now: the agent cannot store"):
                    await node.part.plugin.allocate(["CM-0002"])
                for id in held:
                    # Freed by its pod a moment ago, and still on the list.
                    with pytest.raises(Refused, match="cannot store its state"):
                        await node.part.plugin.allocate([id])
                assert os.strerror(code).lower() in node.part.report.unstored
                assert lab.limit("batch") == 2 * BLOCK
            assert (await node.turn()).offered == 0, "not before a state was stored"
            await node.turns(9)
            again = await node.turn()
            assert again.offered > 0, "it goes on by itself"
            assert node.part.report.unstored == ""
            await node.listed(again)


@every_code
async def test_an_agent_that_can_store_nothing_from_its_start_offers_nothing(code: int) -> None:
    async with memory_lab() as lab:
        (lab.root / "state").mkdir()
        with broken(lab.root / "state", code, "mkstemp"):
            async with Driven(lab).running() as node:
                assert (await node.turn()).state.blocks.listed == ()


@every_code
async def test_off_takes_effect_at_once_on_a_broken_disk_and_is_stored_as_soon_as_that_is_mended(
    code: int,
) -> None:
    async with memory_lab() as lab:
        async with Driven(lab).running() as node:
            await node.listed(await node.turn())
            await node.run_pod("batch", 2)
            await node.turn()
            assert lab.limit("batch") == 2 * BLOCK
            with broken(lab.root / "state", code, "mkstemp"):
                node.part.switch(True)
                assert os.strerror(code).lower() in node.part.switch_unstored
                await node.turn()
                await node.turn()
                assert lab.limit("batch") is None
                assert node.part.report.restored
                assert node.part.report.switch_unstored
                assert not node.store.is_off
            await node.turn()
            assert node.part.switch_unstored == ""
        async with Driven(lab, clock=node.clock).running() as again:
            assert again.part.is_off


async def test_on_a_read_only_disk_on_takes_effect_and_says_that_it_will_not_outlast_a_restart() -> None:
    async with memory_lab() as lab, Driven(lab).running() as node:
        node.part.switch(True)
        with broken(lab.root / "state", errno.EROFS, "unlink"):
            node.part.switch(False)
            assert not node.part.is_off
            assert "read-only" in node.part.switch_unstored
        assert node.store.is_off
        await node.turn()
        assert not node.store.is_off


async def test_on_a_full_disk_the_ladder_reclaims_and_evicts_no_pod() -> None:
    async with driven() as node:
        lab = node.lab
        await node.listed(await node.turn())
        batch = await Eater(lab, "batch", 8).ready()
        await node.until_known("batch")
        await node.turn()
        await batch.anon(40 * MIB)
        await batch.cache(60 * MIB)
        with broken(lab.root / "state", errno.ENOSPC, "write"):
            node.small.system += 150 * MIB
            actions = await node.turns(12)
            assert any(isinstance(action, Reclaim) for action in actions)
            assert not any(isinstance(action, Evict) for action in actions)
            assert lab.limit("batch") == 8 * BLOCK
            assert lab.phase("batch") == Phase.RUNNING


async def test_on_a_full_disk_of_cgroup_v1_only_pods_in_the_stored_state_are_reclaimed_from() -> None:
    async with driven() as node:
        lab = node.lab
        await node.listed(await node.turn())
        batch = await Eater(lab, "batch", 8).ready()
        await node.until_known("batch")
        with broken(lab.root / "state", errno.ENOSPC, "write"):
            await node.turn()
            await batch.anon(40 * MIB)
            await batch.cache(60 * MIB)
            node.small.system += 150 * MIB
            planned: list[object] = []
            done: list[object] = []
            for _ in range(6):
                planned += (await node.turn()).plan.actions
                done += [outcome.action for outcome in node.part.executor._outcomes]
            assert any(isinstance(action, Reclaim) for action in planned)
            on_v2 = lab.group("batch").version == 2
            assert any(isinstance(action, Reclaim) for action in done) == on_v2


async def test_a_turn_that_fails_offers_nothing_until_one_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async with driven() as node:
        lab = node.lab
        await node.listed(await node.turn())
        await node.run_pod("batch", 2)
        good = await node.turn()

        async def no_descriptors() -> Any:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patch:
            patch.setattr(node.part._machine, "read", no_descriptors)
            await node.part._take_turn()
        await until(lambda: lab.healthy() == sorted(*lab.held().values()), "nothing but what is held")
        with pytest.raises(Refused, match="last look at its node failed"):
            await node.part.plugin.allocate(["CM-0002"])
        await node.part._take_turn()
        await node.listed(good)


@every_code
async def test_a_control_group_that_cannot_be_written_fails_its_action_and_no_turn(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    async with driven() as node:
        lab = node.lab
        await node.listed(await node.turn())
        await node.run_pod("batch", 2)
        await node.run_pod("other", 2)
        await node.turn()
        for name in ("batch", "other"):
            set_limits(lab.group(name), GroupLimits())
        broken_group, real = lab.group("batch").folder, os.open

        def fail(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if flags & os.O_WRONLY and Path(path).parent == broken_group:
                raise OSError(code, os.strerror(code), str(path))
            return real(path, flags, *more, **named)

        with monkeypatch.context() as patch:
            patch.setattr("colocate.host.memory_group.os.open", fail)
            await node.turn()
            results = {outcome.result for outcome in node.part.executor.take_outcomes()}
            assert ActionResult.FAILED in results
            assert lab.limit("other") == 2 * BLOCK, "the others are held"
        await node.turn()
        assert lab.limit("batch") == 2 * BLOCK


@pytest.mark.parametrize("call", ["listdir", "scandir"])
async def test_a_folder_of_notes_that_cannot_be_listed_fails_no_turn(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async with driven() as node:
        folder = node.lab.root / "state"
        real = getattr(os, call)

        def no_descriptors(path: Any = ".") -> Any:
            if path != folder:
                return real(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(os, call, no_descriptors)
        decision = await node.turn()
        assert decision.offered > 0
        if call == "listdir":
            assert any(
                "pods that should be created again are unknown" in why for why in node.part.report.silent
            )


@every_code
async def test_a_note_that_cannot_be_removed_ends_one_step_and_not_the_turn(code: int) -> None:
    async with driven() as node:
        lab = node.lab
        spec = {"containers": [{"name": "main", "image": "busybox"}], "nodeSelector": {"nowhere": "yes"}}
        home = str(lab.cluster.registry.get(NAMESPACES, "", NAMESPACE).body["metadata"]["uid"])
        for name in ("first", "second"):
            body: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": spec,
            }
            node.store.remember(PodNote(f"uid-{name}", NAMESPACE, name, body, node.clock.time(), home, True))
        with broken(lab.root / "state", code, "unlink"):
            await node.turn()
            assert {lab.phase("first"), lab.phase("second")} == {Phase.PENDING}, "both are created"
            await lab.delete_pod("first")
            await node.turn()
            assert lab.pod("first") is None, "its owner deleted it: a note that stays creates no second one"
        await node.turn()
        assert node.store.moves().manifests == ()


@every_code
async def test_a_pod_that_cannot_be_moved_for_want_of_a_note_is_not_evicted_instead(code: int) -> None:
    async with driven() as node:
        lab = node.lab
        await node.listed(await node.turn())
        mover = await Eater(lab, "mover", 8, annotations={MAY_MOVE: "true"}).ready()
        await node.until_known("mover")
        await mover.anon(100 * MIB)
        node.small.system += 200 * MIB

        def fail(note: PodNote) -> None:
            raise OSError(code, os.strerror(code))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.store, "remember", fail)
            said: set[str] = set()
            for _ in range(30):
                await node.turn()
                said |= set(node.part.report.sentences)
            assert lab.phase("mover") == Phase.RUNNING
            assert any("cannot be recorded" in sentence for sentence in said)


def test_an_agent_that_starts_on_a_read_only_disk_takes_the_folder_by_the_lock_of_its_former_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = MemoryStore(tmp_path)
    former.prepare()
    former.close()
    real = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)
    first, second = MemoryStore(tmp_path), MemoryStore(tmp_path)
    first.prepare()
    with pytest.raises(UserError, match="another agent works with"):
        second.prepare()
    first.close()


def test_half_written_files_of_a_killed_agent_are_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".memory-state.json.a1b2").write_bytes(b'{"bo')
    store = MemoryStore(tmp_path)
    store.prepare()
    store.close()
    assert [file.name for file in tmp_path.iterdir()] == ["memory-lock"]


async def test_memory_off_on_a_broken_disk_is_one_sentence_and_takes_effect() -> None:
    async with memory_lab() as lab:
        lab.configure(blockSize="64Mi", forecast={"kind": "instant"}, coolDown="1s")
        await lab.start_agent()
        await lab.until_blocks(3)
        lab.create_pod("batch", 3)
        await lab.until_running("batch")
        await lab.until_report(lambda report: bool(report.pods), "the pod in a turn")
        # Names that cannot be replaced by files: to the agent as bad as a full disk.
        state = lab.root / "state" / "memory-state.json"
        state.unlink()
        state.mkdir()
        (lab.root / "state" / "memory-off").mkdir()
        await lab.until_report(lambda report: bool(report.unstored), "the fault")
        await until(lambda: sorted(*lab.held().values()) == lab.healthy(), "nothing but what is held")
        socket = ("--socket", lab.socket)
        shown = await colocate("memory", "status", *socket)
        assert "cannot store its state" in shown.out
        off = await colocate("memory", "off", *socket)
        assert off.code == 0
        assert "everything is restored" in off.out
        assert "a restart of the agent undoes this" in off.err
        assert "Traceback" not in off.err
        assert lab.limit("batch") is None
        assert lab.healthy() == []
        (lab.root / "state" / "memory-off").rmdir()
        await lab.until_report(lambda report: not report.switch_unstored, "the switch on disk")
        assert (lab.root / "state" / "memory-off").is_file()
        assert "undoes this" not in (await colocate("memory", "off", *socket)).err
        assert await lab.stop_agent() == 0
