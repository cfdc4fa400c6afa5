"""ttrpc: requests and answers in frames with a length and a stream. No I/O here.

Only unary calls: NRI uses no streams.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum

import msgspec

from colocate.errors import ColocateError
from colocate.wire.mux import GarbledStream

LONGEST_BODY = 4 << 20
_HEADER = struct.Struct(">IIBB")


class FrameKind(IntEnum):
    """The kind of a frame. Frames of other kinds are ignored."""

    REQUEST = 1
    RESPONSE = 2


class StatusCode(IntEnum):
    """How a call ended, in gRPC's numbers."""

    OK = 0
    INVALID_ARGUMENT = 3
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12


class CallRefused(ColocateError):
    """An error as the answer to a call: raised by `call`, or by a handler to send one."""

    def __init__(self, code: int, message: str, payload: bytes = b"") -> None:
        super().__init__(message)
        self.code = code
        self.payload = payload
        """The payload of the answer, beside the error."""


class Frame(msgspec.Struct, frozen=True):
    """One frame."""

    stream: int
    kind: int
    body: bytes


class FrameReader:
    """Assembles frames from the parts in which they arrive. It buffers one frame at most."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, part: bytes | memoryview) -> Iterator[Frame]:
        """The frames that are complete with this part."""
        self._held += part
        held, start = self._held, 0
        while len(held) - start >= _HEADER.size:
            length, stream, kind, _ = _HEADER.unpack_from(held, start)
            if length > LONGEST_BODY:
                raise GarbledStream(
                    f"a frame of {length} bytes was announced, at most {LONGEST_BODY} are read"
                )
            end = start + _HEADER.size + length
            if len(held) < end:
                break
            yield Frame(stream, kind, bytes(memoryview(held)[start + _HEADER.size : end]))
            start = end
        if start:
            # A new buffer, so that the memory of a large frame is freed.
            self._held = held[start:]


def encode_frame(stream: int, kind: FrameKind, body: bytes) -> bytes:
    """The bytes of a frame."""
    return _HEADER.pack(len(body), stream, kind, 0) + body
