"""Sets the memory limits of a pod and its containers to what was decided; limits that are not named stay.

Every function does blocking I/O, can be repeated, and returns whether it changed anything. It raises an error where
the kernel refuses a limit, or a group is gone or cannot be written.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from msgspec import UNSET

from colocate.errors import ColocateError
from colocate.host.memory_group import GroupGone, MemoryGroup
from colocate.host.memory_limits import LimitChange, LimitRefused, set_limits
from colocate.host.pod_groups import container_groups
from colocate.memory import RestoreLimit, SetLimit
from colocate.model.figures import amount, some
from colocate.model.memory import Bytes


class GroupMissing(ColocateError):
    """A container's control group cannot be found."""


def hold(group: MemoryGroup, action: SetLimit, container_ids: Mapping[str, str]) -> bool:
    """Limit a pod to its blocks, or those of its containers that exist already."""
    wanted = LimitChange(
        memory=UNSET if action.limit is None else action.limit,
        swap=UNSET if action.swap is None else action.swap,
    )
    changed = _set(group, wanted)
    groups = _containers(group, action.containers, container_ids)
    for name, most in action.containers.items():
        if name in groups:
            changed |= _limit_container(groups[name], most)
    return changed


def restore(
    group: MemoryGroup,
    action: RestoreLimit,
    container_ids: Mapping[str, str],
    running: AbstractSet[str] | None,
    *,
    off: bool,
) -> bool:
    """Restore a limit; when colocation is switched off, also remove our limit on swap.

    `running` are the containers that run; None where that is unknown. A running container whose group is not found is
    an error, raised once the others are restored. A container that has ended needs nothing.
    """
    changed = _set(group, LimitChange(memory=action.to, swap=None if off else UNSET))
    found = _containers(group, action.containers, container_ids)
    for container in found.values():
        changed |= _limit_container(container, None)
    missing = [
        name for name in action.containers if name not in found and (running is None or name in running)
    ]
    if missing and container_groups(group):
        raise GroupMissing(
            f"{group.folder} has no control group for {some(missing)}, which may be running; its limit stays until "
            "the group appears or the container ends"
        )
    return changed


def _set(group: MemoryGroup, wanted: LimitChange) -> bool:
    done = set_limits(group, wanted)
    if done.busy is not None:
        raise LimitRefused(f"the kernel cannot reclaim: {amount(done.busy)} is used")
    return bool(done.written)


def _limit_container(group: MemoryGroup, most: Bytes | None) -> bool:
    try:
        return _set(group, LimitChange(memory=most))
    except GroupGone:
        return False  # The container has ended; the pod has not.


def _containers(
    pod: MemoryGroup, names: Mapping[str, Bytes] | tuple[str, ...], ids: Mapping[str, str]
) -> Mapping[str, MemoryGroup]:
    """The groups of containers that exist, by the container's name."""
    groups = container_groups(pod) if names else {}
    # The embedded cluster's runtime has no ids: it names groups after the containers.
    found = {name: groups.get(ids.get(name, name)) for name in names}
    return {name: group for name, group in found.items() if group is not None}
