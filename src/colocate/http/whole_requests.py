"""Requests that are here as a whole, and plain: they are answered where they arrive.

Most questions of kube-scheduler are such. aiohttp has a task, timers and many objects for every request, which cost
more than most answers; here they are spared. aiohttp has parsed these requests all the same, and whatever is said in
more than the plainest HTTP goes its ordinary way.
"""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

from aiohttp import HttpVersion11, web
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader

MOST = 256 << 10
"""Bytes of a body: a question about some five thousand names."""
MOST_AWAITED = 64 << 10
"""Bytes of a body that comes bit by bit, and is still taken for one that is here as a whole."""
PATIENCE = 0.2
"""Seconds for the rest of such a body; whoever takes longer goes the ordinary way."""

_UNUSUAL = ("Content-Encoding", "Transfer-Encoding", "Expect", "Upgrade")
_COUNTS_MESSAGES = hasattr(HttpRequestParser, "message_consumed")
"""Younger parsers are told of every request that is dealt with."""

C_contra = TypeVar("C_contra", contravariant=True)
C = TypeVar("C")


class AtOnce(Protocol[C_contra]):
    """Who answers such requests, each with the connection that it came on."""

    def awaits(self, connection: C_contra, path: str, headers: Mapping[str, str]) -> bool:
        """Whether the caller may ask that, so that the rest of a body is worth waiting for."""

    def answer(
        self, connection: C_contra, path: str, headers: Mapping[str, str], body: bytes
    ) -> bytes | None:
        """JSON; None where the request shall be handled as any other, and be refused then if need be."""


class WholeRequestHandler(web.RequestHandler, Generic[C]):
    """A connection that looks at what has come before aiohttp handles it."""

    def __init__(
        self, *manager: Any, at_once: AtOnce[C] | None, answer_timeout: float, **settings: Any
    ) -> None:
        super().__init__(*manager, **settings)
        self._at_once = at_once
        self._answer_timeout = answer_timeout
        self._rest: asyncio.TimerHandle | None = None
        """Runs while a plain request waits for the rest of its body."""
        self._reader_timer: asyncio.TimerHandle | None = None
        """Runs while a caller may still have to read its answer."""
        self._reader_patience = 0.0
        """Until when that may last."""

    @abstractmethod
    def used(self) -> None:
        """A request is about to be answered."""

    @abstractmethod
    def reader_is_slow(self) -> None:
        """An answer was not read in time."""

    @property
    def awaits_rest(self) -> bool:
        return self._rest is not None

    def takes(self, data: bytes) -> bool:
        """Whether what has come is answered, or will be as soon as the rest of it is here; if not, aiohttp has it."""
        waiter = self._waiter
        if self._at_once is None or waiter is None or waiter.done():
            super().data_received(data)
            return False
        # aiohttp wakes its task for whatever has come; it sleeps on where that is answered right here.
        self._waiter = None
        try:
            super().data_received(data)
        finally:
            self._waiter = waiter
        if not self._messages:
            return False
        if self._answers(self._at_once):
            return True
        self.wake()
        return False

    def wake(self) -> None:
        """Let aiohttp handle what has come."""
        self._stop_waiting()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def resume_reading(self, *how: Any, **more: Any) -> None:
        # Of itself aiohttp goes through all this for every part of a body that is read.
        if self._reading_paused:
            super().resume_reading(*how, **more)

    def connection_lost(self, error: BaseException | None) -> None:
        self._stop_waiting()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        super().connection_lost(error)

    def _answers(self, at_once: AtOnce[Any]) -> bool:
        message, payload = self._messages[0]
        if len(self._messages) > 1 or self._paused or not _is_plain(message):
            return False
        body = _body_of(payload)
        if body is None:
            return self.awaits_rest or self._waits_for_rest(at_once, message)
        self._stop_waiting()
        self.used()
        answer = at_once.answer(self, message.path, message.headers, body)
        if answer is None or self.transport is None:
            return False
        self._messages.clear()
        if _COUNTS_MESSAGES and self._parser is not None:
            self._parser.message_consumed()
        self.transport.writelines((_head(len(answer)), answer))
        self._watch_reader()
        self._keep_alive()
        return True

    def _waits_for_rest(self, at_once: AtOnce[Any], message: RawRequestMessage) -> bool:
        if _stated_length(message) > MOST_AWAITED or not at_once.awaits(self, message.path, message.headers):
            return False
        self._rest = self._loop.call_later(PATIENCE, self.wake)
        return True

    def _stop_waiting(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _keep_alive(self) -> None:
        """As aiohttp does after an answer of its own: close the connection once nothing was asked for long."""
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(
                self._next_keepalive_close_time, self._process_keepalive
            )

    def _watch_reader(self) -> None:
        """See that an answer is read in time, unless all of it has found room on its way."""
        if not self._paused:
            return
        self._reader_patience = self._loop.time() + self._answer_timeout
        if self._reader_timer is None:
            self._reader_timer = self._loop.call_at(self._reader_patience, self._check_reader)

    def _check_reader(self) -> None:
        self._reader_timer = None
        if not self._paused:
            return
        if self._loop.time() < self._reader_patience:
            self._reader_timer = self._loop.call_at(self._reader_patience, self._check_reader)
            return
        self.reader_is_slow()


def _is_plain(message: object) -> TypeGuard[RawRequestMessage]:
    """Whether it is a POST that says nothing unusual and has a body of moderate size."""
    if (
        not isinstance(message, RawRequestMessage)
        or message.method != "POST"
        or message.version != HttpVersion11
        or message.should_close
    ):
        return False
    headers = message.headers
    for name in _UNUSUAL:
        if name in headers:
            return False
    return 0 < _stated_length(message) <= MOST


def _stated_length(message: RawRequestMessage) -> int:
    """The length of its body; 0 where it does not say."""
    # The parser has seen to it that this is a number, and that there is one such header.
    return int(message.headers.get("Content-Length", "0"))


def _body_of(payload: StreamReader) -> bytes | None:
    """The body, which stays where it is; None where not all of it is here."""
    if not payload.is_eof() or payload.exception() is not None:
        return None
    parts = payload._buffer
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _head(length: int) -> bytes:
    """What stands before so many bytes of JSON."""
    return b"%bContent-Length: %d\r\n\r\n" % (_head_at(int(time.time())), length)


@lru_cache(maxsize=1)
def _head_at(second: int) -> bytes:
    date = formatdate(second, usegmt=True)
    return f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: {date}\r\n".encode()
