"""A real HTTP extender on loopback: it remembers what it was asked, and answers as it is told."""

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web


class Call(msgspec.Struct, frozen=True):
    """One request, as it came."""

    verb: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Any], Any]


class FakeExtender:
    """Answers by verb: a function from the decoded request to the answer, bytes or what becomes JSON."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: dict[str, Answer] = {"filter": accept_all, "prioritize": lambda _: []}
        self.status = 200
        self.before: Callable[[], Awaitable[None]] | None = None
        """Run before each answer."""
        self.url = ""

    def asked(self, verb: str) -> list[Call]:
        return [call for call in self.calls if call.verb == verb]

    async def handle(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        body = await request.read()
        self.calls.append(Call(verb, list(request.headers.items()), body))
        if self.before is not None:
            await self.before()
        answer = self.answers[verb](json.loads(body))
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return web.Response(status=self.status, body=text, content_type="application/json")


def accept_all(request: Any) -> Any:
    return {"Nodes": request["Nodes"], "NodeNames": request["NodeNames"], "FailedNodes": {}, "Error": ""}


@asynccontextmanager
async def extending(context: ssl.SSLContext | None = None) -> AsyncIterator[FakeExtender]:
    fake = FakeExtender()
    app = web.Application()
    app.router.add_post("/extender/{verb}", fake.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    fake.url = f"{'https' if context else 'http'}://127.0.0.1:{port}/extender"
    try:
        yield fake
    finally:
        await runner.cleanup()
