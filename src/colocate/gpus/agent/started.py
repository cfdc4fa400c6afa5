"""Which containers this agent has let start, what pods are due, and which it has deleted: on disk, for a successor.

It must not judge what runs, and goes on with a swap of which only one pod has started. Written before a container is
let start. What the kubelet says of starts counts as much, and so does what was announced; both come a moment later.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from colocate.errors import system_reason
from colocate.gpus import AnswerKey, DueGpus, Dues
from colocate.host.files import write_atomically

_NAME = "gpus-started.json"
_LARGEST = 16 << 20


class _KeptDue(msgspec.Struct, frozen=True):
    uid: str
    resource: str
    due: DueGpus


class Deletion(msgspec.Struct, frozen=True):
    """A pod that the agent has deleted."""

    at: float
    """Seconds since the epoch."""
    controller: str
    """The uid of the pod's controller."""


class _Kept(msgspec.Struct, frozen=True):
    started: list[AnswerKey]
    due: list[_KeptDue]
    deletions: Mapping[str, Deletion] = {}
    """By uid; an agent before this one has kept none."""


class StartedContainers:
    """One file in the agent's folder; without a folder, nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.trouble = ""
        """Why the file cannot be read or written; empty where it can."""
        self._file = None if folder is None else folder / _NAME
        self.deletions: Mapping[str, Deletion] = {}
        """By uid, what `load` has found."""
        self._written: bytes | None = None

    def load(self) -> tuple[frozenset[AnswerKey], Dues]:
        """What is there; nothing where it cannot be read."""
        if self._file is None:
            return frozenset(), {}
        try:
            with self._file.open("rb") as file:
                blob = file.read(_LARGEST)
            kept = msgspec.json.decode(blob, type=_Kept | list[AnswerKey])
            if isinstance(kept, list):  # As it was before swaps were kept.
                kept = _Kept(kept, [])
            self._written, self.deletions = blob, kept.deletions
            return frozenset(kept.started), {(each.uid, each.resource): each.due for each in kept.due}
        except FileNotFoundError:
            pass
        except OSError as error:
            self.trouble = f"{self._file}: {system_reason(error)}"
        except (ValueError, RecursionError) as error:
            self.trouble = f"{self._file} cannot be read: {error}"
        return frozenset(), {}

    def save(
        self,
        keys: AbstractSet[AnswerKey],
        due: Dues | None = None,
        deletions: Mapping[str, Deletion] | None = None,
    ) -> None:
        """Keep these; a disk that fails is told in `trouble`, and stops no container."""
        if self._file is None:
            return
        dues = [_KeptDue(uid, resource, each) for (uid, resource), each in sorted((due or {}).items())]
        blob = msgspec.json.encode(_Kept(sorted(keys), dues, deletions or {}))
        if blob == self._written:
            return
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._file, blob)
            self._written, self.trouble = blob, ""
        except OSError as error:
            self.trouble = f"{self._file}: {system_reason(error)}"
