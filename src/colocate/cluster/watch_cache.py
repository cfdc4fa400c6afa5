"""Keeps the objects of one kind up to date: list, watch, and list again when the watch cannot continue.

The cache holds what the server said last; `health` says how long ago that was. It survives an expired version
(410), a connection that drops, ends or falls silent, a restart, a server that refuses for a while, and even one
whose versions restart because its state was lost or restored. Missed changes are found by comparing, and reported
like any other change.

A list is applied page by page, so that it needs the memory of one page: meanwhile the cache holds some objects in
their new and others in their old state. Missed deletions are reported at its end.
"""

import asyncio
import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import aclosing
from typing import Generic, TypeVar

import msgspec

from colocate.aio import Watched, deadline
from colocate.backoff import BackOff, Random
from colocate.cluster.cached_objects import CachedObjects, ObjectIndex, ObjectMarks, marks_of
from colocate.cluster.changes import Change, Key
from colocate.cluster.client import EVERYTHING, Client
from colocate.cluster.errors import ClusterError, Doing, Gone, Unreachable, unreadable
from colocate.cluster.list_pages import Page, first_page, pages
from colocate.cluster.resources import Resource, Selection
from colocate.cluster.transport import Request
from colocate.cluster.watch_health import WatchHealth, WatchRecord
from colocate.cluster.watch_stream import UnreadableEvent, WatchEvent, events
from colocate.errors import UserError

_BY_CHANCE = 0.2
_EARLY = 5.0
"""A watch that ends up to this many seconds early still counts as ended on time."""

T = TypeVar("T")
Handler = Callable[[Change[T]], None]


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a cache lists and watches.

    Watches are short, so that a stalled watch is told from a quiet one within a minute: a healthy server sends a
    bookmark and ends the watch at the requested time. Continuing from there costs the server almost nothing.
    Kubernetes' own clients wait for five to ten minutes.
    """

    page: int = 500
    """Objects per page of a list."""
    from_server_cache: bool = False
    """Let the first list be a moment old, which costs the server almost nothing. Right for thousands of agents that
    each read the few pods of their node; the list then comes in one page."""
    watch_seconds: float = 40.0
    """Seconds after which a watch ends and continues, plus up to a fifth at random."""
    silence: float = 8.0
    """Seconds after the end of a watch at which the connection counts as dead."""
    history_seconds: float = 300.0
    """Seconds between checks, by a list of one object, that the server still has the history that we know; it is
    also checked after every watch that did not end on time."""
    first_pause: float = 0.8
    last_pause: float = 30.0
    """The longest pause between attempts, in seconds. Pauses double from the first to this one, plus jitter of up
    to the same length."""


class _HistoryChanged(ClusterError):
    """The server's versions are no longer those that we know."""


class WatchCache(Generic[T]):
    """The objects of a selection, kept up to date by `run`."""

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        selection: Selection = EVERYTHING,
        settings: WatchSettings | None = None,
        random: Random = random.random,
    ) -> None:
        self._client = client
        self._clock = client.clock
        self._resource = resource
        self._selection = selection
        self._settings = settings or WatchSettings()
        self._random = random
        self._objects = CachedObjects(resource.shape)
        self._record = WatchRecord(resource.qualified, client.clock)
        self._handlers: list[Handler[T]] = []
        self._synced = asyncio.Event()
        self._version: str | None = None
        self._opened: float | None = None
        """When the server began to answer the current watch; None before."""
        self._sure_since: float | None = None
        """When the server's history was last confirmed; None while it is in doubt."""
        self.changed = Watched()
        """Notifies waiters whenever something has changed."""

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter([value for _, value in self._objects.items()])

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def items(self) -> list[tuple[Key, T]]:
        return list(self._objects.items())

    def add_index(self, function: Callable[[T], Hashable]) -> ObjectIndex[T]:
        """Add an index of objects by what the function reads from them; objects for which it returns None are left
        out."""
        return self._objects.add_index(function)

    def add_handler(self, handler: Handler[T]) -> None:
        """Call the handler with every change from now on, in order, after cache and indexes are updated."""
        self._handlers.append(handler)

    async def synced(self) -> None:
        """Return once the first list is complete, and handlers have got it."""
        await self._synced.wait()

    def is_past(self, version: str) -> bool:
        """Whether all changes up to a version have arrived: an object that is not in the cache then is gone."""
        told = self._version
        return told is not None and told.isdigit() and version.isdigit() and int(told) >= int(version)

    @property
    def health(self) -> WatchHealth:
        record = self._record
        return WatchHealth(
            record.synced,
            len(self._objects),
            len(self._objects.skipped),
            record.last_contact,
            record.relists,
            record.errors,
            record.last_error,
        )

    async def run(self) -> None:
        """List and watch until cancelled, whatever happens to the server."""
        settings = self._settings
        back_off = BackOff(settings.first_pause, settings.last_pause, self._random)
        reason = "start"
        while True:
            self._opened = None
            pause: float | None = None
            try:
                if self._version is None:
                    await self._list(reason)
                elif self._is_in_doubt:
                    await self._check_history()
                await self._watch()
            except (ClusterError, UserError) as error:
                if isinstance(error, Gone | UnreadableEvent | _HistoryChanged):
                    self._version, reason = None, _REASONS[type(error)]
                self._sure_since = None
                pause = back_off.pause(getattr(error, "retry_after", None))
                self._record.failed(error, pause)
            lived = 0.0 if self._opened is None else self._clock.monotonic() - self._opened
            if lived >= settings.last_pause:
                # It worked for a while, so this is a new failure.
                back_off.reset()
                pause = None if self._version is None else pause
            elif pause is None and lived < settings.first_pause:
                # A server that ends watches at once is shutting down.
                pause = back_off.pause()
            if pause is not None:
                await self._clock.sleep(pause)

    @property
    def _is_in_doubt(self) -> bool:
        now = self._clock.monotonic()
        return self._sure_since is None or now - self._sure_since >= self._settings.history_seconds

    async def _list(self, reason: str) -> None:
        found: set[Key] = set()
        version = ""
        settings = self._settings
        # A new list must not be older than the state that it replaces.
        cached = settings.from_server_cache and not self._record.synced
        ask = self._client.ask_once
        bounds = self._client.settings.list_bounds
        async for page in pages(ask, self._resource, self._selection, settings.page, cached, bounds=bounds):
            if page.first:
                found.clear()
            version = page.version
            self._take(page, found)
            self._record.contact()
        self._tell(self._objects.keep_only(found))
        self._version = version
        self._sure_since = self._clock.monotonic()
        self._record.listed(reason, len(self._objects))
        self._synced.set()

    def _take(self, page: Page, found: set[Key]) -> None:
        for raw in page.items:
            marks = self._marks(raw)
            found.add(self._objects.key_of(marks))
            self._put(marks, raw)

    def _marks(self, raw: msgspec.Raw) -> ObjectMarks:
        try:
            return marks_of(raw)
        except (ValueError, RecursionError) as error:
            raise unreadable(self._doing("list"), str(error)) from error

    async def _check_history(self) -> None:
        """Make sure that the server still has the history that we know, before a watch continues from a version of
        it.

        A watch from a version of another history would wait forever, or miss changes. The history is the same if
        the server's version is not older than ours and it has an object that we know by its uid.
        """
        assert self._version is not None
        bounds = self._client.settings.list_bounds
        page = await first_page(self._client.ask_once, self._resource, self._selection, 1, bounds)
        self._record.contact()
        if _is_before(page.version, self._version):
            raise self._other_history(f"it is at version {page.version} and was at {self._version}")
        if not page.items:
            if len(self._objects):
                raise self._other_history("all known objects are gone")
            self._sure_since = self._clock.monotonic()
            return
        raw = page.items[0]
        marks = self._marks(raw)
        if not self._objects.knows(marks):
            raise self._other_history(f"{marks.name} is not in the cache")
        unchanged = not _is_before(self._version, marks.resource_version)
        if unchanged and not self._objects.agrees(marks, raw):
            raise self._other_history(f"{marks.name} differs at the same version")
        self._sure_since = self._clock.monotonic()

    def _other_history(self, found: str) -> _HistoryChanged:
        return _HistoryChanged(f"cannot {self._doing('watch')} from where it ended: {found}; listing again")

    async def _watch(self) -> None:
        settings = self._settings
        seconds = settings.watch_seconds * (1 + _BY_CHANCE * self._random())
        doing = self._doing("watch")
        parameters = {
            **self._selection.parameters(),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(int(seconds)),
        }
        path = self._resource.path(self._selection.namespace)
        request = Request(doing, "GET", path, parameters, streamed=True)
        longest, most = seconds + settings.silence, self._client.settings.longest_answer
        try:
            async with deadline(self._clock, longest), self._client.stream(request) as pieces:
                self._opened = self._clock.monotonic()
                self._record.contact()
                async with aclosing(events(doing, pieces, most)) as batches:
                    async for batch in batches:
                        self._record.contact()
                        for event in batch:
                            self._follow(event)
                        self._record.held(len(self._objects))
        except TimeoutError:
            raise Unreachable(f"cannot {doing}: the server stopped sending") from None
        if self._opened is None or self._clock.monotonic() - self._opened < seconds - _EARLY:
            # A server that shuts down ends its watches properly; the next one may be another server.
            self._sure_since = None

    def _follow(self, event: WatchEvent) -> None:
        marks = event.marks
        if self._version is not None and _is_before(marks.resource_version, self._version):
            raise self._other_history(f"version {marks.resource_version} comes after {self._version}")
        match event.type:
            case "ADDED" | "MODIFIED":
                self._put(marks, event.raw)
            case "DELETED":
                self._tell(self._objects.remove(marks, event.raw))
        # Also from bookmarks, which exist only for that, and from event types of the future.
        self._version = marks.resource_version or self._version

    def _put(self, marks: ObjectMarks, raw: msgspec.Raw) -> None:
        key = self._objects.key_of(marks)
        known = key in self._objects.skipped
        most = self._client.settings.most_objects
        if len(self._objects) + len(self._objects.skipped) >= most and key not in self._objects and not known:
            raise UnreadableEvent(f"cannot {self._doing('watch')}: there are more than {most} objects")
        self._tell(self._objects.put(marks, raw))
        why = self._objects.skipped.get(key)
        if why is not None and not known:
            self._record.skipped(str(key), why)

    def _tell(self, changes: list[Change[T]]) -> None:
        for change in changes:
            for handler in self._handlers:
                try:
                    handler(change)
                except Exception:  # noqa: BLE001 - one handler's fault must not blind the others
                    self._record.handler_failed(str(change.key))
        if changes:
            self.changed.changed()

    def _doing(self, verb: str) -> Doing:
        return Doing(verb, self._resource.qualified, self._selection.namespace)


_REASONS: dict[type[ClusterError], str] = {
    Gone: "expired",
    UnreadableEvent: "unreadable",
    _HistoryChanged: "history changed",
}


def _is_before(version: str, other: str) -> bool:
    """Whether a version is older than another; False for versions that are not numbers."""
    return version.isdigit() and other.isdigit() and int(version) < int(other)
