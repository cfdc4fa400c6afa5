"""Writes conditions and the nominated node into the status of pods."""

from collections.abc import Callable

from colocate import telemetry
from colocate.lab.api.changes import Stored
from colocate.lab.api.objects import Object, condition, metadata, rfc3339, uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import PODS
from colocate.lab.api.status import StatusError
from colocate.telemetry import Event

UNSCHEDULABLE = "Unschedulable"
FAULT = "SchedulerError"
GATED = "SchedulingGated"


def not_scheduled(
    registry: ObjectRegistry, stored: Stored, reason: str, message: str, nominated: str | None = None
) -> None:
    """Write why a pod has no node. `nominated` is the nominated node or ""; None leaves it unchanged."""
    now = rfc3339(registry.clock.time())

    def write(pod: Object) -> None:
        set_condition(pod, "PodScheduled", "False", now, reason, message)
        if nominated:
            pod["status"]["nominatedNodeName"] = nominated
        elif nominated == "":
            pod["status"].pop("nominatedNodeName", None)

    _write(registry, stored, write)


def without_nomination(registry: ObjectRegistry, stored: Stored) -> None:
    """Remove a pod's nomination, because a pod of higher priority took the node."""

    def write(pod: Object) -> None:
        pod["status"].pop("nominatedNodeName", None)

    _write(registry, stored, write)


def preempted(registry: ObjectRegistry, stored: Stored, message: str) -> None:
    """Write the condition of a preempted pod."""
    now = rfc3339(registry.clock.time())
    reason = "PreemptionByScheduler"
    _write(registry, stored, lambda pod: set_condition(pod, "DisruptionTarget", "True", now, reason, message))


def set_condition(pod: Object, type: str, status: str, now: str, reason: str, message: str) -> None:
    """Set a condition in place; its time changes only if its status changes."""
    new: Object = {"type": type}
    if generation := metadata(pod).get("generation"):
        new["observedGeneration"] = generation
    new |= {"status": status, "lastProbeTime": None, "lastTransitionTime": now}
    new |= {"reason": reason, "message": message}
    held: list[Object] = pod["status"].setdefault("conditions", [])
    old = condition(pod, type)
    if old is None:
        held.append(new)
        return
    if old.get("status") == status:
        new["lastTransitionTime"] = old.get("lastTransitionTime") or now
    held[held.index(old)] = new


def _write(registry: ObjectRegistry, stored: Stored, change: Callable[[Object], None]) -> None:
    """Change the newest version of a pod, if it still has the same uid."""
    _, namespace, name = stored.key
    current = registry.find(PODS, namespace, name)
    if current is None or uid_of(current.body) != uid_of(stored.body):
        return
    try:
        registry.modify(PODS, namespace, name, change, "status")
    except StatusError as error:
        # A failed status write must not stop this pod or another.
        telemetry.logger().warning(Event.LAB_STATUS_NOT_WRITTEN, pod=f"{namespace}/{name}", error=str(error))
