"""`python -m colocate.lab.api`: the API server alone, to try by hand."""

import argparse
import asyncio
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import uvloop

from colocate.errors import exit_on_user_error
from colocate.lab.api.disk import Disk
from colocate.lab.api.server import ApiServer
from colocate.lab.api.store import ObjectStore


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    store = ObjectStore(Disk(options.state) if options.state else None)
    server = ApiServer(store)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    with ExitStack() as undo:
        path = options.kubeconfig
        if path is None:  # Made only where it is needed: a killed process leaves it behind.
            path = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="colocate-api-")), "kubeconfig")
        await server.start(options.host, options.port, tls=not options.plain)
        try:
            server.write_kubeconfig(path)
            sys.stdout.write(f"export KUBECONFIG={path}\n")
            sys.stdout.flush()
            await stopped.wait()
        finally:
            await server.stop()
            store.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m colocate.lab.api", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", type=Path, help="keep the objects in this SQLite file")
    parser.add_argument("--kubeconfig", type=Path, help="write the kubeconfig here")
    parser.add_argument("--plain", action="store_true", help="HTTP without TLS")
    with exit_on_user_error():
        uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
