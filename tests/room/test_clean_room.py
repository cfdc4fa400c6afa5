"""The clean room hides what this machine has, tells what a command leaves, and is gone whatever ends it."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.room import leftovers
from tests.room.__main__ import LEFT, NO_ROOM
from tests.room.folders import CHECKOUT, COVERED, Folders
from tests.room.leftovers import Before
from tests.support.waiting import until

ROOM = [sys.executable, "-m", "tests.room"]
AS_A_USER = ["unshare", "--user"]
"""Who has no rights: in a namespace where no user has a name."""
LONGEST_PATH = 11
"""Of a folder for temporary files in which a demo, whose folders are deepest, can have its sockets."""


def may(*words: str) -> bool:
    try:
        return subprocess.run([*words, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


as_root = pytest.mark.skipif(
    os.geteuid() != 0 or not may("unshare", "--mount"), reason="only root has mounts of its own"
)
as_a_user = pytest.mark.skipif(not may(*AS_A_USER), reason="there are no namespaces for users here")


def run(
    script: str, *, by: list[str] | None = None, patience: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(by or []), *ROOM, "--patience", str(patience), "sh", "-c", script],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, **environment},
    )


def left(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What was left, but for control groups of tests that run beside this one."""
    mark = "clean room: left behind: "
    lines = [line.removeprefix(mark) for line in done.stderr.splitlines() if line.startswith(mark)]
    return [line for line in lines if not line.startswith("control group") or "colocate-room-" in line]


@pytest.mark.parametrize(
    ("script", "code"), [("true", 0), ("exit 7", 7), ("kill -TERM $$", 128 + signal.SIGTERM)]
)
def test_a_command_that_leaves_nothing_ends_as_it_would_elsewhere(script: str, code: int) -> None:
    done = run(script, patience=240)  # of which only what a test beside this one makes and removes takes some
    assert (done.returncode, left(done)) == (code, [])


def test_what_is_left_in_the_home_and_among_temporary_files_is_a_failure() -> None:
    done = run("mkdir -p $HOME/a/b; touch $TMPDIR/c; mkdir $TMPDIR/pytest-of-me")
    assert done.returncode == LEFT
    assert left(done) == ["file $HOME/a", "file $TMPDIR/c"]


def test_a_folder_that_may_be_left_is_looked_into(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.watched = {tmp_path: "/run"}
    before = Before(folders, janitor=0)
    (tmp_path / "containerd" / "s").mkdir(parents=True)
    assert "file /run/containerd" not in before.left(0)
    (tmp_path / "containerd" / "s" / "shim").touch()
    assert "file /run/containerd/s/shim" in before.left(0)


def test_a_file_of_the_checkout_that_is_changed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "README").write_text("as it was")
    for words in (["init", "-q"], ["add", "README"]):
        subprocess.run(["git", "-c", "init.defaultBranch=main", *words], cwd=checkout, check=True)
    monkeypatch.setattr(leftovers, "CHECKOUT", checkout)
    (tmp_path / "room").mkdir()
    before = Before(Folders(tmp_path / "room"), janitor=0)
    (checkout / "README").write_text("changed")
    (checkout / "new").touch()
    told = [line for line in before.left(0) if "checkout" in line]
    assert told == ["file README in the checkout", "file new in the checkout"]


def test_a_process_that_is_left_is_a_failure_and_ends() -> None:
    done = run("setsid sleep 1000 >/dev/null 2>&1 & echo $!")
    pid = int(done.stdout)
    assert done.returncode == LEFT
    (line,) = left(done)
    assert line.startswith(f"process {pid}: ")
    assert not Path(f"/proc/{pid}").exists()


def test_a_command_that_fails_keeps_its_exit_code_and_what_it_left_is_told() -> None:
    done = run("touch $HOME/a; exit 9")
    assert (done.returncode, left(done)) == (9, ["file $HOME/a"])


@as_root
def test_what_is_left_in_the_folders_of_the_machine_is_a_failure_and_no_longer_there() -> None:
    files = [*(path / "x" for path in COVERED), Path("/dev/shm/room-x")]
    done = run("; ".join(f"touch {file}" for file in files))
    assert done.returncode == LEFT
    assert sorted(left(done)) == sorted(f"file {file}" for file in files)
    assert not any(file.exists() for file in files)


@as_root
def test_a_mount_that_is_left_is_a_failure_and_none_of_this_machine() -> None:
    done = run("mkdir $TMPDIR/pytest-of-me; mount -t tmpfs colocate-room $TMPDIR/pytest-of-me")
    assert done.returncode == LEFT
    assert [line.split()[0] for line in left(done)] == ["mount"]
    assert "colocate-room" not in Path("/proc/mounts").read_text()


@as_root
def test_a_control_group_that_is_left_is_a_failure() -> None:
    tops = [
        path
        for path in map(Path, ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"))
        if (path / "cgroup.procs").exists()
    ]
    group = tops[0] / f"colocate-room-{os.getpid()}"
    try:
        done = run(f"mkdir -p {group}/inner")
        assert done.returncode == LEFT
        assert f"control group {group}" in left(done)
    finally:
        (group / "inner").rmdir()
        group.rmdir()


@as_root
def test_what_this_machine_has_is_not_seen() -> None:
    done = run(f"ls -A {shlex.join(map(str, COVERED))} $HOME $TMPDIR /tmp /dev/shm | grep -v :$ | grep .")
    assert (done.returncode, done.stdout) == (1, "")


@as_a_user
def test_who_may_not_mount_has_a_home_and_temporary_files_of_its_own() -> None:
    done = run("ls -A $HOME $TMPDIR; touch $HOME/a $TMPDIR/b", by=AS_A_USER)
    assert done.returncode == LEFT
    assert left(done) == ["file $HOME/a", "file $TMPDIR/b"]


def test_no_setting_of_the_outside_leads_into_it() -> None:
    done = run(
        "env",
        COLOCATE_LOG_LEVEL="debug",
        COLOCATE_TEST_PATIENCE="61",
        KUBECONFIG="/outside",
        XDG_CONFIG_HOME="/outside",
        HOME="/outside",
        TMPDIR="/tmp",
    )
    seen = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert "/outside" not in seen.values()
    assert "COLOCATE_LOG_LEVEL" not in seen
    assert seen["COLOCATE_TEST_PATIENCE"] == "61"


@pytest.mark.parametrize("by", [[], pytest.param(AS_A_USER, marks=as_a_user)], ids=["here", "user"])
def test_temporary_files_have_a_short_path_since_sockets_have_at_most_107_bytes(by: list[str]) -> None:
    done = run("printf %s $TMPDIR", by=by, TMPDIR="/tmp")
    assert len(done.stdout) <= LONGEST_PATH, done.stdout


def test_no_command_is_a_sentence() -> None:
    done = subprocess.run(ROOM, capture_output=True, text=True, cwd=CHECKOUT)
    assert (done.returncode, done.stderr.count("\n")) == (NO_ROOM, 1)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL], ids=lambda one: one.name
)
async def test_a_room_that_is_ended_leaves_neither_its_folder_nor_a_process(number: signal.Signals) -> None:
    # One process that does not listen, and one that has forgotten the room and its parent.
    forgot = "setsid env -i sleep 1000 >/dev/null 2>&1 &"
    script = f'trap "" TERM INT HUP; {forgot} echo $CLEAN_ROOM $! $$; exec sleep 1000'
    process = await asyncio.create_subprocess_exec(
        *[*ROOM, "--patience", "0", "sh", "-c", script],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    scratch, *pids = (await process.stdout.readline()).decode().split()
    process.send_signal(number)
    assert await process.wait() == (128 + number if number != signal.SIGKILL else -number)
    hidden = (
        os.geteuid() != 0 and number == signal.SIGKILL
    )  # without mounts the one that forgot cannot be found
    await until(lambda: not Path(scratch).exists(), "the room to be gone")
    await until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids[hidden:]), "the room's processes to end"
    )
    assert scratch not in Path("/proc/mounts").read_text()
