"""Which containers this agent has let start, on disk: a successor must not judge what runs.

Written before a container is let start. It is a help and no more: the kubelet's own word that a container has run
counts as much, and comes a moment later.
"""

from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from colocate.errors import system_reason
from colocate.gpus import AnswerKey
from colocate.host.files import write_atomically

_NAME = "gpus-started.json"
_LARGEST = 16 << 20


class StartedContainers:
    """One file in the agent's folder; without a folder, nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.trouble = ""
        """Why the file cannot be read or written; empty where it can."""
        self._file = None if folder is None else folder / _NAME
        self._written: AbstractSet[AnswerKey] | None = None

    def load(self) -> frozenset[AnswerKey]:
        """What is there; nothing where it cannot be read."""
        if self._file is None:
            return frozenset()
        try:
            with self._file.open("rb") as file:
                blob = file.read(_LARGEST)
            self._written = frozenset(msgspec.json.decode(blob, type=list[AnswerKey]))
            return frozenset(self._written)
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            self.trouble = f"{self._file}: {system_reason(error)}"
        except (ValueError, RecursionError) as error:
            self.trouble = f"{self._file} cannot be read: {error}"
        return frozenset()

    def save(self, keys: AbstractSet[AnswerKey]) -> None:
        """Keep these; a disk that fails is told in `trouble`, and stops nobody."""
        if self._file is None or keys == self._written:
            return
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._file, msgspec.json.encode(sorted(keys)))
            self._written, self.trouble = frozenset(keys), ""
        except OSError as error:
            self.trouble = f"{self._file}: {system_reason(error)}"
