"""One request and its answer, as a server's handler sees them. Nothing is read or written here."""

import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from email.utils import formatdate
from enum import StrEnum
from functools import lru_cache
from http import HTTPStatus

import msgspec

from colocate.http.requests import HttpRequest

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class HttpAnswer(msgspec.Struct, frozen=True):
    """What is sent back."""

    body: bytes | AsyncIterator[bytes]
    """An iterator is asked for the next part when the caller has read most of those before."""
    status: int = 200
    kind: str = JSON
    """Its Content-Type."""
    headers: Mapping[str, str] = {}
    """Further headers."""
    close: bool = False
    """Whether it is the last of its connection."""

    def head(self, *, newest: bool, last: bool) -> bytes:
        """The status line and all headers, for a caller that speaks HTTP/1.1, or 1.0; `last` on its connection."""
        head = _beginning(self.status, self.kind, int(time.time()))
        for name, value in self.headers.items():
            head += f"{name}: {value}\r\n".encode()
        if last:
            head += b"Connection: close\r\n"
        elif not newest:
            head += b"Connection: keep-alive\r\n"
        if isinstance(self.body, bytes):
            return b"%bContent-Length: %d\r\n\r\n" % (head, len(self.body))
        return head + (b"Transfer-Encoding: chunked\r\n\r\n" if newest else b"\r\n")


Reply = HttpAnswer | Awaitable[HttpAnswer]
"""An answer that is here is sent where the request arrives, without a task."""


class BodyFault(StrEnum):
    """Why the rest of a body is not waited for."""

    LATE = "late"
    """It did not come within the time for bodies."""
    BROKEN = "broken"
    """Its chunks are not HTTP."""


class Sent(StrEnum):
    """How an exchange ended."""

    WHOLE = ""
    SLOW = "slow"
    """The caller did not read its answer in time, and was cut off."""
    GONE = "gone"
    """The caller hung up, or was cut off for another reason."""


class Exchange:
    """One request from its headers to the end of its answer. A handler overrides what it needs."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request

    def begin(self) -> Reply | None:
        """The headers have come; None where the body is wanted before there is an answer."""
        return None

    def add(self, part: bytes) -> HttpAnswer | None:
        """The next part of the body has come; an answer where no more of it is wanted."""
        return None

    def end(self) -> Reply:
        """All of the body has come."""
        raise NotImplementedError

    def fail(self, fault: BodyFault, reason: str) -> HttpAnswer:
        """The rest of the body is not waited for."""
        return text_page(400, reason, close=True)

    def ended(self, sent: Sent) -> None:
        """The answer was sent, or never will be. Called once, after all other methods."""


def text_page(
    status: int, *lines: str, close: bool = False, headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    """An answer for people, one sentence a line."""
    return HttpAnswer("".join(f"{line}\n" for line in lines).encode(), status, TEXT, headers or {}, close)


@lru_cache(maxsize=16)
def _beginning(status: int, kind: str, second: int) -> bytes:
    phrase = HTTPStatus(status).phrase
    date = formatdate(second, usegmt=True)
    return f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {kind}\r\nDate: {date}\r\n".encode()
