"""What the memory part keeps on disk, when others have been at it."""

from pathlib import Path

import pytest

from colocate.cluster.resources import Object
from colocate.errors import UserError
from colocate.lab.api.resources import EVENTS, NAMESPACES
from colocate.lab.cluster import MACHINE
from colocate.memory.agent.store import MemoryStore, PodNote
from colocate.model.pod import Phase
from tests.memory_agent.driving import Driven, driven
from tests.memory_agent.lab import NAMESPACE, memory_lab

MOVED = PodNote("good", "default", "mover", {"metadata": {"name": "mover"}}, noted=1.0)


def test_a_folder_is_one_agents_until_that_has_ended(tmp_path: Path) -> None:
    first, second = MemoryStore(tmp_path / "state"), MemoryStore(tmp_path / "state")
    first.prepare()
    with pytest.raises(
        UserError, match=r"another agent works with .*state; stop it, or give this one a folder"
    ):
        second.prepare()
    first.close()
    second.prepare()
    second.close()


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "memory-lock").mkdir()
    with pytest.raises(UserError, match=r"cannot lock .*memory-lock \(is a directory\); choose a folder"):
        MemoryStore(tmp_path).prepare()


async def test_a_part_that_could_not_read_its_state_does_not_keep_the_folder() -> None:
    async with memory_lab() as lab:
        (lab.root / "state").mkdir()
        (lab.root / "state" / "memory-state.json").write_bytes(b'{"boot": "\xff"}')
        with pytest.raises(UserError, match="the stored state cannot be read"):
            Driven(lab)
        store = MemoryStore(lab.root / "state")
        store.prepare()
        store.close()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"null",
        b'{"uid": "bad"}',
        b'{"uid": "\xff\xfe"}',
        b'{"uid":"x","namespace":"","name":"","body":{}}',
    ],
    ids=["empty", "cut off", "null", "fields missing", "not text", "another pod"],
)
def test_a_move_that_makes_no_sense_is_set_aside_and_named_and_the_others_go_on(
    tmp_path: Path, damage: bytes
) -> None:
    store = MemoryStore(tmp_path)
    store.remember(MOVED)
    (tmp_path / "memory-recreate-bad.json").write_bytes(damage)
    aside = tmp_path / "memory-recreate-bad.json.unreadable"
    for _ in range(2):
        moves = store.moves()
        assert moves.manifests == (MOVED,)
        (lost,) = moves.lost
        assert f"pod bad should be created again on another node, but {aside} is damaged" in lost
        assert aside.read_bytes() == damage
    aside.unlink()
    assert store.moves().lost == ()


def test_a_move_that_cannot_be_read_or_set_aside_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(tmp_path)
    store.remember(MOVED)
    (tmp_path / "memory-recreate-bad.json").write_bytes(b"{")
    (tmp_path / "memory-recreate-odd.json").mkdir()

    def refuse(*paths: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "rename", refuse)
    moves = store.moves()
    assert moves.manifests == (MOVED,)
    assert "memory-recreate-bad.json is damaged" in moves.lost[0]
    assert "memory-recreate-odd.json: is a directory" in moves.lost[1]


async def test_a_move_that_makes_no_sense_fails_no_turn_and_is_told_once_and_the_others_are_finished() -> (
    None
):
    async with driven() as node:
        lab = node.lab
        folder = lab.root / "state"
        (folder / "memory-recreate-bad.json").write_bytes(b"{")
        spec = {"containers": [{"name": "main", "image": "busybox"}], "nodeSelector": {"nowhere": "yes"}}
        body: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mover"}, "spec": spec}
        home = str(lab.cluster.registry.get(NAMESPACES, "", NAMESPACE).body["metadata"]["uid"])
        node.store.remember(PodNote("good", NAMESPACE, "mover", body, node.clock.time(), home))
        await node.turns(3)
        assert lab.phase("mover") == Phase.PENDING, "the other one is created"
        assert (folder / "memory-recreate-bad.json.unreadable").exists()
        assert any("pod bad should be created again" in why for why in node.part.report.silent)
        await node.cluster._events.flush()

        events = [stored.body for stored in lab.cluster.store.items(EVENTS.storage)]
        (told,) = [event for event in events if event["reason"] == "ColocationMemoryPodLost"]
        assert told["involvedObject"]["name"] == MACHINE
        assert told.get("count", 1) == 1
        assert "create the pod where it is missing" in told["message"]


async def test_a_dry_run_neither_takes_the_folder_nor_sets_anything_aside() -> None:
    async with memory_lab() as lab, Driven(lab).running() as node:
        bad = lab.root / "state" / "memory-recreate-bad.json"
        bad.write_bytes(b"{")
        async with Driven(lab, dry_run=True, clock=node.clock).running() as watching:
            await watching.turn()
        assert bad.exists()
