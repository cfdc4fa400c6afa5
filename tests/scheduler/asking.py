"""A served extender with a judge that a test can steer, and callers that keep to HTTP or do not."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from colocate.clock import Clock, SystemClock
from colocate.scheduler.server.extender import serving
from colocate.scheduler.server.judge import Sieved
from colocate.scheduler.server.socket import Listening
from colocate.scheduler.settings import CallerSettings, Server, ServerEndpoint, ServerLimits, ServerTls
from colocate.wire.extender_questions import Asked
from tests.support.extender_calls import RECORDED

ANY_PORT = ServerEndpoint("127.0.0.1:0")
POD = RECORDED[0]["request"]["Pod"]


def question(*names: str) -> bytes:
    return json.dumps({"Pod": POD, "Nodes": None, "NodeNames": list(names)}).encode()


class SteeredJudge:
    """Scores by a table (5 where it says nothing); refuses the nodes that it is told to; may be told to fail."""

    def __init__(self, **scores: int) -> None:
        self.scores = scores
        self.hot: dict[str, str] = {}
        self.reasons: Sequence[str] = ()
        self.asked: list[Asked] = []
        self.before: Callable[[], None] | None = None
        self.most = 10_000

    def most_candidates(self) -> int:
        return self.most

    def prioritize(self, asked: Asked, caller: str) -> list[int]:
        self._note(asked)
        return [self.scores.get(name, 5) for name in asked.names]

    def filter(self, asked: Asked, caller: str) -> Sieved:
        self._note(asked)
        return Sieved({name: self.hot[name] for name in asked.names if name in self.hot})

    def unready(self) -> Sequence[str]:
        return self.reasons

    def _note(self, asked: Asked) -> None:
        self.asked.append(asked)
        if self.before is not None:
            self.before()


class Answered(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def sentence(self) -> str:
        text = self.body.decode()
        assert text.count("\n") == 1, text
        return text.strip()


class Asking:
    """Asks a served extender."""

    def __init__(self, session: aiohttp.ClientSession, listening: Listening) -> None:
        self.session = session
        self.listening = listening

    async def post(self, verb: str, body: Any, **how: Any) -> Answered:
        return await self.ask("POST", f"/{verb}", data=body, **how)

    async def get(self, path: str, **how: Any) -> Answered:
        return await self.ask("GET", path, **how)

    async def ask(self, method: str, path: str, **how: Any) -> Answered:
        url = self.listening.url if self.listening.port else "http://localhost"
        async with self.session.request(method, url + path, **how) as response:
            return Answered(response.status, await response.read(), dict(response.headers))

    async def prioritized(self, *names: str) -> dict[str, int]:
        answered = await self.post("prioritize", question(*names))
        assert answered.status == 200, answered.body
        return {one["Host"]: one["Score"] for one in answered.json}

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A bare connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listening.port)
        try:
            yield reader, writer
        finally:
            writer.close()


def server(**settings: Any) -> Server:
    """Settings for a test: limits by their names among the others. Callers need show nothing unless it says so."""
    limits = {name: settings.pop(name) for name in list(settings) if name in ServerLimits.__struct_fields__}
    if "callers" not in settings:
        tls = settings.get("tls", ServerTls())
        settings["callers"] = CallerSettings(anyone=tls.client_authority is None)
    return Server(
        **settings | {"address": settings.get("address", ANY_PORT), "limits": ServerLimits(**limits)}
    )


@asynccontextmanager
async def asking(
    judge: SteeredJudge, settings: Server | None = None, clock: Clock | None = None, **client: Any
) -> AsyncIterator[Asking]:
    """A served extender, and a client of it."""
    settings = settings or server()
    async with serving(settings, judge, clock or SystemClock()) as listening:
        path = settings.address.socket
        connector = aiohttp.UnixConnector(str(path)) if path else aiohttp.TCPConnector(limit=0, **client)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Asking(session, listening)
