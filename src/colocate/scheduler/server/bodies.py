"""Reads the bodies of requests into memory, and never more of them than is allowed: each, and all together.

The limits hold for what a body is decompressed to, while it is: a small one that unfolds to gigabytes is turned
away at its first byte too many.
"""

import asyncio
import zlib

from aiohttp import ClientConnectionError, web

from colocate.scheduler.server.refusal import RequestOutcome, RequestRefused
from colocate.scheduler.settings import ServerLimits
from colocate.wire.body_meter import BodyMeter

_GZIP = 16 + zlib.MAX_WBITS


class Bodies:
    """The bodies of all requests that are under way."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self.held = 0
        """Bytes, of all that were read and not yet released."""

    async def read(self, request: web.BaseRequest, meter: BodyMeter) -> bytes:
        """The body of a request, which must be released when it was dealt with; RequestRefused, or TooMany, as soon
        as it is known that it will not be dealt with."""
        stated = request.content_length
        if stated is not None and stated > self._limits.body:
            raise self._too_large(f"the body has {stated} bytes, more")
        unpack = _unpacker(request)
        parts: list[bytes] = []
        length = 0
        content = request.content
        # A timer and no more: most bodies are here at once, and asyncio.timeout costs more than to read them.
        timer = asyncio.get_running_loop().call_later(
            self._limits.body_timeout, content.set_exception, TimeoutError()
        )
        try:
            await _say_continue(request)
            while data := await content.readany():
                part = data if unpack is None else unpack(data, self._limits.body + 1 - length)
                parts.append(part)
                length += len(part)
                self.held += len(part)
                self._check(length)
                meter.add(part)
            if unpack is not None and not unpack.whole:
                raise RequestRefused(
                    400, RequestOutcome.UNREADABLE, "the body ends in the middle of its gzip data"
                )
        except BaseException as error:
            self.release(length)
            if isinstance(error, TimeoutError):
                raise RequestRefused(
                    408,
                    RequestOutcome.SLOW,
                    f"only {length} bytes of the body arrived within {self._limits.body_timeout:g} s",
                ) from None
            if isinstance(error, web.RequestPayloadError):
                raise RequestRefused(
                    400, RequestOutcome.UNREADABLE, f"the body is not valid HTTP: {error}"
                ) from None
            if isinstance(error, ConnectionError | ClientConnectionError):
                raise RequestRefused(
                    400, RequestOutcome.GONE, "the caller hung up before its body had arrived"
                ) from None
            raise
        finally:
            timer.cancel()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def allows(self, length: int) -> bool:
        """Whether a body of that length, which is here already, is within the limits."""
        return length <= self._limits.body and self.held + length <= self._limits.bodies

    def release(self, length: int) -> None:
        """So many bytes are no longer held."""
        self.held -= length

    def _check(self, length: int) -> None:
        if length > self._limits.body:
            raise self._too_large("the body has more bytes")
        if self.held > self._limits.bodies:
            raise RequestRefused(
                503,
                RequestOutcome.BUSY,
                f"requests in progress already hold {self._limits.bodies} bytes, the limit "
                f"(server.limits.bodies); ask again",
                Retry_After="1",
            )

    def _too_large(self, found: str) -> RequestRefused:
        return RequestRefused(
            413,
            RequestOutcome.TOO_LARGE,
            f"{found} than the {self._limits.body} allowed (server.limits.body); with nodeCacheCapable: true "
            f"kube-scheduler sends names instead of whole nodes",
        )


async def _say_continue(request: web.BaseRequest) -> None:
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Not a part of the answer, which is still to come.
        request.writer.output_size = 0


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


def _unpacker(request: web.BaseRequest) -> _Gunzip | None:
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if coding == "identity":
        return None
    if coding in ("gzip", "x-gzip"):
        return _Gunzip()
    raise RequestRefused(
        415, RequestOutcome.UNREADABLE, f"the body is encoded as {coding[:40]!r}; send it plain, or as gzip"
    )
