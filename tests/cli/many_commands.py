"""`python -m tests.cli.many_commands` runs many command lines, each in a fork that has imported everything.

Reads a list of them as JSON, and writes for each its exit code and all that it wrote, the gRPC core's words included.
A scheduler's own token is looked for in the folder that this runs in, not on this machine.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from colocate.cli.main import main, whole_parser
from colocate.scheduler import settings

PATIENCE = 60
"""Seconds for one; a signal ends it then."""


def run(arguments: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as written:
        child = os.fork()
        if child == 0:
            os.dup2(written.fileno(), 1)
            os.dup2(written.fileno(), 2)
            signal.alarm(PATIENCE)
            try:
                main(arguments)
            except SystemExit as end:
                sys.stdout.flush()
                os._exit(end.code if isinstance(end.code, int) else 1)
            except BaseException:  # noqa: BLE001 -- as an interpreter ends that nobody catches it in
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        written.seek(0)
        return os.waitstatus_to_exitcode(status), written.read()


if __name__ == "__main__":
    whole_parser()
    settings.DEFAULT_TOKEN_FILE = Path.cwd() / settings.DEFAULT_TOKEN_FILE.name
    json.dump([run(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
