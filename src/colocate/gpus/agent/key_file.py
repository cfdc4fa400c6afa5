"""The keys that seal bookings, in a file: one a line, the one that seals first, a second while it is changed.

A Secret that is mounted changes under a running process, and may come only later. Keys are never logged.
"""

from pathlib import Path

from colocate.errors import UserError, system_reason

_SHORTEST_KEY = 16
_LONGEST_KEYS = 4096
_MOST_KEYS = 4
_HOW = "as with 'head -c 32 /dev/urandom | base64'"


class KeyFile:
    """The keys of one file as they are by now; without a file there are none."""

    def __init__(self, file: Path | None, field: str = "gpus.keyFile") -> None:
        self.keys: tuple[bytes, ...] = ()
        self.trouble = ""
        """Why bookings are not told from wishes, or the keys may be old ones; empty where all is well."""
        self._file = file
        self._field = field
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> tuple[bytes, ...]:
        """Look at the file, and read it where it has changed; what it held last where it cannot be used."""
        if self._file is None:
            return ()
        try:
            now = self._file.stat()
            seen = now.st_mtime_ns, now.st_ino, now.st_size
            if seen != self._seen:
                self.keys = read_keys(self._file, self._field)
                self._seen, self.trouble = seen, ""
        except FileNotFoundError:
            self.trouble = (
                f"{self._field}: there is no {self._file} yet, so bookings of colocate scheduler are not told from "
                "what tenants write; it comes with the Secret that the scheduler makes"
            )
        except OSError as error:
            self.trouble = f"{self._field}: {self._file} cannot be read ({system_reason(error)})"
        except UserError as error:
            self.trouble = str(error)
        return self.keys


def read_keys(file: Path, field: str) -> tuple[bytes, ...]:
    """The keys in a file; UserError where there is none that can be used."""
    try:
        with file.open("rb") as opened:
            return keys_in(opened.read(_LONGEST_KEYS + 1), f"{field}: {file}")
    except OSError as error:
        raise UserError(
            f"{field}: {file} cannot be read ({system_reason(error)}); give the file with the key that agents share "
            "with colocate scheduler"
        ) from error


def keys_in(text: bytes, where: str) -> tuple[bytes, ...]:
    """The keys in a text, one a line; UserError where one cannot be used. `where` is told in its place."""
    keys = tuple(line for line in text.replace(b"\r", b"\n").split(b"\n") if line)
    if not keys or len(text) > _LONGEST_KEYS or len(keys) > _MOST_KEYS:
        raise UserError(
            f"{where} has no key, or too many; write one, or two lines with one each while you change it, {_HOW}"
        )
    for key in keys:
        if len(key) < _SHORTEST_KEY:
            raise UserError(
                f"{where} has a key of {len(key)} bytes; make it {_SHORTEST_KEY} or longer, {_HOW}"
            )
    return keys
