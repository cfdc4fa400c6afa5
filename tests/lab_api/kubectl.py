"""A real kubectl as a process."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

from colocate.lab.api.server import ApiServer


class Kubectl:
    """Runs one kubectl against one server, with its caches in a folder of their own."""

    def __init__(self, program: str, folder: Path, server: ApiServer) -> None:
        self.program = program
        self.folder = folder
        self.server = server
        self.minor = 0

    async def find_version(self) -> None:
        shown = json.loads(await self("version", "--client", "-o", "json"))
        self.minor = int(shown["clientVersion"]["minor"].rstrip("+"))

    async def __call__(self, *words: str, ok: bool = True, given: str = "") -> str:
        """Run a command and return what it printed; it must succeed, or must fail where `ok` is false."""
        process = await self.start(*words)
        async with asyncio.timeout(60):
            out, error = await process.communicate(given.encode())
        text = out.decode() + error.decode()
        assert (process.returncode == 0) is ok, f"kubectl {' '.join(words)}: {text}"
        return text

    async def start(self, *words: str) -> Process:
        environment = os.environ | {"KUBECONFIG": str(self.folder / "kubeconfig"), "HOME": str(self.folder)}
        return await asyncio.create_subprocess_exec(
            self.program, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
        )

    async def json(self, *words: str) -> Any:
        """What a command prints with `-o json`."""
        return json.loads(await self(*words, "-o", "json"))

    async def apply(self, manifest: Any, *words: str) -> str:
        return await self("apply", *words, "-f", "-", given=json.dumps(manifest))
