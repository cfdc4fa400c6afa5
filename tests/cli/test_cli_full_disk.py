"""What commands write, on a disk that is full or broken: one sentence, and nothing half-written."""

import argparse
import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.broken_disk import broken

from colocate.cli import main as command_line
from colocate.cli import scheduler_questions
from colocate.errors import UserError
from colocate.lab.api import kubeconfig
from colocate.lab.api.changes import StoreKey
from colocate.lab.api.disk import Disk
from colocate.lab.api.store import ObjectStore
from colocate.scheduler.loop import decision_log

CODES = [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EMFILE]
every_code = pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)


@every_code
@pytest.mark.parametrize("taken", [0, 7, 25], ids="{} bytes".format)
def test_decisions_that_a_full_disk_takes_in_part_leave_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, code: int
) -> None:
    file = tmp_path / "decision_log.jsonl"
    decision_log.append(file, [b'{"n":1}\n'], 1 << 20, 2)
    whole = decision_log._write_whole

    def partly(opened: Any, data: bytes) -> None:
        os.write(opened.fileno(), data[:taken])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(decision_log, "_write_whole", partly)
    with pytest.raises(OSError, match=os.strerror(code)):
        decision_log.append(file, [b'{"n":2}\n', b'{"n":3, "long": "aaaaaaaaaaaaa"}\n'], 1 << 20, 2)
    monkeypatch.setattr(decision_log, "_write_whole", whole)
    decision_log.append(file, [b'{"n":4}\n'], 1 << 20, 2)
    assert file.read_text() == '{"n":1}\n{"n":4}\n'


def test_decisions_of_which_a_call_takes_some_are_written_to_the_end(tmp_path: Path) -> None:
    class Slow:
        taken = b""

        def write(self, data: memoryview) -> int:
            self.taken += bytes(data[:3])
            return len(data[:3])

    slow: Any = Slow()
    decision_log._write_whole(slow, b"0123456789")
    assert slow.taken == b"0123456789"


@every_code
@pytest.mark.parametrize("call", ["mkstemp", "write", "fsync", "replace"])
def test_a_snapshot_is_old_or_new_and_its_failure_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    file = tmp_path / "snapshot.json"
    file.write_bytes(b"old")
    monkeypatch.setattr(scheduler_questions, "_ask", lambda *_, **__: b'{"new": true}')
    monkeypatch.setattr(scheduler_questions, "decoded", lambda *_: None)
    args = argparse.Namespace(file=file, url="http://127.0.0.1:1")
    with broken(tmp_path, code, call), pytest.raises(UserError, match=r"snapshot.json cannot be written \("):
        scheduler_questions.write_snapshot(args)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"snapshot.json": b"old"}
    scheduler_questions.write_snapshot(args)
    assert file.read_bytes() == b'{"new": true}'


def test_a_snapshot_goes_to_a_pipe_as_well(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    scheduler_questions._write(pipe, b"body")
    assert os.read(reader, 10) == b"body"
    os.close(reader)
    assert pipe.is_fifo()


@every_code
@pytest.mark.parametrize("call", ["mkstemp", "write", "fsync", "replace"])
def test_a_kubeconfig_is_old_or_new_and_no_other_file_is_left(tmp_path: Path, call: str, code: int) -> None:
    file = tmp_path / "kubeconfig"
    kubeconfig.write(file, {"old": True})
    with broken(tmp_path, code, call), pytest.raises(OSError, match=os.strerror(code)):
        kubeconfig.write(file, {"new": True})
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("kubeconfig", "old: true\n")]


def test_a_state_file_that_is_full_takes_all_of_a_write_or_nothing_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.db"
    disk = Disk(path)
    store = ObjectStore(disk)
    store.create(StoreKey("pods", "default", "first"), {"metadata": {"name": "first"}})
    pages = disk._sql.execute("PRAGMA page_count").fetchone()[0]
    disk._sql.execute(f"PRAGMA max_page_count = {pages}")
    large: dict[str, Any] = {"metadata": {"name": "large"}, "data": "x" * 100_000}
    with pytest.raises(
        UserError, match=r"state.db cannot be written \(database or disk is full\); make room"
    ):
        store.create(StoreKey("pods", "default", "large"), dict(large))
    assert [stored.key.name for stored in store.items("pods")] == ["first"]
    disk._sql.execute("PRAGMA max_page_count = 100000")
    store.create(StoreKey("pods", "default", "large"), dict(large))
    store.close()
    again = ObjectStore(Disk(path))
    assert [stored.key.name for stored in again.items("pods")] == ["first", "large"]
    again.close()


def test_a_state_file_that_cannot_begin_a_write_is_not_left_in_the_middle_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "state.db")
    store = ObjectStore(disk)

    def fail() -> None:
        raise UserError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "begin", fail)
        with pytest.raises(UserError, match="disk I/O error"):
            store.create(StoreKey("pods", "default", "first"), {"metadata": {"name": "first"}})
    seen = store.changed.count
    store.create(StoreKey("pods", "default", "second"), {"metadata": {"name": "second"}})
    assert store.changed.count == seen + 1, "its watchers are told"
    store.close()


@every_code
def test_a_command_for_which_the_machine_has_no_room_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), "/tmp/colocate")

    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    with pytest.raises(SystemExit) as ended:
        command_line.main(["lab", "--nodes", "0"])
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert said.startswith(f"colocate: /tmp/colocate: {os.strerror(code).lower()}; ")
    assert said.count("\n") == 1
