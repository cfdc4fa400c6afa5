"""The socket on which the proxy serves the kubelet, with the mode and owner of the runtime's own socket."""

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio

from colocate import telemetry
from colocate.crashpoints import reached
from colocate.errors import UserError, system_reason
from colocate.telemetry import Event
from colocate.wire import rpc

_SCHEME = "unix://"
_SUFFIX = ".new"
_LAST_SECONDS = 1.0
"""Seconds for calls that are under way when the proxy stops."""


def socket_path(endpoint: str, flag: str) -> Path:
    """The path in an endpoint such as unix:///run/containerd/containerd.sock; a UserError that names the flag."""
    path = endpoint.removeprefix(_SCHEME)
    if "://" in path or not path.startswith("/") or "\0" in path:
        raise UserError(f"{flag}: {endpoint} is not a unix socket; write unix:///PATH")
    if len(os.fsencode(path + _SUFFIX)) > rpc.MAX_SOCKET_PATH:
        raise UserError(
            f"{flag}: {path} is too long for a unix socket; use at most {rpc.MAX_SOCKET_PATH - len(_SUFFIX)} bytes"
        )
    return Path(path)


@asynccontextmanager
async def serving(server: grpc.aio.Server, listen: Path, runtime: Path) -> AsyncIterator[None]:
    """Serve on `listen` while the body runs. The socket of a killed proxy is replaced."""
    _check(listen)
    fresh = listen.with_name(listen.name + _SUFFIX)
    # Bind under another name, with access for the owner only; rename once mode and owner are right.
    mask = os.umask(0o177)
    try:
        fresh.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{fresh}")
        await server.start()
    except (OSError, RuntimeError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else str(error)
        raise UserError(
            f"--listen: cannot listen on {listen} ({reason}); run this as root, or choose another path"
        ) from error
    finally:
        os.umask(mask)
    reached("cri.bound")
    own = fresh.stat().st_ino
    try:
        take_access(fresh, runtime)
        fresh.rename(listen)
        reached("cri.listening")
        yield
    finally:
        await rpc.stop_server(server, _LAST_SECONDS)
        if listen.exists() and listen.stat().st_ino == own:
            listen.unlink()
        reached("cri.closed")


def take_access(listen: Path, runtime: Path) -> None:
    """Give the proxy's socket the mode and owner of the runtime's socket, if that exists."""
    try:
        model = runtime.stat()
        os.chown(listen, model.st_uid, model.st_gid)
        listen.chmod(stat.S_IMODE(model.st_mode))
    except FileNotFoundError:
        return
    except OSError as error:
        telemetry.logger().warning(
            Event.CRI_ACCESS_DIFFERS, socket=str(listen), runtime=str(runtime), reason=system_reason(error)
        )


def _check(listen: Path) -> None:
    try:
        listen.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        if not os.path.lexists(listen):
            return
        found = listen.stat(follow_symlinks=False)
    except OSError as error:
        raise UserError(
            f"--listen: cannot make a socket in {listen.parent} ({system_reason(error)}); choose another path"
        ) from error
    if not stat.S_ISSOCK(found.st_mode):
        raise UserError(f"--listen: {listen} exists and is not a socket; choose another path")
    if rpc.is_served(listen):
        raise UserError(
            f"--listen: another process already serves on {listen}; stop it, or choose another path"
        )
    telemetry.logger().info(Event.STALE_SOCKET_REMOVED, socket=str(listen))
