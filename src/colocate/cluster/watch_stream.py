"""Decodes one watch from bytes to events. It ends when the server ends it; errors are raised."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from colocate.cluster.cached_objects import ObjectMarks, marks_of
from colocate.cluster.errors import ApiStatus, ClusterError, Doing, from_status
from colocate.model.figures import amount

_AT_ONCE = 64
"""Events that are read before other tasks run, even if the server sends without a pause."""


class UnreadableEvent(ClusterError):
    """A line that is not an event: the change is lost, and a new list is needed."""


class WatchEvent(msgspec.Struct, frozen=True):
    """ADDED, MODIFIED, DELETED or BOOKMARK, and the object."""

    type: str
    marks: ObjectMarks
    raw: msgspec.Raw


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_LINE = msgspec.json.Decoder(_Line)
_STATUS = msgspec.json.Decoder(ApiStatus)


async def events(
    doing: Doing, pieces: AsyncIterator[bytes], longest: int
) -> AsyncGenerator[list[WatchEvent], None]:
    """The events of a watch, in batches as they arrive; each has at most `longest` bytes."""
    rest = bytearray()
    async for piece in pieces:
        known = len(rest)
        rest += piece
        end = rest.rfind(b"\n", known)
        if end < 0:
            if len(rest) > longest:
                raise UnreadableEvent(f"cannot {doing}: an event of more than {amount(longest)}")
            continue
        lines = bytes(rest[:end]).split(b"\n")
        del rest[: end + 1]
        found: list[WatchEvent] = []
        for line in lines:
            if not line:
                continue
            try:
                found.append(event_of(doing, line))
            except ClusterError:
                # Events before the error are valid and new.
                if found:
                    yield found
                raise
            if len(found) == _AT_ONCE:
                yield found
                found = []
                await asyncio.sleep(0)
        yield found
        await asyncio.sleep(0)
    # A rest without a line end was cut off. It comes again, from the last version that was read.


def event_of(doing: Doing, line: bytes) -> WatchEvent:
    """Decode one line. An ERROR event is raised as an exception."""
    try:
        read = _LINE.decode(line)
        if read.type == "ERROR":
            status = _STATUS.decode(read.object)
        else:
            return WatchEvent(read.type, marks_of(read.object), read.object)
    except (ValueError, RecursionError) as error:
        raise UnreadableEvent(f"cannot {doing}: an event cannot be read: {error}") from error
    raise from_status(doing, status)
