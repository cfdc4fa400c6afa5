"""A small HTTP client for tests: what was answered, as code and data."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


class Answer:
    """A code and what came with it."""

    def __init__(self, code: int, body: Any) -> None:
        self.code = code
        self.body = body


class Watching:
    """A watch that is read line by line."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> Any:
        """The next line; None at the end."""
        line = await self.response.content.readline()
        return json.loads(line) if line else None

    async def take(self, count: int) -> list[tuple[str, str]]:
        """The types and names of the next lines."""
        lines = [await self.next() for _ in range(count)]
        return [(line["type"], line["object"]["metadata"].get("name", "")) for line in lines]


class Http:
    """Asks a server as one user."""

    def __init__(self, session: aiohttp.ClientSession | None, url: str, token: str) -> None:
        self._session = session
        self.url = url
        self._token = token

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    def as_bearer(self, token: str) -> "Http":
        """The same server, asked by another user."""
        return Http(self.session, self.url, token)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        **headers: str,
    ) -> Answer:
        """Send a request; a body that is neither bytes nor a file is sent as JSON."""
        given = {"Accept": accept, **headers}
        if self._token:
            given["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data = body if isinstance(body, bytes | io.BytesIO) else json.dumps(body).encode()
            given["Content-Type"] = content_type
        async with self.session.request(method, self.url + path, data=data, headers=given) as response:
            raw = await response.read()
            is_json = response.content_type == "application/json"
            return Answer(response.status, json.loads(raw) if is_json and raw else raw)

    async def get(self, path: str, **more: str) -> Answer:
        return await self.ask("GET", path, **more)

    async def post(self, path: str, body: Any) -> Answer:
        return await self.ask("POST", path, body)

    async def put(self, path: str, body: Any) -> Answer:
        return await self.ask("PUT", path, body)

    async def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH) -> Answer:
        return await self.ask("PATCH", path, body, content_type)

    async def delete(self, path: str, body: Any = None) -> Answer:
        return await self.ask("DELETE", path, body)

    @asynccontextmanager
    async def watch(self, path: str, accept: str = "application/json") -> AsyncIterator[Watching]:
        """A watch; `path` has its parameters, but for `watch` itself."""
        url = f"{self.url}{path}{'&' if '?' in path else '?'}watch=1"
        headers = {"Authorization": f"Bearer {self._token}", "Accept": accept}
        async with self.session.get(
            url, headers=headers, timeout=aiohttp.ClientTimeout(total=30)
        ) as response:
            yield Watching(response)
