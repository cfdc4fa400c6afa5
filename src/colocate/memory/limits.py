"""Decides what a pod with blocks may use: the limits of its control groups.

The limit is on the pod's group, not on the container's: that group exists before the container, and survives its
restarts. The limit is blocks x size, plus what other containers that run at the same time may use.

Where a container without blocks has no memory limit, the pod gets none: it might kill a sidecar that should have no
limit. Each container with blocks is limited in its own group instead, unless it has a memory limit already. Where the
pod as a whole has a memory limit, blocks come on top. The limit is never below the kubelet's own.
"""

from collections.abc import Mapping

import msgspec

from colocate.model.figures import amount, count, some
from colocate.model.memory import Bytes, ContainerMemory, PodIdentity, running_together

PAGE = 4096


class PodLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits, and why."""

    pod: Bytes | None
    """Limit of the pod's group; None where it gets none from us."""
    containers: Mapping[str, Bytes] = {}
    """Limits of containers' own groups, where the pod's has none."""
    swap: Bytes | None
    """Limit on swap; None: as the kubelet set it."""
    reasons: tuple[str, ...]


def limits_of(pod: PodIdentity, block_size: Bytes, swap: bool = False) -> PodLimits | None:
    """The limits of a pod that asks for blocks; None for any other."""
    if not any(container.blocks for container in pod.containers):
        return None
    allowed = [_allowed(container, block_size) for container in pod.containers]
    unlimited = [each.name for each, most in zip(pod.containers, allowed, strict=True) if most is None]
    kept_swap = None if swap else 0
    if pod.limit:
        blocks = running_together([each.blocks * block_size for each in pod.containers], pod.containers)
        total = pod.limit + blocks + pod.overhead
        reason = (
            f"The pod's own memory limit is {amount(pod.limit)}, its blocks are {amount(blocks)} and its runtime's "
            f"overhead is {amount(pod.overhead)}: together {amount(total)}."
        )
        return PodLimits(pod=whole_pages(total), swap=kept_swap, reasons=(reason,))
    if unlimited:
        held = {
            each.name: whole_pages(most)
            for each, most in zip(pod.containers, allowed, strict=True)
            if each.blocks and not each.limit and most is not None
        }
        own = ", ".join(f"{name} {amount(most)}" for name, most in held.items()) or "none"
        reason = (
            f"The pod gets no limit, because {some(unlimited)} has no memory limit and must not be killed by one. "
            f"Limits on containers: {own}. Give every container a memory limit to limit the pod."
        )
        return PodLimits(pod=None, containers=held, swap=None, reasons=(reason,))
    total = running_together([most or 0 for most in allowed], pod.containers) + pod.overhead
    reasons = [
        f"{each.name} may use {amount(most or 0)} ({_why(each, block_size)})."
        for each, most in zip(pod.containers, allowed, strict=True)
    ]
    if pod.overhead:
        reasons.append(f"Its runtime needs {amount(pod.overhead)} more.")
    reasons.append(f"Together they may use {amount(total)}: the pod's limit.")
    return PodLimits(pod=whole_pages(total), swap=kept_swap, reasons=tuple(reasons))


def set_aside(pod: PodIdentity, block_size: Bytes) -> Bytes:
    """What the scheduler reserved for a pod besides its blocks; its use counts as online work's.

    A container with blocks and a memory limit has the larger of both, not the sum, as in `limits_of`.
    """
    if pod.limit or pod.whole_request:
        return pod.request
    running = tuple(each for each in pod.containers if not (each.has_ended_by_start and pod.started))
    besides = [
        min(each.request or 0, (_allowed(each, block_size) or each.request or 0) - each.blocks * block_size)
        for each in running
    ]
    return running_together(besides, running) + pod.overhead


def kubelets_own(pod: PodIdentity) -> Bytes | None:
    """The limit that the kubelet sets on the pod's group; None unless the pod or every container has a limit."""
    if pod.limit:
        return whole_pages(pod.limit + pod.overhead)
    most = [container.limit for container in pod.containers]
    if not most or not all(most):
        return None
    return whole_pages(running_together([limit or 0 for limit in most], pod.containers) + pod.overhead)


def whole_pages(size: Bytes) -> Bytes:
    """Rounded down to whole pages, as the kernel stores limits."""
    return size // PAGE * PAGE


def _allowed(container: ContainerMemory, block_size: Bytes) -> Bytes | None:
    """What one container may use; None where it has no limit.

    Memory that a container with blocks requests besides was reserved by the scheduler, so the container keeps it.
    With a memory limit, its own group has that limit; with only a request, blocks come on top.
    """
    blocks = container.blocks * block_size
    if container.limit:
        return max(container.limit, blocks)
    return blocks + (container.request or 0) if blocks else None


def _why(container: ContainerMemory, block_size: Bytes) -> str:
    parts = []
    if container.blocks:
        parts.append(f"{count(container.blocks, 'block')} of {amount(block_size)}")
    if container.limit:
        parts.append(f"memory limit {amount(container.limit)}" + (", the larger" if container.blocks else ""))
    elif container.request:
        parts.append(f"memory request {amount(container.request)}")
    return " and ".join(parts)
