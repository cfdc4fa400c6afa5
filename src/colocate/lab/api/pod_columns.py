"""The cells that `kubectl get pods` shows, such as the one-word status. Pure."""

from colocate.lab.api.ages import age, human
from colocate.lab.api.objects import Object, at, condition, is_ready, is_terminating, metadata, parse_time

_FINAL = ("Succeeded", "Failed")


def cells(pod: Object, now: float) -> list[object]:
    statuses: list[Object] = at(pod, "status", "containerStatuses") or []
    containers = at(pod, "spec", "containers") or []
    ready = sum(1 for one in statuses if one.get("ready") and at(one, "state", "running") is not None)
    gates: list[Object] = at(pod, "spec", "readinessGates") or []
    passed = sum(
        (condition(pod, str(gate.get("conditionType"))) or {}).get("status") == "True" for gate in gates
    )
    return [
        metadata(pod)["name"],
        f"{ready}/{len(containers)}",
        status_word(pod),
        _restarts(pod, now),
        age(metadata(pod).get("creationTimestamp"), now),
        at(pod, "status", "podIP") or "<none>",
        at(pod, "spec", "nodeName") or "<none>",
        at(pod, "status", "nominatedNodeName") or "<none>",
        f"{passed}/{len(gates)}" if gates else "<none>",
    ]


def row_conditions(pod: Object) -> list[Object]:
    """The conditions of a row in a table: whether the pod has ended."""
    phase = at(pod, "status", "phase")
    if phase not in _FINAL:
        return []
    message = "The pod has completed successfully." if phase == "Succeeded" else "The pod failed."
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


def status_word(pod: Object) -> str:
    """The one-word status: why it waits, how it ended, or its phase."""
    phase = at(pod, "status", "phase") or "Unknown"
    word = at(pod, "status", "reason") or phase
    scheduled = condition(pod, "PodScheduled") or {}
    if scheduled.get("reason") == "SchedulingGated":
        word = "SchedulingGated"
    word = _init_word(pod) or _container_word(pod, word)
    if is_terminating(pod):
        if at(pod, "status", "reason") == "NodeLost":
            return "Unknown"
        if phase not in _FINAL:
            return "Terminating"
    return word


def _init_word(pod: Object) -> str:
    """The status of the init containers; empty once they are done."""
    total = len(at(pod, "spec", "initContainers") or [])
    statuses: list[Object] = at(pod, "status", "initContainerStatuses") or []
    for number, status in enumerate(statuses):
        ended = at(status, "state", "terminated")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if ended is not None:
            return f"Init:{ended.get('reason') or _exit_word(ended)}"
        waiting = at(status, "state", "waiting") or {}
        if waiting.get("reason") not in (None, "", "PodInitializing"):
            return f"Init:{waiting['reason']}"
        return f"Init:{number}/{total}"
    return ""


def _container_word(pod: Object, word: str) -> str:
    running = False
    statuses: list[Object] = at(pod, "status", "containerStatuses") or []
    for status in reversed(statuses):
        waiting, ended = at(status, "state", "waiting"), at(status, "state", "terminated")
        if waiting and waiting.get("reason"):
            word = waiting["reason"]
        elif ended is not None:
            word = ended.get("reason") or _exit_word(ended)
        elif status.get("ready") and at(status, "state", "running") is not None:
            running = True
    if word == "Completed" and running:
        return "Running" if is_ready(pod) else "NotReady"
    return word


def _exit_word(ended: Object) -> str:
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode')}"


def _restarts(pod: Object, now: float) -> str:
    statuses: list[Object] = at(pod, "status", "containerStatuses") or []
    count = sum(int(one.get("restartCount") or 0) for one in statuses)
    ends = [parse_time(at(one, "lastState", "terminated", "finishedAt")) for one in statuses]
    last = max((end for end in ends if end is not None), default=None)
    return f"{count} ({human(now - last)} ago)" if count and last is not None else str(count)
