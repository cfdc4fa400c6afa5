"""A plugin's sockets: a fresh name for every start, and removal of those that a killed plugin left behind."""

import re
import secrets
from pathlib import Path

from colocate import telemetry
from colocate.crashpoints import reached
from colocate.telemetry import Event
from colocate.wire.rpc import is_served

_PREFIX = "colocate"


def fresh(folder: Path, resource: str) -> Path:
    """An unused socket path: kubelets confuse a new plugin with an old one of the same name."""
    return folder / f"{_PREFIX}-{_slug(resource)}-{secrets.token_hex(4)}.sock"


def pattern(resource: str) -> str:
    """Matches the sockets of every start and every instance of this plugin."""
    return f"{_PREFIX}-{_slug(resource)}-????????.sock"


def remove(socket: Path) -> None:
    """Delete one of our sockets, if it still exists."""
    reached("socket.remove")
    socket.unlink(missing_ok=True)
    reached("socket.removed")


def remove_stale(folder: Path, resource: str) -> None:
    """Delete the sockets of earlier starts of this plugin on which no process listens any more."""
    for socket in folder.glob(pattern(resource)):
        if not is_served(socket):
            remove(socket)
            telemetry.logger().info(Event.STALE_SOCKET_REMOVED, resource=resource, socket=socket.name)


def _slug(resource: str) -> str:
    # Shortened: the whole path may have 107 bytes.
    return re.sub(r"[^A-Za-z0-9]+", "-", resource)[-30:].strip("-")
