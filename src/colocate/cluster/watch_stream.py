"""One watch: from bytes to events. Ends when the server ends it; what goes wrong is raised."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from colocate.cluster.cached_objects import ObjectMarks, marks_of
from colocate.cluster.errors import ApiStatus, ClusterError, Doing, from_status
from colocate.model.figures import amount

_AT_ONCE = 64
"""Events that are read before others have their turn: of a server that tells without a pause, too."""


class UnreadableEvent(ClusterError):
    """A line that is no event: what it would have said is lost, and only a new list can tell."""


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
    """The events of a watch, as many at a time as have arrived, each of at most `longest` bytes."""
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
                # What came before the error is true, and later than anything known.
                if found:
                    yield found
                raise
            if len(found) == _AT_ONCE:
                yield found
                found = []
                await asyncio.sleep(0)
        yield found
        await asyncio.sleep(0)
    # What is left without an end of line was cut off. It comes again from the last version that was read.


def event_of(doing: Doing, line: bytes) -> WatchEvent:
    """One line. An ERROR is raised as the error that it stands for."""
    try:
        read = _LINE.decode(line)
        if read.type == "ERROR":
            status = _STATUS.decode(read.object)
        else:
            return WatchEvent(read.type, marks_of(read.object), read.object)
    except (ValueError, RecursionError) as error:
        raise UnreadableEvent(f"cannot {doing}: an event cannot be read: {error}") from error
    raise from_status(doing, status)
