"""Holds the bodies of requests in memory, and never more of them than is allowed: each, and all together.

The limits hold for what a body is decompressed to, while it is: a small one that unfolds to gigabytes is turned
away at its first byte too many.
"""

import zlib

from colocate.http.requests import HttpRequest
from colocate.scheduler.server.refusal import RequestOutcome, RequestRefused
from colocate.scheduler.settings import ServerLimits
from colocate.wire.body_meter import BodyMeter

_GZIP = 16 + zlib.MAX_WBITS


class Bodies:
    """The bodies of all requests that are under way."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.held = 0
        """Bytes, of all that were read and not yet released."""


class Body:
    """The body of one request, part by part; it must be released when it was dealt with."""

    def __init__(self, request: HttpRequest, meter: BodyMeter, bodies: Bodies) -> None:
        """RequestRefused where it says that it will be too large, or is packed in an unknown way."""
        self.length = 0
        self._bodies = bodies
        self._meter = meter
        self._parts: list[bytes] = []
        if request.length is not None and request.length > bodies.limits.body:
            raise self._too_large(f"the body has {request.length} bytes, more")
        self._unpack = _unpacker(request)

    def add(self, data: bytes) -> None:
        """The next part has come; RequestRefused, or TooMany, as soon as it is known that it is too much."""
        limits = self._bodies.limits
        part = data if self._unpack is None else self._unpack(data, limits.body + 1 - self.length)
        self._parts.append(part)
        self.length += len(part)
        self._bodies.held += len(part)
        if self.length > limits.body:
            raise self._too_large("the body has more bytes")
        if self._bodies.held > limits.bodies:
            raise RequestRefused(
                503,
                RequestOutcome.BUSY,
                f"requests in progress already hold {limits.bodies} bytes, the limit "
                f"(server.limits.bodies); ask again",
                Retry_After="1",
            )
        self._meter.add(part)

    def whole(self) -> bytes:
        """All of it; RequestRefused where its end is missing."""
        if self._unpack is not None and not self._unpack.whole:
            raise RequestRefused(
                400, RequestOutcome.UNREADABLE, "the body ends in the middle of its gzip data"
            )
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def release(self) -> None:
        """Hold it no longer; may be called twice."""
        self._bodies.held -= self.length
        self.length = 0
        self._parts.clear()

    def _too_large(self, found: str) -> RequestRefused:
        return RequestRefused(
            413,
            RequestOutcome.TOO_LARGE,
            f"{found} than the {self._bodies.limits.body} allowed (server.limits.body); with nodeCacheCapable: true "
            f"kube-scheduler sends names instead of whole nodes",
        )


class _Gunzip:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)

    @property
    def whole(self) -> bool:
        return self._stream.eof

    def __call__(self, data: bytes, most: int) -> bytes:
        """What this part unfolds to, at most so much of it."""
        try:
            unfolded = self._stream.decompress(data, most)
        except zlib.error as error:
            raise RequestRefused(
                400,
                RequestOutcome.UNREADABLE,
                f"the body is not gzip, although its Content-Encoding says so: {error}",
            ) from None
        if self._stream.unused_data:
            raise RequestRefused(
                400, RequestOutcome.UNREADABLE, "the body goes on after the end of its gzip data"
            )
        return unfolded


def _unpacker(request: HttpRequest) -> _Gunzip | None:
    coding = request.header(b"content-encoding").strip().lower()
    if coding in ("", "identity"):
        return None
    if coding in ("gzip", "x-gzip"):
        return _Gunzip()
    raise RequestRefused(
        415, RequestOutcome.UNREADABLE, f"the body is encoded as {coding[:40]!r}; send it plain, or as gzip"
    )
