"""A plugin's own sockets: a fresh name for every start, and what a killed plugin left behind."""

import re
import secrets
from pathlib import Path

from colocate import telemetry
from colocate.crashpoints import reached
from colocate.telemetry import Event
from colocate.wire.rpc import is_served

_PREFIX = "colocate"


def fresh(folder: Path, resource: str) -> Path:
    """A socket path that nobody has used: kubelets confuse a new plugin with the old one of that name."""
    return folder / f"{_PREFIX}-{_slug(resource)}-{secrets.token_hex(4)}.sock"


def pattern(resource: str) -> str:
    """Matches the sockets of every start and every instance of this plugin."""
    return f"{_PREFIX}-{_slug(resource)}-????????.sock"


def remove(socket: Path) -> None:
    """Delete a socket of ours, if it is still there."""
    reached("socket.remove")
    socket.unlink(missing_ok=True)
    reached("socket.removed")


def remove_stale(folder: Path, resource: str) -> None:
    """Delete the sockets of earlier starts of this plugin on which nobody listens any more."""
    for socket in folder.glob(pattern(resource)):
        if not is_served(socket):
            remove(socket)
            telemetry.logger().info(Event.STALE_SOCKET_REMOVED, resource=resource, socket=socket.name)


def _slug(resource: str) -> str:
    # A short end of the name: the whole path may have 107 bytes.
    return re.sub(r"[^A-Za-z0-9]+", "-", resource)[-30:].strip("-")
