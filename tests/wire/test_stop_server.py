"""A server is stopped completely, whatever is cancelled meanwhile."""

import asyncio
from typing import cast

import grpc.aio
import pytest

from colocate.wire.rpc import stop_server


class Stopping:
    """A server that takes its time."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.ended = asyncio.Event(), asyncio.Event(), False

    async def stop(self, grace: float | None) -> None:
        self.begun.set()
        await self.may_end.wait()
        self.ended = True


async def test_a_caller_that_is_cancelled_waits_for_the_end_and_then_is_cancelled() -> None:
    server = Stopping()
    caller = asyncio.create_task(stop_server(cast(grpc.aio.Server, server)))
    await server.begun.wait()
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    server.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert server.ended
