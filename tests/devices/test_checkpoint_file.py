"""A checkpoint file is read whole or refused in one sentence, and is old or new whatever fails in between."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from colocate.clock import ManualClock
from colocate.devices.checkpoint import file as files
from colocate.errors import UserError
from colocate.host import files as host_files
from tests.support import components
from tests.support.repairing import NEW, OLD

REPO = Path(__file__).parents[2]
NOON = "2023-11-14T22-13-20Z"
"""What a ManualClock shows at first."""


@pytest.fixture
def record(tmp_path: Path) -> Path:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    path = folder / "kubelet_internal_checkpoint"
    path.write_bytes(OLD)
    path.chmod(0o640)
    return path


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Reading ---------------------------------------------------------------------------------------------


def test_a_link_leads_to_the_file(record: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(record)
    assert (files.read(link).path, files.read(link).content) == (record, OLD)


def missing(path: Path) -> None:
    pass


def endless(path: Path) -> None:
    path.symlink_to(path)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, files.LIMIT + 1)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # relative: a socket's path must be short


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (missing, "the file does not exist"),
        (Path.mkdir, "is a folder"),
        (os.mkfifo, "is not a regular file"),
        (listening, "cannot be read"),
        (endless, "cannot be read|is a link to itself"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (huge, "more than 256 MiB"),
    ],
    ids=["missing", "folder", "fifo", "socket", "loop", "device", "huge"],
)
def test_what_cannot_be_a_checkpoint_is_one_sentence(
    tmp_path: Path, make: Callable[[Path], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "record"
    make(path)
    with pytest.raises(UserError, match=said) as refused:
        files.read(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_may_not_be_read_is_one_sentence(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # root, who runs this in containers, may read anything
    with pytest.raises(UserError, match="this user may not read it; run this as root"):
        files.read(record)


# Replacing -------------------------------------------------------------------------------------------


def test_the_new_file_has_the_mode_and_owner_of_the_old_and_the_old_one_is_the_backup(record: Path) -> None:
    before = record.stat()
    backup = files.replace(files.read(record), NEW, ManualClock())
    assert backup == record.parent / "kubelet_internal_checkpoint.backups" / NOON
    assert everything(record.parent) == {record.name: NEW, f"{record.name}.backups/{NOON}": OLD}
    for one in (record.stat(), backup.stat()):
        assert (one.st_mode, one.st_uid, one.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_of_somebody_else_stays_theirs(record: Path) -> None:
    os.chown(record, 1234, 4321)
    files.replace(files.read(record), NEW, ManualClock())
    assert (record.stat().st_uid, record.stat().st_gid) == (1234, 4321)


def test_a_backup_is_never_overwritten(record: Path) -> None:
    clock = ManualClock()
    contents = [OLD, b"second", b"third", b"fourth"]
    backups = [files.replace(files.read(record), content, clock) for content in contents[1:]]
    assert [backup.name for backup in backups] == [NOON, f"{NOON}-2", f"{NOON}-3"]
    assert [backup.read_bytes() for backup in backups] == contents[:-1]


def test_a_replaced_link_stays_a_link(record: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(record)
    files.replace(files.read(link), NEW, ManualClock())
    assert link.is_symlink()
    assert record.read_bytes() == NEW


@pytest.mark.parametrize("how", ["replaced", "written into", "removed"])
def test_a_change_since_it_was_read_is_noticed_and_kept(record: Path, how: str) -> None:
    old = files.read(record)
    if how == "replaced":
        other = record.with_name("other")
        other.write_bytes(OLD)
        other.replace(record)
    elif how == "written into":
        record.write_bytes(b"the kubelet was quicker")
    else:
        record.unlink()
    before = everything(record.parent)
    with pytest.raises(UserError):
        files.replace(old, NEW, ManualClock())
    assert everything(record.parent) == before


def test_a_change_in_the_last_moment_is_noticed_and_kept(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def interfere(handle: int) -> None:
        real(handle)
        record.write_bytes(b"the kubelet was quicker")

    old = files.read(record)
    monkeypatch.setattr(os, "fsync", interfere)
    with pytest.raises(UserError, match="the file has changed in the meantime, so nothing was written"):
        files.replace(old, NEW, ManualClock())
    assert everything(record.parent) == {record.name: b"the kubelet was quicker"}


@pytest.mark.parametrize("point", ["backup.make", "backup.made", "file.written"])
def test_an_interrupt_leaves_no_backup_of_a_file_that_was_not_replaced(
    record: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def interrupt(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    for module in (files, host_files):
        monkeypatch.setattr(module, "reached", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.replace(files.read(record), NEW, ManualClock())
    assert [path.name for path in record.parent.iterdir()] == [record.name]


def test_backups_of_other_files_stay_when_a_repair_fails(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = files.replace(files.read(record), NEW, ManualClock())

    def interrupt(name: str) -> None:
        if name == "backup.made":
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "reached", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.replace(files.read(record), b"third", ManualClock())
    assert everything(record.parent) == {record.name: NEW, str(backup.relative_to(record.parent)): OLD}


def test_a_link_in_the_place_of_the_backups_is_not_followed(record: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").hardlink_to(record)
    record.with_name(f"{record.name}.backups").symlink_to(elsewhere)
    with pytest.raises(UserError, match="is a link"):
        files.replace(files.read(record), NEW, ManualClock())
    assert record.read_bytes() == OLD
    assert [path.name for path in elsewhere.iterdir()] == ["mine"]


# Every system call -----------------------------------------------------------------------------------

STRIDE = 4
"""The calls are dealt out to so many tests, which run side by side."""

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


class Call(msgspec.Struct, frozen=True):
    """One system call on the record or its folder: the n-th of its name in the process."""

    name: str
    number: int


def traced(record: Path, log: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(
                str(components.find("strace")),
                "-f",
                "-y",
                "-o",
                str(log),
                "-e",
                "trace=%file,%desc",
                *options,
            ),
            *(sys.executable, "-m", "tests.support.repairing", str(record)),
        ],
        cwd=REPO,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def calls(record: Path, log: Path) -> list[Call]:
    """The calls of a repair that nothing disturbs, in their order."""
    done = traced(record, log)
    assert done.returncode == 0, done.stderr
    found, counts = [], dict[str, int]()
    for line in log.read_text().splitlines():
        call = re.match(r"\d+ +(\w+)\(", line)
        if call:
            counts[call[1]] = counts.get(call[1], 0) + 1
            if str(record.parent) in line and call[1] != "execve":
                found.append(Call(call[1], counts[call[1]]))
    return found


def disturbed(record: Path, log: Path, call: Call, how: str) -> subprocess.CompletedProcess[str]:
    done = traced(record, log, "-e", f"inject={call.name}:{how}:when={call.number}")
    if how.startswith("error"):
        (line,) = [line for line in log.read_text().splitlines() if "(INJECTED)" in line]
        assert str(record.parent) in line, "the wrong call was disturbed"
    return done


def restored(record: Path) -> None:
    for path in record.parent.rglob("*"):
        if path.is_file():
            path.unlink()
    record.write_bytes(OLD)


@pytest.mark.needs("strace")
@pytest.mark.parametrize("start", range(STRIDE))
def test_whichever_system_call_fails_the_file_is_old_or_new_and_nothing_else_is_left(
    record: Path, tmp_path: Path, start: int
) -> None:
    log = tmp_path / "log"
    every = calls(record, log)
    names = {call.name for call in every}
    assert {"mkdir", "fchown", "fchmod", "write", "fsync", "close"} <= names, "else this proves little"
    backup = f"{record.name}.backups/{NOON}"
    for call in every[start::STRIDE]:
        restored(record)
        done = disturbed(record, log, call, "error=EIO")
        left = everything(record.parent)
        if left.get(record.name) == OLD:
            assert left == {record.name: OLD}, f"{call} leaves something behind"
            assert done.returncode == 2, f"{call}: {done.stderr}"
        else:
            assert left == {record.name: NEW, backup: OLD}, call
        if done.returncode:
            assert done.stderr.startswith("colocate: "), done.stderr
            assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.needs("strace")
@pytest.mark.parametrize("start", range(STRIDE))
def test_killed_at_any_system_call_the_file_is_old_or_new_and_can_be_repaired_again(
    record: Path, tmp_path: Path, start: int
) -> None:
    log = tmp_path / "log"
    outcomes = set()
    for call in calls(record, log)[start::STRIDE]:
        restored(record)
        done = disturbed(record, log, call, "signal=KILL")
        assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), call
        content = record.read_bytes()
        assert content in (OLD, NEW), call
        outcomes.add(content)
        if content == NEW:
            assert OLD in everything(record.parent).values(), f"{call}: there is no backup"
        files.replace(files.read(record), NEW, ManualClock())
        assert record.read_bytes() == NEW
    assert OLD in outcomes
