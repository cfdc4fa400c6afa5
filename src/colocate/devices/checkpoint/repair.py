"""Plans the repaired checkpoint file, and checks that the kubelet is stopped.

A running kubelet keeps the record in memory and writes it with the next change, which would undo all or half of a
repair.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from colocate.devices.checkpoint.file import Snapshot
from colocate.devices.repair import Mended, without
from colocate.errors import UserError, system_reason
from colocate.kubelet import checkpoint
from colocate.kubelet.checkpoint import CheckpointDocument
from colocate.kubelet.paths import KubeletPaths
from colocate.model.checkpoint import Format
from colocate.model.records import KnownPod
from colocate.wire.rpc import answers


class RepairWish(msgspec.Struct, frozen=True):
    """What the user wants to drop or correct."""

    pods: Collection[str] = ()
    """Uids, or `namespace/name`."""
    resources: Collection[str] = ()
    fix_checksum: bool = False


class RepairPlan(msgspec.Struct, frozen=True):
    """What would be written, and how it differs."""

    old: Snapshot
    stated: int | None
    """The checksum that the file states."""
    right: int | None
    """The checksum of the new file; None in the oldest format, which has none."""
    unknown: Sequence[str]
    """Members of the old file that no kubelet reads; the new file does not have them."""
    mended: Mended
    content: bytes

    @property
    def changes_nothing(self) -> bool:
        return not self.mended.dropped and not self.mended.unregistered and self.stated == self.right


def plan(
    old: Snapshot, document: CheckpointDocument, wish: RepairWish, names: Mapping[str, str]
) -> RepairPlan:
    """Decide what to write; UserError if the wish does not fit the file."""
    if document.format is Format.PLAIN:
        if wish.fix_checksum:
            raise UserError(
                f"{old.path}: is of a kubelet {document.format.value}, which has no checksum; leave out "
                "--fix-checksum"
            )
    elif not (document.sound or wish.fix_checksum):
        raise UserError(
            f"{old.path}: its checksum is wrong, so its data may be wrong, too; check it with 'colocate "
            "checkpoint verify', and add --fix-checksum if the data is right"
        )
    pods = frozenset(_uid(pod, names) for pod in wish.pods)
    mended = without(document.checkpoint, pods, frozenset(wish.resources))
    content = checkpoint.render(mended.checkpoint, document.format)
    written = checkpoint.parse(content, document.format)
    # Read the new content back before it is written to disk.
    if written.checkpoint != mended.checkpoint or not (written.sound or document.format is Format.PLAIN):
        raise AssertionError(f"{old.path}: the new file would not read back correctly")
    return RepairPlan(old, document.checksum, written.checksum, document.unknown, mended, content)


def _uid(pod: str, names: Mapping[str, str]) -> str:
    """The uid of a pod that is given by uid, or as namespace/name."""
    if "/" not in pod:
        return pod
    uid = next((uid for uid, name in names.items() if name == pod), None)
    if uid is None:
        raise UserError(
            f"--drop-pod: the API does not know {pod}; give the uid that 'colocate checkpoint show' prints"
        )
    return uid


def living_losers(plan: RepairPlan, pods: Iterable[KnownPod]) -> list[KnownPod]:
    """Unfinished pods, according to the API, that would lose devices; init containers count too.

    Includes pods whose mirror annotation may be false: an unnecessary warning does no harm.
    """
    losers = {entry.pod_uid for entry in plan.mended.dropped}
    return [pod for pod in pods if not losers.isdisjoint({pod.uid, pod.mirrors}) and not pod.is_finished]


def why_not_now(file: Path) -> str | None:
    """Why the file must not be replaced: its kubelet runs, or may run. None if it is stopped."""
    paths = KubeletPaths(file.parent.parent)
    for socket in (file.with_name(paths.kubelet_socket.name), paths.pod_resources_socket):
        try:
            if answers(socket):
                return f"the kubelet runs: {socket} answers"
        except OSError as error:
            reason = system_reason(error)
            return f"cannot tell whether the kubelet runs: {socket} cannot be reached ({reason})"
    return None
