"""Watches: the current objects, then every change, as lines of JSON.

An object that enters a selection is reported as ADDED and one that leaves it as DELETED, whatever changed in it. A
client that asks for changes that were dropped gets the error 410 as a line.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from colocate.clock import Clock
from colocate.lab.api.changes import Change, Stored, Type
from colocate.lab.api.lists import select
from colocate.lab.api.objects import encode
from colocate.lab.api.query import ListQuery
from colocate.lab.api.representation import Renderer
from colocate.lab.api.resources import ServedResource
from colocate.lab.api.selectors import ObjectSelection
from colocate.lab.api.status import too_old
from colocate.lab.api.store import ObjectStore

BOOKMARK_SECONDS = 60.0
LONGEST_SECONDS = 1800.0
_LAST_BOOKMARK = 2.0
"""Seconds before the end of a watch at which its last bookmark is sent."""
_CHUNK = 256


class Subject(msgspec.Struct, frozen=True):
    """The objects to watch, and the start."""

    resource: ServedResource
    namespace: str
    selection: ObjectSelection
    revision: int | None = None
    """Watch changes after this revision; None begins with all current objects."""
    initial: bool = True
    bookmarks: bool = False
    initial_end: bool = False
    """Whether a bookmark marks the end of the initial objects."""
    seconds: float = LONGEST_SECONDS


def subject(resource: ServedResource, namespace: str, query: ListQuery) -> Subject:
    """The subject of a watch request."""
    query.check_list()
    revision = query.revision()
    asked = "sendInitialEvents" in query.given
    initial = query.flag("sendInitialEvents") if asked else revision is None
    return Subject(
        resource,
        namespace,
        query.selection(resource.storage),
        revision,
        initial,
        query.flag("allowWatchBookmarks"),
        asked and initial and query.flag("allowWatchBookmarks"),
        float(query.number("timeoutSeconds") or LONGEST_SECONDS),
    )


class Watch:
    """One watch. `lines` yields the bytes to send, with all pending changes at a time."""

    def __init__(self, store: ObjectStore, clock: Clock, subject: Subject, renderer: Renderer) -> None:
        self._store = store
        self._clock = clock
        self._subject = subject
        self._renderer = renderer
        self._changes = store.changes(subject.resource.storage)
        self._generation = store.generation

    async def lines(self, stopping: asyncio.Future[None]) -> AsyncIterator[bytes]:
        """Bytes to send; ends at the time-out, at an error, or when the server stops."""
        subject = self._subject
        floor = subject.revision or 0
        if subject.initial:
            position, floor = self._changes.end, self._store.revision
            for piece in self._initial(floor):
                yield piece
        elif (found := self._changes.after(floor)) is not None:
            position = found
        else:
            yield self._gone(floor)
            return
        async with _Timer(self._clock, subject) as timer:
            while True:
                batch = self._changes.since(position) if self._generation == self._store.generation else None
                if batch is None:
                    yield self._gone(floor)
                    return
                if batch:
                    position += len(batch)
                    if told := self._told(batch, floor):
                        yield told
                    floor = max(floor, batch[-1].revision)
                    continue
                turn = self._changes.turn()
                await asyncio.wait((turn, timer.task, stopping), return_when=asyncio.FIRST_COMPLETED)
                if stopping.done() or timer.is_over:
                    return
                if timer.task.done():
                    if self._changes.end == position and self._generation == self._store.generation:
                        floor = max(floor, self._store.revision)
                        yield self._renderer.bookmark(floor, initial_end=False)
                    timer.again()

    def _initial(self, revision: int) -> list[bytes]:
        subject, now = self._subject, self._clock.time()
        found = select(self._store, subject.resource, subject.namespace, subject.selection)
        pieces = [
            b"".join([self._renderer.event("ADDED", one, now) for one in found[start : start + _CHUNK]])
            for start in range(0, len(found), _CHUNK)
        ]
        if subject.initial_end:
            pieces.append(self._renderer.bookmark(revision, initial_end=True))
        return pieces

    def _told(self, batch: list[Change], floor: int) -> bytes:
        now = self._clock.time()
        told = (self._tell(change) for change in batch if change.revision > floor)
        return b"".join([self._renderer.event(one[0], one[1], now) for one in told if one])

    def _tell(self, change: Change) -> tuple[str, Stored] | None:
        subject = self._subject
        if subject.namespace and change.now.key.namespace != subject.namespace:
            return None
        if subject.selection.is_everything:
            return change.type, change.now
        was = change.before is not None and subject.selection.matches(change.before.body)
        is_now = change.type is not Type.DELETED and subject.selection.matches(change.now.body)
        if was and is_now:
            return change.type, change.now
        if is_now:
            return Type.ADDED, change.now
        if not was or change.before is None:
            return None
        if change.type is Type.DELETED:
            return Type.DELETED, change.now
        # An object that left the selection is shown in its last matching state, with the revision of its leaving.
        return Type.DELETED, _left(change.before, change.revision)

    def _gone(self, floor: int) -> bytes:
        error = too_old(floor, max(self._changes.horizon, floor + 1))
        return encode({"type": "ERROR", "object": error.status()}) + b"\n"


def _left(before: Stored, revision: int) -> Stored:
    stamped = before.body["metadata"] | {"resourceVersion": str(revision)}
    body = before.body | {"metadata": stamped}
    return Stored(before.key, revision, body, encode(body))


class _Timer:
    """Wakes a watch for its next bookmark and at its end."""

    def __init__(self, clock: Clock, subject: Subject) -> None:
        self._clock = clock
        self._bookmarks = subject.bookmarks
        self._period = BOOKMARK_SECONDS if subject.bookmarks else subject.seconds
        self._end = clock.monotonic() + subject.seconds
        self.task: asyncio.Task[None]

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._end

    def again(self) -> None:
        left = self._end - self._clock.monotonic()
        # The last bookmark comes just before the end, as from a real API server.
        last = left - _LAST_BOOKMARK if self._bookmarks and left > _LAST_BOOKMARK else left
        self.task = asyncio.create_task(self._clock.sleep(max(0.0, min(self._period, last))))

    async def __aenter__(self) -> "_Timer":
        self.again()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
