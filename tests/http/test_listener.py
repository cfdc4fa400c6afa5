"""The end of a listener: whoever is at the door then is neither let in nor forgotten."""

import asyncio
import gc
import socket

import pytest

from colocate.http.connection import HttpConnection
from colocate.http.connections import ConnectionLimits, Connections
from colocate.http.exchange import Exchange
from colocate.http.listener import Listener, bound_sockets
from colocate.http.places import PlaceLimits
from colocate.http.requests import HttpRequest

LIMITS = ConnectionLimits(places=PlaceLimits(connections=50))


def _nothing(request: HttpRequest, connection: HttpConnection) -> Exchange:
    return Exchange(request)


@pytest.mark.parametrize("turns", range(12))
async def test_whoever_arrives_while_a_listener_closes_is_hung_up_on(turns: int) -> None:
    """However far an arrival has come: a socket that was accepted and has no owner yet would stay open."""
    connections = Connections("test", _nothing, LIMITS)
    listener = Listener(await bound_sockets("127.0.0.1", 0), connections)
    # Until it waits at its door.
    for _ in range(3):
        await asyncio.sleep(0)
    callers = [socket.create_connection(listener.sockets[0].getsockname()) for _ in range(5)]
    for _ in range(turns):
        await asyncio.sleep(0)
    listener.close()
    await connections.shutdown(0.5)
    await listener.closed()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    for caller in callers:
        caller.settimeout(5)
        with caller:
            try:
                assert caller.recv(1) == b""
            except ConnectionResetError:
                pass
