"""What the scheduler writes into the status of pods: conditions, and the node that room is made on."""

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
    """Say why a pod has no node. `nominated` is the one that it waits for or "", None leaves it as it is."""
    now = rfc3339(registry.clock.time())

    def write(pod: Object) -> None:
        set_condition(pod, "PodScheduled", "False", now, reason, message)
        if nominated:
            pod["status"]["nominatedNodeName"] = nominated
        elif nominated == "":
            pod["status"].pop("nominatedNodeName", None)

    _write(registry, stored, write)


def without_nomination(registry: ObjectRegistry, stored: Stored) -> None:
    """Somebody more important has taken the room that was being made for this pod."""

    def write(pod: Object) -> None:
        pod["status"].pop("nominatedNodeName", None)

    _write(registry, stored, write)


def preempted(registry: ObjectRegistry, stored: Stored, message: str) -> None:
    """Say why a pod is about to go."""
    now = rfc3339(registry.clock.time())
    reason = "PreemptionByScheduler"
    _write(registry, stored, lambda pod: set_condition(pod, "DisruptionTarget", "True", now, reason, message))


def set_condition(pod: Object, type: str, status: str, now: str, reason: str, message: str) -> None:
    """Set a condition in place; its time changes only where its status does."""
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
    """Change the newest version of a pod, if it is still the same pod."""
    _, namespace, name = stored.key
    current = registry.find(PODS, namespace, name)
    if current is None or uid_of(current.body) != uid_of(stored.body):
        return
    try:
        registry.modify(PODS, namespace, name, change, "status")
    except StatusError as error:
        # What is said about a pod holds up neither that pod nor any other.
        telemetry.logger().warning(Event.LAB_STATUS_NOT_WRITTEN, pod=f"{namespace}/{name}", error=str(error))
