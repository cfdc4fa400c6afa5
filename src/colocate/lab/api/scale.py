"""The scale subresource: only the number of replicas of a workload."""

from typing import Any

from colocate.lab.api.bodies import check_kind
from colocate.lab.api.changes import Stored
from colocate.lab.api.objects import Object, at, metadata
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import ServedResource
from colocate.lab.api.selectors import to_text
from colocate.lab.api.status import bad_request

KIND = "Scale"
API_VERSION = "autoscaling/v1"
_MARKS = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def show(stored: Stored) -> Object:
    """The scale of a workload."""
    body = stored.body
    marks = {key: value for key, value in metadata(body).items() if key in _MARKS}
    return {
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": marks,
        "spec": {"replicas": int(at(body, "spec", "replicas") or 0)},
        "status": {
            "replicas": int(at(body, "status", "replicas") or 0),
            "selector": to_text(at(body, "spec", "selector")),
        },
    }


def update(
    registry: ObjectRegistry, resource: ServedResource, namespace: str, name: str, body: Any, dry_run: bool
) -> Stored:
    """Set the number of replicas."""
    check_kind(KIND, API_VERSION, body)
    replicas = at(body, "spec", "replicas") or 0
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise bad_request(f"Scale cannot be handled: spec.replicas is {replicas!r}, not a number")
    wanted = metadata(body).get("resourceVersion")

    def change(workload: Object) -> None:
        workload["spec"]["replicas"] = replicas
        if wanted:
            workload["metadata"]["resourceVersion"] = wanted

    return registry.modify(resource, namespace, name, change, dry_run=dry_run)
