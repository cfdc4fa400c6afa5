"""The rules for pods: required fields, and fields that may change. Pure: a body in, its faults out."""

from collections.abc import Iterator

from colocate.lab.api import faults, quantities
from colocate.lab.api.objects import Object, clone
from colocate.lab.api.status import StatusCause

_RESTART = ("Always", "OnFailure", "Never")
_PULL = ("Always", "IfNotPresent", "Never")
_IMMUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def spec_faults(spec: Object, path: str = "spec") -> Iterator[StatusCause]:
    """The faults of a pod's spec."""
    if not spec.get("containers"):
        yield faults.required(f"{path}.containers")
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(group) or []):
            yield from _container_faults(container, f"{path}.{group}[{number}]", names)
    if spec.get("restartPolicy") not in _RESTART:
        yield faults.unsupported(f"{path}.restartPolicy", spec.get("restartPolicy"), _RESTART)
    grace = spec.get("terminationGracePeriodSeconds") or 0
    if grace < 0:
        yield faults.invalid(
            f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"
        )
    if spec.get("nodeName") and (why := faults.subdomain_fault(spec["nodeName"])):
        yield faults.invalid(f"{path}.nodeName", spec["nodeName"], why)


def _container_faults(container: Object, path: str, names: set[str]) -> Iterator[StatusCause]:
    name = container.get("name")
    if not name:
        yield faults.required(f"{path}.name")
    elif why := faults.label_fault(name):
        yield faults.invalid(f"{path}.name", name, why)
    elif name in names:
        yield faults.duplicate(f"{path}.name", name)
    else:
        names.add(name)
    if not container.get("image"):
        yield faults.required(f"{path}.image")
    if container.get("imagePullPolicy") not in _PULL:
        yield faults.unsupported(f"{path}.imagePullPolicy", container.get("imagePullPolicy"), _PULL)
    for number, variable in enumerate(container.get("env") or []):
        if not variable.get("name"):
            yield faults.required(f"{path}.env[{number}].name")
    yield from _resource_faults(container.get("resources") or {}, f"{path}.resources")


def _resource_faults(resources: Object, path: str) -> Iterator[StatusCause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    sound = True
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            for fault in amount_faults(name, value, f"{path}.{part}"):
                sound = False
                yield fault
    if not sound:
        return
    for name, request in requests.items():
        limit = limits.get(name)
        if limit is None:
            if quantities.is_extended(name):
                yield faults.required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif quantities.is_extended(name) and quantities.parse(request) != quantities.parse(limit):
            yield faults.invalid(f"{path}.requests", request, f"must be equal to {name} limit of {limit}")
        elif quantities.parse(request) > quantities.parse(limit):
            why = f"must be less than or equal to {name} limit of {limit}"
            yield faults.invalid(f"{path}.requests", request, why)


def amount_faults(name: str, value: object, path: str) -> Iterator[StatusCause]:
    """The faults of an amount of a resource."""
    field = f"{path}[{name}]"
    if why := faults.qualified_name_fault(name):
        yield faults.invalid(path, name, why)
    try:
        amount = quantities.parse(value)
    except ValueError as error:
        yield faults.invalid(field, value, str(error))
        return
    if amount < 0:
        yield faults.invalid(field, value, "must be greater than or equal to 0")
    if quantities.is_extended(name) and amount != int(amount):
        yield faults.invalid(field, value, "must be an integer")


def update_faults(new: Object, old: Object) -> Iterator[StatusCause]:
    """Forbidden changes of a pod's spec."""
    allowed = clone(old)
    for group in ("initContainers", "containers"):
        given, kept = new.get(group) or [], allowed.get(group) or []
        if len(given) == len(kept):
            for container, original in zip(given, kept, strict=True):
                if container.get("image"):
                    original["image"] = container["image"]
    allowed["activeDeadlineSeconds"] = new.get("activeDeadlineSeconds")
    if all(toleration in (new.get("tolerations") or []) for toleration in old.get("tolerations") or []):
        allowed["tolerations"] = new.get("tolerations")
    gates = new.get("schedulingGates") or []
    if all(gate in (old.get("schedulingGates") or []) for gate in gates):
        allowed["schedulingGates"] = new.get("schedulingGates")
    if _given(allowed) != _given(new):
        yield faults.refused("spec", _IMMUTABLE)


def _given(spec: Object) -> Object:
    return {key: value for key, value in spec.items() if value is not None}
