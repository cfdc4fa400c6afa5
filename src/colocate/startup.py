"""Settings for gRPC and structlog, which read their environment once, when they are imported.

`prepare_process` is for processes of Colocate. `load_grpc` is for a process that is about to serve plugins; it
restores the environment. Importing the SDK does neither.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import cast

_GRPC = {
    # gRPC's C core writes to standard error even about connections that end normally. We log what matters.
    "GRPC_VERBOSITY": "ERROR",
    # We fork only to start another program. gRPC's fork support starts threads in the child before the exec, and they
    # sometimes crash it.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}


def prepare_process() -> None:
    """Reduce log noise and memory of this process and of those that it starts."""
    for name, value in _GRPC.items():
        os.environ.setdefault(name, value)
    # structlog loads rich if it is installed: 5 MB for tracebacks that we do not use.
    with _as_if_not_installed("rich"):
        import_module("structlog")


def load_grpc() -> None:
    """Import gRPC with few log lines and without fork support, unless this process has loaded it already.

    Variables that are already set keep their values.
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
    # Python's import system treats None as a module that does not exist.
    sys.modules[name] = cast(ModuleType, None)
    try:
        yield
    finally:
        del sys.modules[name]
