"""A repaired checkpoint: without certain pods, without certain resources. Data in, data out.

It keeps the order, and the difference between an empty list and none, because the checksum covers both.
"""

from collections.abc import Collection

import msgspec

from colocate.errors import UserError
from colocate.model.checkpoint import Checkpoint, Entry


class Mended(msgspec.Struct, frozen=True):
    """The repaired checkpoint, and what it lost."""

    checkpoint: Checkpoint
    dropped: tuple[Entry, ...]
    unregistered: tuple[str, ...]


def without(checkpoint: Checkpoint, pods: Collection[str], resources: Collection[str]) -> Mended:
    """Drop every entry of these pods (by uid) and of these resources, and the resources' registration.

    A pod or resource that is not in the checkpoint is a UserError: the user probably means another file.
    """
    entries, registered = checkpoint.entries, checkpoint.registered
    _must_be_there("pod", pods, {entry.pod_uid for entry in entries or ()})
    _must_be_there("resource", resources, {*(registered or {}), *(e.resource for e in entries or ())})
    dropped = tuple(e for e in entries or () if e.pod_uid in pods or e.resource in resources)
    if entries is not None:
        entries = tuple(e for e in entries if e.pod_uid not in pods and e.resource not in resources)
    if registered is not None:
        registered = {resource: ids for resource, ids in registered.items() if resource not in resources}
    unregistered = tuple(name for name in checkpoint.registered or {} if name in resources)
    return Mended(Checkpoint(entries, registered), dropped, unregistered)


def _must_be_there(kind: str, wanted: Collection[str], present: Collection[str]) -> None:
    for name in wanted:
        if name not in present:
            raise UserError(
                f"the checkpoint has no {kind} {name!r}; 'colocate checkpoint show' lists what it has"
            )
