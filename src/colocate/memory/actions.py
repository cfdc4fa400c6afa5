"""The actions of a plan, as data, each with its reason. The executor reports an outcome for each.

Every action can be repeated: the second time changes nothing.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

from colocate.model.memory import Bytes, PodIdentity, PodUid


class PodRef(msgspec.Struct, frozen=True):
    """A pod by its uid: a later pod of the same name is another."""

    uid: PodUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"pod {self.uid}"


def pod_ref(pod: PodIdentity) -> PodRef:
    return PodRef(pod.uid, pod.namespace, pod.name)


class _Action(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    reason: str


class SwitchDemotion(_Action, frozen=True):
    """Switch the kernel's demotion on for the far rung, or off again."""

    on: bool


class _PodAction(_Action, frozen=True):
    pod: PodRef


class SetLimit(_PodAction, frozen=True):
    """Limit a pod, or some of its containers, to what it may use."""

    limit: Bytes | None
    """Limit of the pod's control group; None: left as it is."""
    swap: Bytes | None
    """Limit on swap; None: left as it is."""
    containers: Mapping[str, Bytes] = {}
    """Limits of containers' own control groups, where the pod's cannot have one."""


class Reclaim(_PodAction, frozen=True):
    """Have the kernel drop this much of a pod's memory. It needs no way back: no limit stays lowered."""

    bytes: Bytes
    leave: Bytes = 0
    """Page cache that the pod keeps."""


class RestoreLimit(_PodAction, frozen=True):
    """Undo SetLimit when colocation is switched off."""

    to: Bytes | None
    containers: tuple[str, ...] = ()
    """Containers whose own limit is removed."""


class Throttle(_PodAction, frozen=True):
    """Set memory.high (v2): beyond it the kernel slows a pod down and does not kill it."""

    high: Bytes
    before: Bytes | None
    """memory.high before the first Throttle."""


class Ease(_PodAction, frozen=True):
    """Raise the memory.high of a throttled pod, as a first part of undoing Throttle."""

    high: Bytes
    before: Bytes | None


class Unthrottle(_PodAction, frozen=True):
    """Undo Throttle."""

    to: Bytes | None


class MovePages(_PodAction, frozen=True):
    """Move a pod's pages to far NUMA nodes."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    """NUMA nodes to fill, in this order."""
    bytes: Bytes


class Demote(_PodAction, frozen=True):
    """Have the kernel move a pod's memory to far NUMA nodes of a lower tier. ReturnPages undoes it where the agent
    may move pages; elsewhere only the kernel's own promotion does."""

    sources: tuple[int, ...]
    """All near NUMA nodes."""
    leave: Mapping[int, Bytes]
    """The NUMA nodes that it may go to, with the bytes that stay free on each."""
    bytes: Bytes


class ReturnPages(_PodAction, frozen=True):
    """Undo MovePages."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    bytes: Bytes


class Evict(_PodAction, frozen=True):
    """Evict through the API, which respects disruption budgets."""


class Recreate(_PodAction, frozen=True):
    """Evict a bare pod and create it again on another node."""

    avoid: str
    """The node that the new pod's affinity rules out."""


PodAction: TypeAlias = (
    SetLimit
    | Reclaim
    | RestoreLimit
    | Throttle
    | Ease
    | Unthrottle
    | MovePages
    | Demote
    | ReturnPages
    | Evict
    | Recreate
)

Action: TypeAlias = SwitchDemotion | PodAction


class ActionResult(StrEnum):
    """The result of an action."""

    DONE = "done"
    FAILED = "failed"
    """The machine refused it: busy, read-only or not permitted, as the message says."""
    GONE = "gone"
    """The pod no longer exists."""
    BLOCKED = "blocked"
    """Not possible now: a disruption budget forbids it, or the pod's note cannot be stored first."""
    REFUSED = "refused"
    """The API does not allow it."""
    UNREACHABLE = "unreachable"
    """The API does not answer."""


class ActionOutcome(msgspec.Struct, frozen=True):
    """The outcome of an action of an earlier plan. Until it is reported, the action is planned again."""

    action: Action
    result: ActionResult
    message: str = ""
