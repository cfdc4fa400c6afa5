"""Serves /metrics on the event loop, to anyone, with few places: a scrape is short, and scrapers are few.

What is told is worked out at most a few times a second, however often it is asked for.
"""

import time

from aiohttp import web
from prometheus_client import REGISTRY, generate_latest

from colocate.http.connections import ConnectionLimits, Connections, send, text_page
from colocate.http.listener import Listener, bound_sockets
from colocate.http.places import PlaceLimits

LIMITS = ConnectionLimits(
    places=PlaceLimits(connections=64, per_address=32),
    header_timeout=10.0,
    idle_timeout=120.0,
    answer_timeout=10.0,
)
_PATH = "/metrics"
_KIND = "text/plain; version=0.0.4; charset=utf-8"
"""The one format that every Prometheus reads; what a caller says of others is not looked at."""
_FRESH = 0.2
"""Seconds for which an answer is given again."""
_LAST_MOMENT = 0.5


class MetricsListener:
    """The server, listening."""

    def __init__(self, listener: Listener, connections: Connections) -> None:
        self.port: int = listener.sockets[0].getsockname()[1]
        self._listener = listener
        self._connections = connections

    async def end(self) -> None:
        self._listener.close()
        await self._listener.closed()
        await self._connections.shutdown(_LAST_MOMENT)


class _Page:
    """What was told last, and when."""

    def __init__(self) -> None:
        self._told_at = float("-inf")
        self._told = b""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response = self._answer(request)
        await send(request, response, LIMITS.answer_timeout)
        return response

    def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.rel_url.raw_path != _PATH:
            return text_page(404, f"metrics are at {_PATH}")
        if request.method not in ("GET", "HEAD"):
            refusal = text_page(405, f"{_PATH} takes GET and HEAD")
            refusal.headers["Allow"] = "GET, HEAD"
            refusal.force_close()
            return refusal
        if time.monotonic() >= self._told_at + _FRESH:
            self._told = generate_latest(REGISTRY)
            self._told_at = time.monotonic()
        return web.Response(body=self._told, headers={"Content-Type": _KIND})


async def listen(host: str, port: int) -> MetricsListener:
    """Serve on an address; an OSError where that cannot be."""
    sockets = await bound_sockets(host, port)
    connections = Connections("metrics", _Page().handle, LIMITS)
    return MetricsListener(Listener(sockets, connections), connections)
