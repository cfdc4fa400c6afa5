"""The least of an HTTP client: one connection on loopback, one request at a time, and nothing is decoded.

What a bench compares is two servers; a client of many features would be the greater part of what it measures.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from colocate.errors import ColocateError

PATIENCE = 60
"""Seconds for one answer, so that a bench fails rather than hangs."""


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def connected(cls, port: int) -> AsyncIterator["Caller"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def post(self, path: str, body: bytes) -> int:
        """Post JSON; returns how many bytes were answered. An answer other than 200 is an error."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        async with asyncio.timeout(PATIENCE):
            answered = await self._reader.readuntil(b"\r\n\r\n")
            if not answered.startswith(b"HTTP/1.1 200 "):
                raise ColocateError(f"a server answers {answered.splitlines()[0].decode()} to {path}")
            length = int(answered.lower().partition(b"content-length:")[2].split()[0])
            await self._reader.readexactly(length)
        return length
