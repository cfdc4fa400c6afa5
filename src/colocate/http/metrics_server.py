"""Serves /metrics on the event loop, to anyone, with few places: a scrape is short, and scrapers are few.

What is told is worked out at most a few times a second, however often it is asked for.
"""

import time

from prometheus_client import REGISTRY, generate_latest

from colocate.http.connection import HttpConnection
from colocate.http.connections import ConnectionLimits, Connections
from colocate.http.exchange import Exchange, HttpAnswer, text_page
from colocate.http.listener import Listener, bound_sockets
from colocate.http.places import PlaceLimits
from colocate.http.requests import HttpRequest

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

    def begin(self, request: HttpRequest, connection: HttpConnection) -> "_Scrape":
        return _Scrape(request, self)

    def told(self) -> bytes:
        if time.monotonic() >= self._told_at + _FRESH:
            self._told = generate_latest(REGISTRY)
            self._told_at = time.monotonic()
        return self._told


class _Scrape(Exchange):
    def __init__(self, request: HttpRequest, page: _Page) -> None:
        super().__init__(request)
        self._page = page

    def begin(self) -> HttpAnswer:
        if self.request.path != _PATH:
            return text_page(404, f"metrics are at {_PATH}")
        if self.request.method not in ("GET", "HEAD"):
            return text_page(405, f"{_PATH} takes GET and HEAD", close=True, headers={"Allow": "GET, HEAD"})
        return HttpAnswer(self._page.told(), kind=_KIND)


async def listen(host: str, port: int) -> MetricsListener:
    """Serve on an address; an OSError where that cannot be."""
    sockets = await bound_sockets(host, port)
    connections = Connections("metrics", _Page().begin, LIMITS)
    return MetricsListener(Listener(sockets, connections), connections)
