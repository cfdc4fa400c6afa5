"""The API client: a few operations on objects of any kind, typed by the caller, with readable errors.

Objects are decoded by msgspec straight into the caller's shape, which has a handful of fields: nothing else is
built of 5000 nodes or 150 000 pods. There is no client library underneath. lightkube (1.0) was considered: its
kubeconfig reads one file, its exec plugins have no time-out, its delete takes no precondition, and its watch ends
at the first object that cannot be read. What would be left is its HTTP client, httpx2, which was measured at four
times the CPU per watch event of aiohttp, which this project uses anyway.

Reads are retried a few times where that may help. A write is retried only where the server cannot have seen it, or
was too busy to begin it (429). aiohttp itself sends a PUT or DELETE a second time when a kept connection turns out
to be closed: Conflict or NotFound may then be the answer to our own first attempt.
"""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from enum import StrEnum
from types import TracebackType
from typing import TypeVar

import msgspec

from colocate.backoff import BackOff, Random
from colocate.clock import Clock, SystemClock
from colocate.cluster.connection import Connection
from colocate.cluster.errors import (
    ClusterError,
    Doing,
    ServerError,
    TooManyRequests,
    Unreachable,
    Untrusted,
    unreadable,
)
from colocate.cluster.json_patch import Operation
from colocate.cluster.list_pages import ListBounds, pages
from colocate.cluster.resources import PODS, Object, Resource, Selection
from colocate.cluster.transport import JSON_PATCH, LONGEST_ANSWER, Request, Transport
from colocate.crashpoints import reached

T = TypeVar("T")

Body = Mapping[str, object] | msgspec.Struct
"""An object to send: a mapping, or a struct that msgspec encodes as one."""

EVERYTHING = Selection()


class Merge(StrEnum):
    """The kinds of patch that have the shape of the object itself."""

    MERGE = "application/merge-patch+json"
    """RFC 7386: lists are replaced, null removes."""
    STRATEGIC = "application/strategic-merge-patch+json"
    """Kubernetes' own kind: lists are merged by key. For built-in kinds only."""


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts, retries and bounds of the client."""

    timeout: float = 30.0
    """Seconds for one request, including reading its answer."""
    list_timeout: float = 60.0
    """Seconds for one page of a list."""
    attempts: int = 4
    """How often a request is sent at most, where repeating it is safe."""
    first_pause: float = 0.5
    last_pause: float = 8.0
    """The longest pause between attempts, in seconds. Pauses double from the first to this one, plus jitter of up
    to the same length."""
    page: int = 500
    """Objects per page of a list."""
    longest_answer: int = LONGEST_ANSWER
    """The most bytes of one answer, decompressed, and of one watch event. A longer page of a list is requested
    again with fewer objects."""
    most_objects: int = 1_000_000
    """The most objects of one list, and of one watch cache."""
    longest_list: int = 16 << 30
    """The most bytes of all pages of one list together; only one page is in memory at a time."""

    @property
    def list_bounds(self) -> ListBounds:
        return ListBounds(self.most_objects, self.longest_list)


class Client:
    """A client of one API server. Use it as an async context manager, or call `close`."""

    def __init__(
        self,
        connection: Connection,
        clock: Clock | None = None,
        settings: ClientSettings | None = None,
        random: Random = random.random,
        transport: Transport | None = None,
    ) -> None:
        self.connection = connection
        self.clock = clock or SystemClock()
        self.settings = settings or ClientSettings()
        self.random = random
        self._transport = transport or Transport(connection, self.clock)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which the server's clock is ahead of ours according to its last answer, to about a second."""
        return self._transport.clock_offset

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        """Read one object."""
        place = self._place(resource, namespace)
        doing = Doing("get", resource.qualified, place, name)
        request = Request(doing, "GET", resource.path(place, name))
        return _decode(await self.ask(request), resource.shape, doing)

    async def list(self, resource: Resource[T], selection: Selection = EVERYTHING) -> "list[T]":
        """All objects of a selection; of all namespaces where it names none."""
        doing = Doing("list", resource.qualified, selection.namespace)
        found: list[T] = []
        async for page in pages(
            self.ask, resource, selection, self.settings.page, bounds=self.settings.list_bounds
        ):
            if page.first:
                found.clear()
            found += [_decode(one, resource.shape, doing) for one in page.items]
        return found

    async def list_now(
        self, resource: Resource[T], selection: Selection, *, most: int, longest: int
    ) -> Sequence[T]:
        """All objects of a selection as they are now, without retries, and without those that cannot be read.

        ClusterError where there are more objects than `most`, or their pages have more bytes than `longest`.
        """

        async def ask(request: Request) -> bytes:
            return await self.ask_once(msgspec.structs.replace(request, at_most=longest // 8))

        doing = Doing("list", resource.qualified, selection.namespace)
        found: list[T] = []
        async for page in pages(
            ask, resource, selection, self.settings.page, bounds=ListBounds(most, longest)
        ):
            if page.first:
                found.clear()
            for one in page.items:
                with suppress(ClusterError):
                    found.append(_decode(one, resource.shape, doing))
        return found

    async def create(
        self, resource: Resource[T], body: Body, namespace: str = "", dry_run: bool = False
    ) -> T:
        """Create an object; AlreadyExists where the name is taken."""
        place = self._place(resource, namespace)
        doing = Doing("create", resource.qualified, place)
        request = Request(doing, "POST", resource.path(place), _dry(dry_run), msgspec.json.encode(body))
        return _decode(await self.ask(request), resource.shape, doing)

    async def replace(
        self,
        resource: Resource[T],
        name: str,
        body: Body,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """Replace an object. With a resourceVersion in the body, Conflict where the object has changed since."""
        place = self._place(resource, namespace)
        doing = Doing("update", _part(resource, subresource), place, name)
        path = resource.path(place, name, subresource)
        request = Request(doing, "PUT", path, _dry(dry_run), msgspec.json.encode(body))
        return _decode(await self.ask(request), resource.shape, doing)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Sequence[Operation] | Body,
        namespace: str = "",
        subresource: str = "",
        merge: Merge = Merge.MERGE,
        dry_run: bool = False,
    ) -> T:
        """Change a part of an object: a sequence of operations is a JSON patch, a body is a patch of the kind
        `merge`.

        PreconditionFailed where a JSON patch's `test` does not hold.
        """
        place = self._place(resource, namespace)
        doing = Doing("patch", _part(resource, subresource), place, name)
        kind = JSON_PATCH if isinstance(patch, Sequence) else str(merge)
        path = resource.path(place, name, subresource)
        request = Request(doing, "PATCH", path, _dry(dry_run), msgspec.json.encode(patch), kind)
        return _decode(await self.ask(request), resource.shape, doing)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        uid: str = "",
        grace: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete an object, or begin its deletion. With a uid, Conflict where the object has another uid."""
        place = self._place(resource, namespace)
        doing = Doing("delete", resource.qualified, place, name)
        body = msgspec.json.encode(_delete_options(uid, grace))
        await self.ask(Request(doing, "DELETE", resource.path(place, name), _dry(dry_run), body))

    async def evict(
        self, name: str, namespace: str = "", uid: str = "", grace: int | None = None, dry_run: bool = False
    ) -> None:
        """Ask for a pod's eviction once. TooManyRequests where a disruption budget forbids it now.

        `eviction.evict` retries until it is allowed.
        """
        place = self._place(PODS, namespace)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": place},
            "deleteOptions": _delete_options(uid, grace),
        }
        doing = Doing("create", "pods/eviction", place, name)
        path = PODS.path(place, name, "eviction")
        # Here 429 means a disruption budget, not a busy server.
        await self.ask_once(Request(doing, "POST", path, _dry(dry_run), msgspec.json.encode(body)))

    async def bind(
        self,
        name: str,
        node: str,
        namespace: str = "",
        uid: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Bind a pod to a node, without retries. Conflict where it already has a node, or is another pod. The
        server sets the annotations in the same write."""
        place = self._place(PODS, namespace)
        marks: Object = {"name": name, "namespace": place, **({"uid": uid} if uid else {})}
        if annotations:
            marks["annotations"] = dict(annotations)
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": marks,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        doing = Doing("create", "pods/binding", place, name)
        await self.ask(
            Request(doing, "POST", PODS.path(place, name, "binding"), {}, msgspec.json.encode(body))
        )

    async def ask(self, request: Request) -> bytes:
        """Send a request; retry where that is safe and may help."""
        settings = self.settings
        back_off = BackOff(settings.first_pause, settings.last_pause, self.random)
        for _ in range(settings.attempts - 1):
            try:
                return await self.ask_once(request)
            except Untrusted:
                raise
            except Unreachable as error:
                if error.sent and request.method != "GET":
                    raise
                pause = back_off.pause()
            except TooManyRequests as error:
                pause = back_off.pause(error.retry_after)
            except ServerError as error:
                if request.method != "GET" or error.code < 500:
                    raise
                pause = back_off.pause(error.retry_after)
            await self.clock.sleep(pause)
        return await self.ask_once(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Stream an answer, without retries; `settings.timeout` is for its beginning."""
        return self._transport.stream(request, self.settings.timeout)

    async def ask_once(self, request: Request) -> bytes:
        """Send a request without retries."""
        if request.method == "GET":
            return await self._send(request)
        reached(f"cluster.{request.doing.verb}")
        answer = await self._send(request)
        reached(f"cluster.{request.doing.verb}.done")
        return answer

    async def _send(self, request: Request) -> bytes:
        listing = request.doing.verb == "list"
        seconds = self.settings.list_timeout if listing else self.settings.timeout
        return await self._transport.ask(request, seconds, self.settings.longest_answer)

    def _place(self, resource: Resource[T], namespace: str) -> str:
        return (namespace or self.connection.namespace) if resource.namespaced else ""


def _decode(body: bytes | msgspec.Raw, shape: type[T], doing: Doing) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (ValueError, RecursionError) as error:
        raise unreadable(doing, str(error)) from error


def _part(resource: Resource[T], subresource: str) -> str:
    return f"{resource.qualified}/{subresource}" if subresource else resource.qualified


def _dry(dry_run: bool) -> Mapping[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _delete_options(uid: str, grace: int | None) -> Object:
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if uid:
        options["preconditions"] = {"uid": uid}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    return options
