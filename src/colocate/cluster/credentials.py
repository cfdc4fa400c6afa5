"""Keeps credentials current: tokens that rotate, commands that print new ones, passwords.

A token or password file is read again whenever it has changed, so that a rotated one is used at once. A command
runs again shortly before its credential expires, or when the server refuses the credential.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from colocate.clock import Clock
from colocate.cluster import exec_plugin
from colocate.cluster.connection import Login
from colocate.cluster.exec_plugin import Printed
from colocate.cluster.kubeconfig import ExecSpec
from colocate.cluster.secret import Secret
from colocate.errors import UserError, system_reason

_EARLY = 10.0
"""Seconds before its expiry at which a credential counts as expired: it must last for the request."""

Stamp = tuple[int, int, int]


class ShownCredentials(msgspec.Struct, frozen=True):
    """A header, and a client certificate where a command printed one."""

    authorization: Secret | None = None
    certificate: str = ""
    key: Secret | None = None


class Credentials:
    """Keeps the login of one connection current."""

    def __init__(
        self,
        login: Login,
        clock: Clock,
        run: Callable[[ExecSpec, Clock], Awaitable[Printed]] = exec_plugin.run,
    ) -> None:
        self._login = login
        self._clock = clock
        self._run = run
        self._running = asyncio.Lock()
        self._printed: Printed | None = None
        self._files: dict[Path, tuple[Stamp, Secret]] = {}

    async def current(self) -> ShownCredentials:
        """The credentials to send now; UserError where a file or command gives none."""
        login = self._login
        if login.token_file is not None:
            return ShownCredentials(_bearer(self._from_file(login.token_file, "token")))
        if login.token:
            return ShownCredentials(_bearer(login.token))
        if login.exec is not None:
            return _shown(await self._from_command(login.exec))
        if login.username:
            secret = (
                self._from_file(login.password_file, "password") if login.password_file else login.password
            )
            password = secret.reveal() if secret else ""
            pair = base64.b64encode(f"{login.username}:{password}".encode()).decode()
            return ShownCredentials(Secret(f"Basic {pair}"))
        return ShownCredentials()

    async def renewed(self, refused: ShownCredentials) -> bool:
        """After a 401: whether there is another credential than the refused one."""
        if self._login.exec is not None:
            async with self._running:
                # If several requests were refused at once, the first renews the credential for all.
                if self._printed is not None and _shown(self._printed) == refused:
                    self._printed = None
        self._files.clear()
        return await self.current() != refused

    def _from_file(self, path: Path, what: str) -> Secret:
        known = self._files.get(path)
        try:
            found = path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if known is None or known[0] != stamp:
                self._files[path] = known = (stamp, Secret(path.read_text().strip()))
        except (OSError, ValueError) as error:
            if known is not None:
                # The file is probably being replaced; the old content usually still works.
                return known[1]
            raise UserError(f"the {what} file {path} cannot be read: {system_reason(error)}") from error
        if not known[1]:
            raise UserError(f"the {what} file {path} is empty; put a {what} into it, or give another file")
        return known[1]

    async def _from_command(self, spec: ExecSpec) -> Printed:
        async with self._running:
            if self._printed is None or self._is_over(self._printed):
                self._printed = await self._run(spec, self._clock)
            return self._printed

    def _is_over(self, printed: Printed) -> bool:
        return printed.expires is not None and printed.expires - _EARLY <= self._clock.time()


def _bearer(token: Secret) -> Secret:
    return Secret(f"Bearer {token.reveal()}")


def _shown(printed: Printed) -> ShownCredentials:
    return ShownCredentials(
        _bearer(printed.token) if printed.token else None, printed.certificate, printed.key
    )
