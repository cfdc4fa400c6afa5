"""Makes a pod's API status from a kubelet's record. Pure."""

import msgspec

from colocate.lab.api.objects import Object
from colocate.model.pod import Container, ContainerStatus, Phase, Pod, PodStatus

_NO_CONDITIONS = ("UnexpectedAdmissionError", "TopologyAffinityError")


def status_object(
    pod: Pod, status: PodStatus, now: str, *, host: str, address: str, before: Object
) -> Object:
    """The status to write; conditions keep the time of their last change."""
    shown: Object = {"phase": str(status.phase), "qosClass": str(status.qos_class)}
    if status.reason:
        shown |= {"reason": status.reason, "message": status.message}
    if status.start_time:
        shown["startTime"] = status.start_time
    if status.reason in _NO_CONDITIONS:
        return shown
    shown |= {"hostIP": host, "hostIPs": [{"ip": host}]}
    if address and status.container_statuses:
        shown |= {"podIP": address, "podIPs": [{"ip": address}]}
    shown["conditions"] = _conditions(status, now, before)
    by_name = {container.name: container for container in pod.containers}
    for field, statuses in (
        ("initContainerStatuses", status.init_container_statuses),
        ("containerStatuses", sorted(status.container_statuses, key=lambda one: one.name)),
    ):
        if statuses:
            shown[field] = [_container(one, by_name[one.name]) for one in statuses]
    return shown


def _conditions(status: PodStatus, now: str, before: Object) -> list[Object]:
    ready = bool(status.container_statuses) and all(
        one.ready and one.state.running for one in status.container_statuses
    )
    finished = status.phase in (Phase.SUCCEEDED, Phase.FAILED)
    initialised = all(
        (one.state.terminated and one.state.terminated.exit_code == 0) or one.started
        for one in status.init_container_statuses
    )
    wanted = {
        "PodReadyToStartContainers": bool(status.container_statuses) and not finished,
        "Initialized": initialised or status.phase is Phase.SUCCEEDED,
        "Ready": ready,
        "ContainersReady": ready,
        "PodScheduled": True,
    }
    known = {one.get("type"): one for one in before.get("conditions") or []}
    shown: list[Object] = []
    for type, holds in wanted.items():
        value = "True" if holds else "False"
        old = known.get(type)
        since = old.get("lastTransitionTime", now) if old and old.get("status") == value else now
        one: Object = {"type": type, "status": value, "lastProbeTime": None, "lastTransitionTime": since}
        if type in ("Ready", "ContainersReady") and not holds:
            one["reason"] = "PodCompleted" if status.phase is Phase.SUCCEEDED else "ContainersNotReady"
        shown.append(one)
    return shown


def _container(status: ContainerStatus, container: Container) -> Object:
    shown: Object = {
        "name": status.name,
        "state": msgspec.to_builtins(status.state),
        "lastState": msgspec.to_builtins(status.last_state),
        "ready": status.ready,
        "restartCount": status.restart_count,
        "image": container.image,
        "imageID": "",
        "started": status.started,
    }
    return shown
