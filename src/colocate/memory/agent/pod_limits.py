"""Limits of a pod's control groups brought to what was decided; what is not named stays as it is.

Every function blocks for a moment, is repeatable, and returns whether anything was changed. A limit that the kernel
refuses, and a group that is gone or cannot be written, is an error that says so.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from msgspec import UNSET

from colocate.errors import ColocateError
from colocate.host import high_mark
from colocate.host.memory_group import GroupGone, MemoryGroup
from colocate.host.memory_limits import LimitChange, set_limits
from colocate.host.pod_groups import container_groups
from colocate.memory import Ease, RestoreLimit, SetLimit, Throttle, Unthrottle
from colocate.model.figures import amount, some
from colocate.model.memory import Bytes


class LimitRefused(ColocateError):
    """The kernel does not take a limit."""


class GroupMissing(ColocateError):
    """A container's control group cannot be found."""


def hold(group: MemoryGroup, action: SetLimit, container_ids: Mapping[str, str]) -> bool:
    """Hold a pod to its blocks, or those of its containers that are there already."""
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
    """Give a limit back; when colocation is switched off, the limit of swap too, which was ours.

    `running` are the containers that run; None where nobody can say. One of them whose group is not found is an
    error, once the others have what is theirs; one that has ended has taken its limit with it.
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


def throttle(group: MemoryGroup, action: Throttle | Ease, *, recorded: bool = True) -> bool:
    """Set memory.high, with a mark that it is ours; LimitRefused where neither mark nor record would say so."""
    marked = high_mark.mark(group.folder, action.before)
    if isinstance(action, Throttle) and not marked and not recorded:
        raise LimitRefused(
            "its control group takes no mark and the state cannot be stored, so it could never be undone"
        )
    return _set(group, LimitChange(high=action.high))


def let_go(group: MemoryGroup, action: Unthrottle) -> bool:
    """Give memory.high back."""
    changed = _set(group, LimitChange(high=action.to))
    high_mark.unmark(group.folder)
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
        return False  # The container ended; the pod has not.


def _containers(
    pod: MemoryGroup, names: Mapping[str, Bytes] | tuple[str, ...], ids: Mapping[str, str]
) -> Mapping[str, MemoryGroup]:
    """The groups of containers that are there, by the container's name."""
    groups = container_groups(pod) if names else {}
    # A runtime without ids, as the embedded cluster's, names groups as the containers are named.
    found = {name: groups.get(ids.get(name, name)) for name in names}
    return {name: group for name, group in found.items() if group is not None}
