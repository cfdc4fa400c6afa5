"""structlog without rich, which it loads wherever it is installed: 5 MB, for tracebacks that nobody here wants."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["structlog"]


@contextmanager
def _as_if_not_installed(name: str) -> Iterator[None]:
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


with _as_if_not_installed("rich"):
    import structlog
