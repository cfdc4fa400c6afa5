"""Lists, page by page, their objects left undecoded: a page in memory at a time, however long the list.

Pages are bounded in bytes. Tenants can make objects large: a page that has too many bytes is asked for again with
fewer objects, so that no tenant's pods keep those of others from being read.

A list whose continuation expires between two pages is begun anew by telling the caller so; pages that were
given out before stay true, they are only no longer the beginning of one consistent list.
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
"""After so many expired lists the whole is asked for at once: slow reading must come to an end."""
_FEWER = 8
"""So many times fewer objects are asked for where a page is too long."""


class ListBounds(msgspec.Struct, frozen=True):
    """How much a server may answer to one list, in all its pages; what is beyond it is no list of any cluster."""

    objects: int
    bytes: int


class Page(msgspec.Struct, frozen=True):
    """Some objects of a list."""

    items: list[msgspec.Raw]
    version: str
    """The resourceVersion of the list: a watch goes on from it after the last page."""
    first: bool
    """Whether a list begins here, the first time or anew."""


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
    """The pages of a list. With `from_server_cache`, whatever the server has at hand, in one page.

    That may be a moment old, and is what a server can answer to five thousand agents at once; without it,
    the list is as new as the request.

    Each page is bounded by whoever answers `ask`, all of them by `bounds`.
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
            # What a server has at hand comes whole, whatever the limit.
            limit, from_server_cache = max(1, limit // _FEWER), False
            continue
        listed = _decode(body, doing)
        # A page without objects is one that was asked for, too.
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
    """The beginning of a list, and no more of it."""
    async with aclosing(pages(ask, resource, selection, limit, bounds=bounds)) as found:
        return await anext(found)


def _decode(body: bytes, doing: Doing) -> _List:
    try:
        return msgspec.json.decode(body, type=_List)
    except (ValueError, RecursionError) as error:
        raise unreadable(doing, str(error)) from error
