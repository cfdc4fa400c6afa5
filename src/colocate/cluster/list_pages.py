"""Reads lists page by page, with one page in memory at a time; objects are not decoded.

Pages are bounded in bytes. Tenants can make objects large: a page with too many bytes is requested again with fewer
objects, so that no tenant's pods keep those of others from being read.

If a list's continuation expires between two pages, the list starts again and the caller is told so (`Page.first`).
Earlier pages stay true, but are no longer the beginning of one consistent list.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import msgspec

from colocate.cluster.errors import Doing, Gone, TooLong, unreadable
from colocate.cluster.resources import Resource, Selection
from colocate.cluster.transport import Request
from colocate.model.figures import amount

T = TypeVar("T")
Ask = Callable[[Request], Awaitable[bytes]]

_WHOLE_AFTER = 3
"""After this many expired lists, the whole list is requested at once, so that slow reading ends."""
_FEWER = 8
"""The factor by which fewer objects are requested after a page was too long."""


class ListBounds(msgspec.Struct, frozen=True):
    """Bounds of all pages of one list; a longer list is an error."""

    objects: int
    bytes: int


class Page(msgspec.Struct, frozen=True):
    """Some objects of a list."""

    items: list[msgspec.Raw]
    version: str
    """The resourceVersion of the list: after the last page, a watch continues from it."""
    first: bool
    """Whether a list begins with this page, for the first time or again."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    metadata: _Metadata
    items: list[msgspec.Raw] | None = None


async def pages(
    ask: Ask,
    resource: Resource[T],
    selection: Selection,
    limit: int,
    from_server_cache: bool = False,
    *,
    bounds: ListBounds,
) -> AsyncGenerator[Page, None]:
    """The pages of a list. With `from_server_cache`, the server's cached state in one page.

    The cached state may be a moment old, but a server can send it to five thousand agents at once; without it, the
    list is as new as the request.

    `ask` bounds each page, `bounds` all of them.
    """
    doing = Doing("list", resource.qualified, selection.namespace)
    path = resource.path(selection.namespace)
    expired = objects = length = 0
    following = ""
    while True:
        parameters = dict(selection.parameters())
        if limit and expired < _WHOLE_AFTER:
            parameters["limit"] = str(limit)
        if following:
            parameters["continue"] = following
        elif from_server_cache:
            parameters["resourceVersion"] = "0"
        try:
            body = await ask(Request(doing, "GET", path, parameters))
        except Gone:
            if not following:
                raise
            expired, following = expired + 1, ""
            continue
        except TooLong:
            if limit <= 1 or "limit" not in parameters:
                raise
            # A server sends its cached state whole, whatever the limit.
            limit, from_server_cache = max(1, limit // _FEWER), False
            continue
        listed = _decode(body, doing)
        # A page without objects was requested, too.
        objects, length = objects + len(listed.items or ()) + 1, length + len(body)
        if objects > bounds.objects or length > bounds.bytes:
            raise unreadable(
                doing, f"the list has more than {bounds.objects} objects, or {amount(bounds.bytes)}"
            )
        yield Page(listed.items or [], listed.metadata.resource_version, first=not following)
        following = listed.metadata.continue_
        if not following:
            return


async def first_page(
    ask: Ask, resource: Resource[T], selection: Selection, limit: int, bounds: ListBounds
) -> Page:
    """Only the first page of a list."""
    async with aclosing(pages(ask, resource, selection, limit, bounds=bounds)) as found:
        return await anext(found)


def _decode(body: bytes, doing: Doing) -> _List:
    try:
        return msgspec.json.decode(body, type=_List)
    except (ValueError, RecursionError) as error:
        raise unreadable(doing, str(error)) from error
