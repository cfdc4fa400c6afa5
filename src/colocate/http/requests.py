"""Reads requests off bytes: first line, headers and chunks. No sockets, no clock.

httptools parses and bounds nothing; every bound is here. So is the search for the end of a head and of a body of
stated length: what follows it is never taken for a part of it.
"""

from httptools import (
    HttpParserError,
    HttpParserInvalidURLError,
    HttpParserUpgrade,
    HttpRequestParser,
    parse_url,
)

MOST_HEAD = 32 << 10
"""Bytes of a first line with all its headers."""
MOST_LINE = 8190
"""Bytes of the first line, and of each header."""
MOST_HEADERS = 128
_MOST_DIGITS = 18
"""Of a Content-Length."""
_CHUNK_OVERHEAD = 16 << 10
"""Bytes of chunk sizes, extensions and trailers that come with a body, besides one for every two of its own."""

_ONCE = (b"host", b"content-length", b"transfer-encoding")
_CHUNKED_HEAD = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class NotHttp(Exception):
    """What has come is not a request in HTTP, or is more than any request needs."""


def head_length(data: bytes) -> int:
    """Bytes of the head that the data begin with, 0 while its end has not come; NotHttp where it becomes none."""
    end = data.find(b"\r\n\r\n")
    if end > MOST_HEAD:
        raise NotHttp
    if end >= 0:
        return end + 4
    if len(data) > MOST_HEAD or len(data) - data.rfind(b"\n") > MOST_LINE or not data[:1].isalpha():
        raise NotHttp
    return 0


class HttpRequest:
    """The head of a request."""

    __slots__ = (
        "_repeated",
        "_target",
        "headers",
        "keep_alive",
        "length",
        "method",
        "newest",
        "path",
        "query",
    )

    def __init__(self, head: bytes) -> None:
        """NotHttp where it is none, or could be read in two ways."""
        self.headers: dict[bytes, bytes] = {}
        """By their names in small letters; of several with one name, the first."""
        self._target = b""
        self._repeated = False
        line = head[: head.index(b"\r\n")]
        self.newest = line.endswith(b" HTTP/1.1")
        """Whether it is HTTP/1.1 and not 1.0."""
        too_long = len(head) > MOST_LINE and max(map(len, head.split(b"\r\n"))) > MOST_LINE
        if (
            too_long
            or head.count(b"\n") > MOST_HEADERS + 2
            or not (self.newest or line.endswith(b" HTTP/1.0"))
        ):
            raise NotHttp
        parser = HttpRequestParser(self)
        try:
            parser.feed_data(head)
        except HttpParserUpgrade:
            # Not answered: what follows is read as HTTP.
            pass
        except HttpParserError:
            raise NotHttp from None
        if self._repeated or (self.newest and b"host" not in self.headers):
            raise NotHttp
        self.method = parser.get_method().decode()
        said = self.headers.get(b"connection", b"").lower()
        self.keep_alive = b"close" not in said and (self.newest or b"keep-alive" in said)
        """Whether its caller may send another request after it."""
        self.path, self.query = _split(self._target)
        """As they were sent, in ASCII."""
        self.length = self._body_length()
        """Bytes of the body; None where it comes in chunks."""

    @property
    def expects_continue(self) -> bool:
        return self.newest and self.headers.get(b"expect", b"").lower() == b"100-continue"

    def header(self, name: bytes) -> str:
        """Its value, '' where it is not there. Bytes that are not text are kept as surrogates."""
        return self.headers.get(name, b"").decode(errors="surrogateescape")

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name not in self.headers:
            self.headers[name] = value
        elif name in _ONCE:
            self._repeated = True

    def _body_length(self) -> int | None:
        stated = self.headers.get(b"content-length")
        coding = self.headers.get(b"transfer-encoding")
        if coding is not None:
            if stated is not None or coding.lower() != b"chunked" or not self.newest:
                raise NotHttp
            return None
        if stated is None:
            return 0
        if not stated.isdigit() or len(stated) > _MOST_DIGITS:
            raise NotHttp
        return int(stated)


class Chunks:
    """A body that comes in chunks."""

    def __init__(self) -> None:
        self._found = _Found()
        self._parser = HttpRequestParser(self._found)
        self._parser.feed_data(_CHUNKED_HEAD)
        self._length = 0
        self._overhead = 0
        self.surplus = False
        """Whether something followed its end: that is lost."""

    @property
    def whole(self) -> bool:
        return self._found.whole

    def feed(self, data: bytes) -> list[bytes]:
        """The parts of the body in the next data; NotHttp where they are none, or where little of much is body."""
        self._found.parts = []
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            if not self.whole:
                raise NotHttp(str(error)) from None
            self.surplus = True
        parts = self._found.parts
        length = sum(map(len, parts))
        self._length += length
        self._overhead += len(data) - length
        if not self.surplus and self._overhead > _CHUNK_OVERHEAD + self._length // 2:
            raise NotHttp("its chunks are too small, or too much is sent besides them")
        return parts


class _Found:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.whole = False

    def on_message_begin(self) -> None:
        if self.whole:
            raise NotHttp

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)

    def on_message_complete(self) -> None:
        self.whole = True


def _split(target: bytes) -> tuple[str, str]:
    """Path and query."""
    if target.startswith(b"/"):
        path, _, query = target.partition(b"?")
        return path.decode(), query.decode()
    try:
        url = parse_url(target)
    except HttpParserInvalidURLError:
        raise NotHttp from None
    return (url.path or b"/").decode(), (url.query or b"").decode()
