"""Prepares the standard streams, so that a problem with them ends in one sentence.

A closed stream is replaced by one that fails when used: commands that do not use it still work.
"""

import codecs
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

from colocate.errors import UserError, system_reason

_ESCAPED = "colocate.escaped"
_ALIKE = {
    **dict(zip("✓✗–·×■□█░▒│├└─◆", "+x-.x#.#.:||`-*", strict=True)),
    "→": "->",
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
}
"""ASCII replacements of our own signs."""


@contextmanager
def ready() -> Iterator[None]:
    """Usable streams; at the end everything is written, or a UserError says why not."""
    _open_closed()
    codecs.register_error(_ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPED)
    output = _Output(sys.stdout)
    with redirect_stdout(cast(TextIO, output)):
        try:
            yield
        finally:
            output.flush()


def _open_closed() -> None:
    # In the order of their numbers: an opened file gets the lowest free number.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""What the stream's encoding does not have: our own signs as what looks alike, all else as \uXXXX.

    Data (JSON, YAML) has none of them left when it comes here: `output.harmless` has written them in full.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ALIKE.get(sign) or json.dumps(sign)[1:-1] for sign in missing), error.end


class _Output:
    """Standard output that raises a UserError if it cannot be written, to tell it from other OSErrors."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._one_sentence():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._one_sentence():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _one_sentence(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Python would try again when it ends, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            reason = system_reason(error)
            raise UserError(f"standard output: cannot be written ({reason}); send it elsewhere") from error
