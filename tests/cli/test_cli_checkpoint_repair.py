"""`colocate checkpoint repair` as an operator uses it: what is dropped, what is refused, who is asked."""

import asyncio
import os
import pty
import signal
import stat
from pathlib import Path

import pytest
from tests.cli.running import COMMAND, PATIENCE, checkpoint, colocate
from tests.support.plugins import FAN, Fans

from colocate.devices.checkpoint import file as files
from colocate.devices.checkpoint.repair import RepairWish, living_losers, plan
from colocate.devices.pod_names import names
from colocate.errors import UserError
from colocate.kubelet.checkpoint import parse, render
from colocate.model.checkpoint import Checkpoint, Entry, Format
from colocate.model.records import KnownPod
from colocate.testing import TestNode

GPU = "vendor.example/gpu"

pytestmark = pytest.mark.usefixtures("no_cluster")


async def test_a_repair_is_refused_while_the_kubelet_runs_unless_forced(node: TestNode) -> None:
    await node.serve(Fans("fan-0", "fan-1"))
    await node.devices(FAN, 2)
    pod = await node.run_pod({FAN: 1})
    path, root = node.paths.checkpoint, {"COLOCATE_KUBELET_ROOT": str(node.paths.root)}
    before = path.read_bytes()
    refused = await colocate("checkpoint", "repair", "--drop-pod", pod.pod.uid, "--yes", **root)
    assert refused.code == 2
    assert "nothing was changed: the kubelet runs: " in refused.err
    assert path.read_bytes() == before
    dry = await colocate("checkpoint", "repair", "--drop-pod", pod.pod.uid, "--dry-run", **root)
    assert (dry.code, path.read_bytes()) == (0, before)
    forced = await colocate("checkpoint", "repair", "--drop-pod", pod.pod.uid, "--yes", "--force", **root)
    assert forced.code == 0
    assert parse(path.read_bytes()).checkpoint.entries == ()


def backups(file: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(file.parent.glob("*.backups/*"))]


def test_dropping_keeps_the_rest_and_the_old_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_bytes()
    ended = checkpoint(
        capsys, "repair", file, "--drop-pod", "one", "--drop-resource", "vendor.example/fan", "--yes"
    )
    assert ended.code == 0, ended
    document = parse(file.read_bytes())
    assert document.sound
    assert [entry.pod_uid for entry in document.checkpoint.entries or ()] == ["two"]
    assert list(document.checkpoint.registered or ()) == [GPU]
    assert backups(file) == [before]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert checkpoint(capsys, "verify", file).code == 0


def test_a_wrong_checksum_is_fixed_when_the_user_vouches_for_the_data(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = file.read_bytes()
    file.write_bytes(sound.replace(b'"Checksum":', b'"Checksum":1'))
    refused = checkpoint(capsys, "repair", file, "--drop-pod", "one", "--yes")
    assert (refused.code, "add --fix-checksum if the data is right" in refused.err) == (2, True)
    fixed = checkpoint(capsys, "repair", file, "--fix-checksum", "--yes")
    assert fixed.code == 0
    assert fixed.out.splitlines()[1] == f"+ checksum {parse(sound).checksum}"
    assert file.read_bytes() == sound
    again = checkpoint(capsys, "repair", file, "--fix-checksum", "--yes")
    assert (again.code, again.out) == (0, f"{file} already has that; nothing to do\n")
    assert len(backups(file)) == 1


def test_members_that_no_kubelet_reads_are_shown_to_go(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(file.read_bytes().replace(b'{"Data":{', b'{"Data":{"Future":[1],'))
    ended = checkpoint(capsys, "repair", file, "--drop-pod", "one", "--dry-run")
    assert ended.code == 0
    assert "- Data.Future, which no kubelet reads" in ended.out.splitlines()


def test_a_pod_that_is_starting_loses_its_devices_too(file: Path) -> None:
    old = files.read(file)
    decided = plan(old, parse(old.content), RepairWish(pods=("one", "two")), {})
    phases = {"one": "Pending", "two": "Failed", "three": "Running"}
    pods = [KnownPod(uid, "default", uid, phase) for uid, phase in phases.items()]
    assert [pod.uid for pod in living_losers(decided, pods)] == ["one"]


def test_a_pod_that_claims_a_victims_uid_does_not_have_the_victim_dropped_in_its_name(file: Path) -> None:
    old = files.read(file)
    document = parse(old.content)
    pods = [KnownPod("m", "tenant", "thief", "Pending", {}, "one")]
    with pytest.raises(UserError, match="the API does not know tenant/thief; give the uid"):
        plan(old, document, RepairWish(pods=("tenant/thief",)), names(document.checkpoint, None, pods))
    decided = plan(old, document, RepairWish(pods=("one",)), {})
    assert [pod.key for pod in living_losers(decided, pods)] == ["tenant/thief"], "a warning too many"


def test_where_no_kubelet_can_listen_none_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = tmp_path / ("d" * 100)
    for root in (deep, tmp_path / "root"):
        folder = root / "device-plugins"
        folder.mkdir(parents=True)
        (root / "pod-resources").touch()
        path = folder / "kubelet_internal_checkpoint"
        path.write_bytes(render(Checkpoint((Entry("u", "c", GPU, {}, b""),), {})))
        ended = checkpoint(capsys, "repair", path, "--drop-pod", "u", "--yes")
        assert ended.code == 0, ended


def test_a_kubelet_that_cannot_be_asked_is_not_said_to_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    (folder / "kubelet.sock").touch()
    path = folder / "kubelet_internal_checkpoint"
    path.write_bytes(render(Checkpoint((Entry("u", "c", GPU, {}, b""),), {})))
    ended = checkpoint(capsys, "repair", path, "--drop-pod", "u", "--yes")
    assert ended.code == 2
    assert "cannot tell whether the kubelet runs" in ended.err
    assert "answers" not in ended.err
    assert checkpoint(capsys, "repair", path, "--drop-pod", "u", "--yes", "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to change is given"),
        (("--drop-pod", "three"), "no pod 'three'"),
        (("--drop-pod", "default/three"), "give the uid"),
        (("--drop-resource", "nobody/has-it"), "no resource 'nobody/has-it'"),
        (("--drop-pod", "one"), "Not a terminal, so I cannot ask. Add --yes to continue."),
    ],
)
async def test_a_repair_that_cannot_be_done_is_one_sentence(
    file: Path, arguments: tuple[str, ...], said: str
) -> None:
    before = file.read_bytes()
    ended = await colocate("checkpoint", "repair", file, *arguments)
    assert ended.code == 2
    assert said in ended.err
    assert file.read_bytes() == before
    assert backups(file) == []


def test_standard_input_and_a_checksum_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "give a file" in checkpoint(capsys, "repair", "-", "--fix-checksum").err
    path = tmp_path / "old"
    path.write_bytes(render(Checkpoint((Entry("u", "c", GPU, ("a",), b""),), {}), Format.PLAIN))
    assert "has no checksum" in checkpoint(capsys, "repair", path, "--fix-checksum", "--yes").err
    assert checkpoint(capsys, "repair", path, "--drop-pod", "u", "--yes").code == 0
    assert path.read_bytes() == b'{"PodDeviceEntries":[],"RegisteredDevices":{}}'


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("yes", 0), ("n", 2), ("", 2)])
async def test_a_person_at_a_terminal_is_asked(file: Path, answer: str, code: int) -> None:
    before = file.read_bytes()
    leader, follower = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "checkpoint",
        "repair",
        str(file),
        "--drop-pod",
        "one",
        stdin=follower,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(follower)
    os.write(leader, f"{answer}\n".encode())
    async with asyncio.timeout(PATIENCE):
        _, err = await process.communicate()
    os.close(leader)
    assert process.returncode == code
    assert b"[y/N]" in err
    assert (file.read_bytes() == before) == bool(code)


async def test_killed_at_any_side_effect_the_file_is_whole(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    repair = ("checkpoint", "repair", file, "--drop-pod", "one", "--yes")
    assert (await colocate(*repair)).code == 0
    after = file.read_bytes()
    log = tmp_path / "points"
    for crash_at in range(1, 50):
        file.write_bytes(before)
        ended = await colocate(*repair, COLOCATE_CRASH_AT=str(crash_at), COLOCATE_CRASH_LOG=str(log))
        assert file.read_bytes() in (before, after)
        if ended.code != -signal.SIGKILL:
            break
    points = {line.split()[1] for line in log.read_text().splitlines()}
    assert ended.code == 0
    assert points == {"backup.make", "backup.made", "file.written", "file.replaced"}
