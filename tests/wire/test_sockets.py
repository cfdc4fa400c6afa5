"""Whether anybody listens on a unix socket: yes, no, or it cannot be told, which is neither."""

import socket
from pathlib import Path

import pytest

from colocate.wire.rpc import MAX_SOCKET_PATH, answers, is_served


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which sockets are named by short, relative paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_server_answers_and_one_that_is_gone_does_not(here: Path) -> None:
    path = Path("server.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert not answers(path)
        server.listen()
        assert answers(path)
        assert is_served(path)
    assert not answers(path)
    assert not is_served(path)


def test_where_no_socket_is_no_process_listens(here: Path) -> None:
    Path("file").touch()
    for path in ("none", "file", "file/below", "n" * (MAX_SOCKET_PATH + 1), f"no/{'n' * MAX_SOCKET_PATH}"):
        assert not answers(Path(path))
        assert not is_served(Path(path))


def test_what_cannot_be_told_is_neither(here: Path) -> None:
    """A path too long to connect to stands for all that is in the way."""
    path = here / ("n" * (MAX_SOCKET_PATH + 1))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("short.sock")
        server.listen()
        Path("short.sock").rename(path)
        with pytest.raises(OSError, match="path too long"):
            answers(path)
        assert is_served(path), "nothing may be removed on a guess"
