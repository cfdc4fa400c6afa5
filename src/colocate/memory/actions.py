"""What is to be done, as data. Each says why; whoever carries it out reports what became of it.

Every action may be repeated: done twice, it is as if done once.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

from colocate.model.memory import Bytes, PodIdentity, PodUid


class PodRef(msgspec.Struct, frozen=True):
    """A pod that is meant, and no later one of its name."""

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
    """Switch the kernel's demotion on for the far rung; its own way back with `on` false."""

    on: bool


class _PodAction(_Action, frozen=True):
    pod: PodRef


class SetLimit(_PodAction, frozen=True):
    """Hold a pod, or some of its containers, to what it may use."""

    limit: Bytes | None
    """Of the pod's control group; None: left as it is."""
    swap: Bytes | None
    """How much swap; None: left as it is."""
    containers: Mapping[str, Bytes] = {}
    """Limits of containers' own control groups, where the pod's cannot have one."""


class Reclaim(_PodAction, frozen=True):
    """Have the kernel drop this much of a pod's memory. Has no way back and needs none: no limit stays lowered."""

    bytes: Bytes
    leave: Bytes = 0
    """Page cache that must be left."""


class RestoreLimit(_PodAction, frozen=True):
    """The way back of SetLimit when colocation is switched off."""

    to: Bytes | None
    containers: tuple[str, ...] = ()
    """Containers whose own groups are to have no limit again."""


class Throttle(_PodAction, frozen=True):
    """Set memory.high (v2): beyond it a pod is slowed down, not killed."""

    high: Bytes
    before: Bytes | None
    """What it was before the first of these."""


class Ease(_PodAction, frozen=True):
    """Raise the memory.high of a throttled pod: part of the way back of Throttle."""

    high: Bytes
    before: Bytes | None


class Unthrottle(_PodAction, frozen=True):
    """The way back of Throttle."""

    to: Bytes | None


class MovePages(_PodAction, frozen=True):
    """Move a pod's pages to far NUMA nodes."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    """In the order in which they are to be filled."""
    bytes: Bytes


class Demote(_PodAction, frozen=True):
    """Have the kernel move a pod's memory to far NUMA nodes of a lower tier. ReturnPages is the way back where that
    right exists; elsewhere the kernel's own promotion is."""

    sources: tuple[int, ...]
    """All near NUMA nodes."""
    leave: Mapping[int, Bytes]
    """The NUMA nodes that it may go to, and what is to be left free on each."""
    bytes: Bytes


class ReturnPages(_PodAction, frozen=True):
    """The way back of MovePages."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    bytes: Bytes


class Evict(_PodAction, frozen=True):
    """Evict through the API, which keeps to disruption budgets."""


class Recreate(_PodAction, frozen=True):
    """Create a bare pod again, anywhere but here, and end this one."""

    avoid: str
    """The node that its affinity rules out."""


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
    """What became of an action."""

    DONE = "done"
    FAILED = "failed"
    """The machine refused: busy, read-only, not permitted. The message says which."""
    GONE = "gone"
    """There is no such pod any more."""
    BLOCKED = "blocked"
    """Not now: a disruption budget does not allow it, or it cannot be written down first."""
    REFUSED = "refused"
    """The API does not allow it at all."""
    UNREACHABLE = "unreachable"
    """The API does not answer."""


class ActionOutcome(msgspec.Struct, frozen=True):
    """An action of an earlier plan, carried out or not. Until it is reported, the action is planned again."""

    action: Action
    result: ActionResult
    message: str = ""
