"""What a process does before it loads gRPC and structlog; each reads its surroundings once, when it is imported.

`prepare_process` is for processes of Colocate's own. `load_grpc` is for a process that is about to serve plugins, and
leaves the environment as it was. Importing the SDK does neither.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import cast

_GRPC = {
    # gRPC's C core writes to standard error by itself, even about connections that end as they should. What matters
    # is logged by us.
    "GRPC_VERBOSITY": "ERROR",
    # A process here is forked only to become another program. gRPC's support of forks starts its threads in the child
    # before it has, where they now and then crash it.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}


def prepare_process() -> None:
    """Make this process, and those that it starts, quiet and lean."""
    for name, value in _GRPC.items():
        os.environ.setdefault(name, value)
    # structlog loads rich wherever it is installed: 5 MB, for tracebacks that nobody here wants.
    with _as_if_not_installed("rich"):
        import_module("structlog")


def load_grpc() -> None:
    """Import gRPC so that it is quiet and leaves forked children alone, unless this process has loaded it already.

    A variable that somebody has set stays in force.
    """
    if "grpc" in sys.modules:
        return
    missing = {name: value for name, value in _GRPC.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        import_module("grpc")
    finally:
        for name in missing:
            del os.environ[name]


@contextmanager
def _as_if_not_installed(name: str) -> Iterator[None]:
    if name in sys.modules:
        yield
        return
    # To Python's import system None is a module that cannot be found.
    sys.modules[name] = cast(ModuleType, None)
    try:
        yield
    finally:
        del sys.modules[name]
