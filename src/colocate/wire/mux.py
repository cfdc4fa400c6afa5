"""NRI's mux: several logical connections over one stream, in pieces with a connection number and a length. No I/O
here.

The bytes of a piece are passed on as they arrive and never collected, so that a false length costs no memory.
"""

import struct
from collections.abc import Iterator

from colocate.errors import ColocateError

PLUGIN_SERVICE = 1
"""The connection on which the runtime calls the plugin."""
RUNTIME_SERVICE = 2
"""The connection on which the plugin calls the runtime."""

LONGEST_PIECE = (4 << 20) + 10
"""The longest piece accepted, in bytes: a whole frame of ttrpc."""
_WRITTEN_PIECE = 4096
"""The longest piece written, in bytes: runtimes read into a buffer of this size, and hang up where a piece does not
fit."""

_HEADER = struct.Struct(">II")


class GarbledStream(ColocateError):
    """The bytes cannot come from a runtime; the connection has to be closed."""


class MuxReader:
    """Splits a stream into pieces, wherever reads cut it."""

    def __init__(self) -> None:
        self._header = b""
        self._connection = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """The parts of pieces in these bytes, each with its connection number."""
        view = memoryview(data)
        while view:
            if self._left == 0:
                missing = _HEADER.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) < _HEADER.size:
                    return
                self._connection, self._left = _HEADER.unpack(self._header)
                self._header = b""
                if self._left > LONGEST_PIECE:
                    raise GarbledStream(
                        f"a piece of {self._left} bytes was announced, at most {LONGEST_PIECE} are read"
                    )
                continue
            part = view[: self._left]
            view = view[len(part) :]
            self._left -= len(part)
            yield self._connection, part


def pieces(connection: int, data: bytes) -> bytes:
    """The bytes as pieces of a connection."""
    if len(data) <= _WRITTEN_PIECE:
        return _HEADER.pack(connection, len(data)) + data
    parts = (data[start : start + _WRITTEN_PIECE] for start in range(0, len(data), _WRITTEN_PIECE))
    return b"".join(_HEADER.pack(connection, len(part)) + part for part in parts)
