"""A disk that fails as a test wants: system calls on the files below one folder, and on no others."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CALLS = ("mkstemp", "write", "fchmod", "fsync", "replace", "rename", "unlink", "open")
"""By which a file is written, replaced or removed; `open` is of the folder, to make its names durable."""


class _Writes:
    """An open file whose writes fail."""

    def __init__(self, file: Any, code: int) -> None:
        self._file = file
        self._code = code

    def __enter__(self) -> "_Writes":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> int:
        raise OSError(self._code, os.strerror(self._code))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def broken(folder: Path, code: int, *calls: str) -> Iterator[list[str]]:
    """Let these calls fail; yields the names of those that did, in order."""
    failed: list[str] = []

    def is_below(what: Any) -> bool:
        path = Path(f"/proc/self/fd/{what}").readlink() if isinstance(what, int) else Path(what)
        return path == folder or folder in path.parents

    def failing(name: str, real: Callable[..., Any], where: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not is_below(where(*args, **kwargs)):
                return real(*args, **kwargs)
            failed.append(name)
            if name == "write":
                return _Writes(real(*args, **kwargs), code)
            raise OSError(code, os.strerror(code), str(where(*args, **kwargs)))

        return call

    def first(what: Any, *_: Any, **__: Any) -> Any:
        return what

    with pytest.MonkeyPatch.context() as patch:
        for name in calls:
            match name:
                case "mkstemp":
                    real = failing(name, tempfile.mkstemp, lambda *_, **named: named["dir"])
                    patch.setattr(tempfile, "mkstemp", real)
                case "write":
                    patch.setattr(os, "fdopen", failing(name, os.fdopen, first))
                case "open":
                    patch.setattr("colocate.host.files.os.open", failing(name, os.open, first))
                case _:
                    patch.setattr(os, name, failing(name, getattr(os, name), first))
        yield failed
