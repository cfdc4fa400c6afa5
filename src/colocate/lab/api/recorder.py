"""Events that the controllers write about what they do."""

from colocate.lab.api.objects import Object, metadata, name_of, rfc3339, uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import EVENTS, ServedResource


def record(
    registry: ObjectRegistry,
    resource: ServedResource,
    about: Object,
    component: str,
    reason: str,
    message: str,
) -> None:
    """Write a Normal event about an object."""
    namespace = metadata(about).get("namespace") or "default"
    now = rfc3339(registry.clock.time())
    body: Object = {
        "metadata": {"generateName": f"{name_of(about)}."},
        "involvedObject": {
            "kind": resource.kind,
            "namespace": namespace,
            "name": name_of(about),
            "uid": uid_of(about),
            "apiVersion": resource.api_version,
            "resourceVersion": metadata(about).get("resourceVersion") or "",
        },
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": "Normal",
        "eventTime": None,
        "reportingComponent": component,
        "reportingInstance": "",
    }
    registry.create(EVENTS, namespace, body)
