"""The API server's defaults for pods and pod templates. Changes the given body in place."""

import math
from typing import Any

from colocate.lab.api import quantities
from colocate.lab.api.objects import Object

TOLERATION_SECONDS = 300
_POD = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}


def fill_template(spec: Object) -> None:
    """Defaults that pods and pod templates share."""
    for container in containers(spec):
        _fill_container(container)
    for key, value in _POD.items():
        spec.setdefault(key, dict(value) if isinstance(value, dict) else value)
    if spec.get("serviceAccountName"):
        spec.setdefault("serviceAccount", spec["serviceAccountName"])


def fill_pod(spec: Object) -> None:
    """Defaults of a new pod."""
    fill_template(spec)
    spec.setdefault("enableServiceLinks", True)
    tolerations = list(spec.get("tolerations") or [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_tolerates(toleration, key) for toleration in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": TOLERATION_SECONDS,
                }
            )
    spec["tolerations"] = tolerations


def containers(spec: Object) -> list[Object]:
    """Every container of a pod, the init containers first."""
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def qos_class(spec: Object) -> str:
    """Guaranteed, Burstable or BestEffort, by CPU and memory only."""
    wanted: list[tuple[Any, Any]] = []
    for container in containers(spec):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        wanted += [(_amount(requests.get(name)), _amount(limits.get(name))) for name in ("cpu", "memory")]
    if not any(request or limit for request, limit in wanted):
        return "BestEffort"
    guaranteed = all(limit and (request or limit) == limit for request, limit in wanted)
    return "Guaranteed" if guaranteed else "Burstable"


def fill_amounts(amounts: Object) -> None:
    """Write quantities in canonical form; validation reports a bad one."""
    for name, value in amounts.items():
        try:
            amounts[name] = quantities.canonical(value)
        except ValueError:
            amounts[name] = str(value)


def share_of(value: Any, total: int, round_up: bool) -> int:
    """A count, or a percentage of a total."""
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdigit():
        exact = int(value[:-1]) * total / 100
        return math.ceil(exact) if round_up else math.floor(exact)
    return int(value) if isinstance(value, int) or str(value).isdigit() else 0


def _amount(value: Any) -> Any:
    try:
        return quantities.parse(value) if value is not None else None
    except ValueError:
        return None


def _tolerates(toleration: Object, key: str) -> bool:
    covers_key = toleration.get("key") in (key, None, "")
    return covers_key and toleration.get("effect") in ("NoExecute", None, "")


def _fill_container(container: Object) -> None:
    image = str(container.get("image") or "")
    resources = container.setdefault("resources", {})
    for amounts in (resources.get("limits"), resources.get("requests")):
        fill_amounts(amounts or {})
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **(resources.get("requests") or {})}
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", "Always" if _is_latest(image) else "IfNotPresent")


def _is_latest(image: str) -> bool:
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "@" not in image and (not colon or tag == "latest")
