"""Files that are either old or new, never half-written, whatever dies in between."""

import os
import tempfile
from pathlib import Path

from colocate.crashpoints import reached


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by `data`; on return the data survives a power cut, on an error the old file stays."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        reached("file.written")
        temporary.replace(path)
        reached("file.replaced")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
