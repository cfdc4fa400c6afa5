"""The proxy's socket: never in anybody's way, and never open to more than the runtime's own."""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc.aio
import pytest

from colocate.errors import UserError
from colocate.runtime import cri_socket
from colocate.runtime.cri_socket import serving, socket_path, take_access
from colocate.wire.rpc import is_served


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: a socket's may have 107 bytes."""
    with TemporaryDirectory(prefix="cri") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("tcp://127.0.0.1:1", "is not a unix socket"),
        ("run/x.sock", "is not a unix socket"),
        ("", "is not a unix socket"),
        ("npipe:////./pipe/x", "is not a unix socket"),
        (f"unix:///{'x' * 110}", "is too long"),
    ],
)
def test_an_endpoint_that_is_no_socket_is_refused(endpoint: str, why: str) -> None:
    with pytest.raises(UserError, match=f"--listen: .*{why}"):
        socket_path(endpoint, "--listen")


@pytest.mark.parametrize("endpoint", ["unix:///run/a.sock", "/run/a.sock"])
def test_both_ways_to_write_an_endpoint_are_read(endpoint: str) -> None:
    assert socket_path(endpoint, "--listen") == Path("/run/a.sock")


async def test_a_socket_that_a_killed_proxy_left_is_replaced(short: Path) -> None:
    listen = short / "l.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(listen))
    (short / "l.sock.new").write_text("left as well")
    async with serving(grpc.aio.server(), listen, short / "runtime.sock"):
        assert is_served(listen)
    assert list(short.iterdir()) == []


async def test_a_socket_that_another_process_serves_is_left_alone(short: Path) -> None:
    listen = short / "l.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(listen))
        other.listen()
        with pytest.raises(UserError, match="another process already serves"):
            async with serving(grpc.aio.server(), listen, short / "runtime.sock"):
                pass
        assert listen.exists()


async def test_a_file_is_never_replaced(short: Path) -> None:
    (short / "l.sock").write_text("precious")
    with pytest.raises(UserError, match="is not a socket"):
        async with serving(grpc.aio.server(), short / "l.sock", short / "runtime.sock"):
            pass
    assert (short / "l.sock").read_text() == "precious"


async def test_no_other_user_can_connect_before_mode_and_owner_are_right(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = short / "runtime.sock"
    runtime.touch()
    runtime.chmod(0o660)
    seen = []

    def watched(fresh: Path, model: Path) -> None:
        seen.append((fresh.name, stat.S_IMODE(fresh.stat().st_mode)))
        take_access(fresh, model)

    monkeypatch.setattr(cri_socket, "take_access", watched)
    async with serving(grpc.aio.server(), short / "l.sock", runtime):
        assert stat.S_IMODE((short / "l.sock").stat().st_mode) == 0o660
    assert seen == [("l.sock.new", 0o600)]


async def test_another_proxys_socket_is_not_removed_at_the_end(short: Path) -> None:
    listen = short / "l.sock"
    async with serving(grpc.aio.server(), listen, short / "runtime.sock"):
        listen.unlink()
        listen.write_text("a successor's")
    assert listen.exists()
