"""A file is old or new, never in between, whichever system call fails."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colocate.host.files import write_atomically

pytestmark = pytest.mark.vm("mini", here=True)


def test_the_new_content_and_mode_are_there(tmp_path: Path) -> None:
    target = tmp_path / "state"
    write_atomically(target, b"one")
    write_atomically(target, b"two", mode=0o644)
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_called_before_sees_the_old_file_and_may_keep_it(tmp_path: Path) -> None:
    target = tmp_path / "state"
    write_atomically(target, b"old")
    seen = []
    write_atomically(target, b"new", before=lambda: seen.append(target.read_bytes()))
    assert (seen, target.read_bytes()) == ([b"old"], b"new")

    def refuse() -> None:
        raise ValueError("not now")

    with pytest.raises(ValueError, match="not now"):
        write_atomically(target, b"newer", before=refuse)
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


CALLS = ["tempfile.mkstemp", "os.fchown", "os.fchmod", "os.fsync", "os.rename", "os.replace"]
"""In the order in which they are made; of the two renames one is."""


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failure_of_any_system_call_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    target = tmp_path / "state"
    write_atomically(target, b"old")
    failed = []

    def fail(*_: Any, **__: Any) -> Any:
        failed.append(call)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(call, fail)
    with contextlib.suppress(OSError):
        write_atomically(target, b"new", owner=(os.getuid(), os.getgid()))
    monkeypatch.undo()
    assert target.read_bytes() == (b"old" if failed else b"new")
    assert list(tmp_path.iterdir()) == [target], "a temporary file is left"


def test_every_call_of_the_table_above_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would prove nothing."""
    reached: set[str] = set()

    def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            reached.add(name)
            return real(*args, **kwargs)

        return call

    for name in ("fchown", "fchmod", "fsync", "replace", "rename", "open"):
        monkeypatch.setattr(os, name, watch(name, getattr(os, name)))
    write_atomically(tmp_path / "state", b"x", owner=(os.getuid(), os.getgid()))
    assert {"fchown", "fchmod", "fsync", "open"} < reached
    assert reached & {"replace", "rename"}
