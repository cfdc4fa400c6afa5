"""Colocated pods, and the order in which they give back."""

from collections.abc import Iterable, Sequence

import msgspec

from colocate.memory.actions import PodRef, pod_ref
from colocate.memory.blocks import block_place
from colocate.memory.limits import PodLimits
from colocate.memory.usage import firm
from colocate.model.memory import Bytes, PodIdentity, PodMemory, PodUid


class Colocated(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that holds blocks, or has held some and not got back all that was taken: nothing is done to others."""

    pod: PodIdentity
    ids: tuple[str, ...]
    reading: PodMemory | None
    """None where its control group cannot be read."""
    limits: PodLimits | None
    """None where its containers are not known."""
    far: Bytes
    """What it has on far nodes."""
    used: Bytes
    """What it uses of its blocks: what is beyond `besides`."""
    besides: Bytes
    """What it uses of the memory that the scheduler set aside for it besides its blocks: as online work's."""
    presumed: Bytes = 0
    """Its blocks, where it runs and cannot be read."""
    entitled: bool = True
    """Whether blocks are sold to its namespace."""

    @property
    def uid(self) -> PodUid:
        return self.pod.uid

    @property
    def ref(self) -> PodRef:
        return pod_ref(self.pod)

    @property
    def near(self) -> Bytes:
        """What its blocks would give back: for this alone it is asked to give."""
        return max(0, self.used + self.presumed - self.far)

    @property
    def frees(self) -> Bytes:
        """What its end would give back in all."""
        return max(0, self.used + self.presumed + self.besides - self.far)

    @property
    def gives(self) -> bool:
        """Whether anything may be taken from it: not where it is known to ask for no block, whatever is said."""
        return bool(self.ids) and self.pod.may_hold_blocks

    @property
    def may_be_bound(self) -> bool:
        """Whether what holds the pod's group down holds nobody but containers with blocks.

        What other containers have was set aside for them: they are not to pay for being in the same pod.
        """
        may_run = [each for each in self.pod.containers if not (each.has_ended_by_start and self.pod.started)]
        has_limit = self.limits is not None and self.limits.pod is not None
        return has_limit and all(each.blocks for each in may_run)


def giving_order(pods: Iterable[Colocated], due: Bytes) -> list[Colocated]:
    """Who gives back first: to whom no blocks are sold; then lower priority; then who can be read; then whose blocks
    pay more of what is due; then the youngest."""
    return sorted(
        pods,
        key=lambda each: (
            each.entitled,
            each.pod.priority,
            # What is known to be paid goes before what may be.
            each.reading is None,
            -min(each.near, due),
            -(each.pod.created or 0.0),
            each.uid,
        ),
    )


def droppable(pod: PodMemory, swap: bool, swap_free: Bytes) -> Bytes:
    """What the kernel can take from a pod: cache, and what fits into swap where it may swap."""
    return pod.file + (min(pod.anon, swap_free) if swap and pod.swap_limit != 0 else 0)


def unyielding(pod: PodMemory, swap: bool, swap_free: Bytes) -> Bytes:
    """What it cannot."""
    # The counters are not read at the same instant: what is used is no less than its parts.
    return max(pod.usage, firm(pod) + pod.file) - droppable(pod, swap, swap_free)


def blocks_in_giving_order(pods: Sequence[Colocated]) -> list[str]:
    """Blocks of the pods as ordered, of each the highest first; each once."""
    return list(dict.fromkeys(id for each in pods for id in sorted(each.ids, key=block_place, reverse=True)))
