"""Lists, page by page, their objects left undecoded: a page in memory at a time, however long the list.

A list whose continuation expires between two pages is begun anew by telling the caller so; pages that were
given out before stay true, they are only no longer the beginning of one consistent list.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import msgspec

from colocate.cluster.errors import Doing, Gone, unreadable
from colocate.cluster.resources import Resource, Selection
from colocate.cluster.transport import Request

T = TypeVar("T")
Ask = Callable[[Request], Awaitable[bytes]]

_WHOLE_AFTER = 3
"""After so many expired lists the whole is asked for at once: slow reading must come to an end."""


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
) -> AsyncGenerator[Page, None]:
    """The pages of a list. With `from_server_cache`, whatever the server has at hand, in one page.

    That may be a moment old, and is what a server can answer to five thousand agents at once; without it,
    the list is as new as the request.
    """
    doing = Doing("list", resource.qualified, selection.namespace)
    path = resource.path(selection.namespace)
    expired = 0
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
        listed = _decode(body, doing)
        yield Page(listed.items or [], listed.metadata.resource_version, first=not following)
        following = listed.metadata.continue_
        if not following:
            return


async def first_page(ask: Ask, resource: Resource[T], selection: Selection, limit: int) -> Page:
    """The beginning of a list, and no more of it."""
    async with aclosing(pages(ask, resource, selection, limit)) as found:
        return await anext(found)


def _decode(body: bytes, doing: Doing) -> _List:
    try:
        return msgspec.json.decode(body, type=_List)
    except (ValueError, RecursionError) as error:
        raise unreadable(doing, str(error)) from error
