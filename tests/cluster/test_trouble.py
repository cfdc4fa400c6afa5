"""A connection that fails is told in words, without the objects that aiohttp shows in its own."""

import socket
import ssl
from pathlib import Path

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from colocate.cluster.trouble import in_words
from tests.cluster.serving import free_port


async def failure(url: str, path: Path | None = None) -> aiohttp.ClientError:
    connector = aiohttp.UnixConnector(str(path)) if path else None
    async with aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises(aiohttp.ClientError) as raised:
            await session.get(url, ssl=ssl.create_default_context())
    return raised.value


async def test_who_does_not_listen_is_told_without_the_context_of_tls(tmp_path: Path) -> None:
    error = await failure(f"https://127.0.0.1:{free_port()}")
    assert "SSLContext" in str(error)
    assert in_words(error) == "connection refused"
    assert in_words(await failure(f"http://localhost:{free_port()}")) == "connection refused"
    assert in_words(await failure("http://any", tmp_path / "none.sock")) == "no such file or directory"


def test_the_address_of_a_proxy_is_not_shown() -> None:
    url = URL("http://bob:hunter2@proxy")
    request = aiohttp.RequestInfo(url, "CONNECT", CIMultiDictProxy(CIMultiDict()), url)
    assert in_words(aiohttp.ClientHttpProxyError(request, (), message="Forbidden")) == "Forbidden"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (aiohttp.ClientOSError(104, "Connection reset by peer"), "connection reset by peer"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name or service not known"),
        (OSError(), "OSError"),
    ],
)
def test_every_failure_has_some_words(error: aiohttp.ClientError | OSError, words: str) -> None:
    assert in_words(error) == words


def test_an_error_of_tls_that_openssl_did_not_find_has_no_reason() -> None:
    assert in_words(ssl.SSLError(1, "The handshake failed")) == "the handshake failed"
