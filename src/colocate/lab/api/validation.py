"""The rules of every kind: names, labels, required and immutable fields."""

import base64
from collections.abc import Callable, Iterator, Mapping

from colocate.lab.api import faults, pod_validation, selectors
from colocate.lab.api.objects import Object, labels_of, name_of
from colocate.lab.api.resources import ServedResource
from colocate.lab.api.status import StatusCause, invalid

Faults = Iterator[StatusCause]
_MAX_ANNOTATIONS = 256 * 1024
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def check_new(resource: ServedResource, body: Object) -> None:
    """Raise the Status of a new object that breaks a rule."""
    _refuse(resource, body, [*_metadata_faults(resource, body), *_kind_faults(resource, body)])


def check_change(resource: ServedResource, body: Object, old: Object) -> None:
    """Raise the Status of a change that breaks a rule."""
    changed = _CHANGE.get(resource.storage)
    found = list(_metadata_faults(resource, body))
    # An unchanged spec is not checked again: most writes change only the status.
    if "spec" not in body or body["spec"] != old.get("spec") or resource.storage == "nodes":
        found += [*_kind_faults(resource, body), *(changed(body, old) if changed else ())]
    _refuse(resource, body, found)


def _refuse(resource: ServedResource, body: Object, found: list[StatusCause]) -> None:
    if found:
        raise invalid(resource.kind, resource.group, name_of(body), found)


def _kind_faults(resource: ServedResource, body: Object) -> Faults:
    rules = _RULES.get(resource.storage)
    return rules(body) if rules else iter(())


def _metadata_faults(resource: ServedResource, body: Object) -> Faults:
    metadata = body["metadata"]
    name = name_of(body)
    if not name:
        yield faults.required("metadata.name", "name or generateName is required")
    elif why := _name_fault(resource)(name):
        yield faults.invalid("metadata.name", name, why)
    for key, value in labels_of(body).items():
        if why := faults.qualified_name_fault(key):
            yield faults.invalid("metadata.labels", key, why)
        if why := faults.label_value_fault(value):
            yield faults.invalid("metadata.labels", value, why)
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        if why := faults.qualified_name_fault(key.lower()):
            yield faults.invalid("metadata.annotations", key, why)
    if sum(len(key) + len(value) for key, value in annotations.items()) > _MAX_ANNOTATIONS:
        yield StatusCause(
            "FieldValueTooLong",
            f"Too long: may not be more than {_MAX_ANNOTATIONS} bytes",
            "metadata.annotations",
        )


def _name_fault(resource: ServedResource) -> Callable[[str], str]:
    if resource.group == "rbac.authorization.k8s.io":
        return faults.path_segment_fault
    return faults.label_fault if resource.kind == "Namespace" else faults.subdomain_fault


def _pod(body: Object) -> Faults:
    return pod_validation.spec_faults(body.get("spec") or {})


def _node(body: Object) -> Faults:
    seen: set[tuple[str, str]] = set()
    for number, taint in enumerate((body.get("spec") or {}).get("taints") or []):
        path = f"spec.taints[{number}]"
        if why := faults.qualified_name_fault(taint["key"]):
            yield faults.invalid(f"{path}.key", taint["key"], why)
        if taint["effect"] not in _EFFECTS:
            yield faults.unsupported(f"{path}.effect", taint["effect"], _EFFECTS)
        if (taint["key"], taint["effect"]) in seen:
            yield faults.duplicate(path, taint)
        seen.add((taint["key"], taint["effect"]))
    status = body.get("status") or {}
    for part in ("capacity", "allocatable"):
        for name, value in (status.get(part) or {}).items():
            yield from pod_validation.amount_faults(name, value, f"status.{part}")


def _workload(body: Object) -> Faults:
    yield from _template_faults(body["spec"], ("Always",))


def _job(body: Object) -> Faults:
    yield from _template_faults(body["spec"], ("OnFailure", "Never"))


def _template_faults(spec: Object, policies: tuple[str, ...]) -> Faults:
    for count in ("replicas", "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"):
        if (spec.get(count) or 0) < 0:
            yield faults.invalid(f"spec.{count}", spec[count], "must be greater than or equal to 0")
    selector = spec.get("selector")
    if not selector:
        yield faults.required("spec.selector")
    template = spec.get("template") or {}
    yield from _selector_faults(selector, "spec.selector")
    yield from pod_validation.spec_faults(template.get("spec") or {}, "spec.template.spec")
    if selector and not any(_selector_faults(selector, "")):
        labels = labels_of(template)
        if not selectors.from_object(selector).matches(labels):
            why = "`selector` does not match template `labels`"
            yield faults.invalid("spec.template.metadata.labels", labels, why)
    policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    if policy not in policies:
        yield faults.unsupported("spec.template.spec.restartPolicy", policy, list(policies))


def _secret(body: Object) -> Faults:
    for key, value in (body.get("data") or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except ValueError:
            # The value may be the secret itself, so only its name is shown.
            yield faults.refused(f"data[{key}]", "must be base64 encoded")


def _selector_faults(selector: Object | None, path: str) -> Faults:
    try:
        selectors.from_object(selector)
    except ValueError as error:
        yield faults.invalid(f"{path}.matchExpressions", selector, str(error))


def _budget(body: Object) -> Faults:
    spec = body["spec"]
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield faults.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field)
        if isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
            why = "a valid percent string must be a numeric string followed by an ending '%'"
            yield faults.invalid(f"spec.{field}", value, why)
        elif isinstance(value, int) and value < 0:
            yield faults.invalid(f"spec.{field}", value, "must be greater than or equal to 0")
    yield from _selector_faults(spec.get("selector"), "spec.selector")


def _binding(body: Object) -> Faults:
    reference = body.get("roleRef") or {}
    if not reference.get("name"):
        yield faults.required("roleRef.name")
    elif reference["kind"] not in ("Role", "ClusterRole"):
        yield faults.unsupported("roleRef.kind", reference["kind"], ["Role", "ClusterRole"])
    for number, subject in enumerate(body.get("subjects") or []):
        path = f"subjects[{number}]"
        if subject["kind"] not in ("ServiceAccount", "User", "Group"):
            yield faults.unsupported(f"{path}.kind", subject["kind"], ["ServiceAccount", "User", "Group"])
        elif subject["kind"] == "ServiceAccount" and not subject.get("namespace"):
            yield faults.required(f"{path}.namespace")


def _role(body: Object) -> Faults:
    for number, rule in enumerate(body.get("rules") or []):
        path = f"rules[{number}]"
        if not rule.get("verbs"):
            yield faults.required(f"{path}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            continue
        if rule.get("apiGroups") is None:
            yield faults.required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            yield faults.required(f"{path}.resources", "resource rules must supply at least one resource")


def _event(body: Object) -> Faults:
    involved = (body.get("involvedObject") or {}).get("namespace") or ""
    namespace = body["metadata"].get("namespace")
    if involved != namespace and (involved or namespace != "default"):
        yield faults.invalid("involvedObject.namespace", involved, "does not match event.namespace")


def _priority_class(body: Object) -> Faults:
    highest = 1_000_000_000
    if int(body.get("value") or 0) > highest and not name_of(body).startswith("system-"):
        why = f"maximum allowed value of a user defined priority is {highest}"
        yield faults.refused("value", why)


def _selector_change(body: Object, old: Object) -> Faults:
    if body["spec"].get("selector") != old["spec"].get("selector"):
        yield faults.invalid("spec.selector", body["spec"].get("selector"), "field is immutable")


def _role_ref_change(body: Object, old: Object) -> Faults:
    if body.get("roleRef") != old.get("roleRef"):
        yield faults.invalid("roleRef", body.get("roleRef"), "cannot change roleRef")


def _config_map_change(body: Object, old: Object) -> Faults:
    if not old.get("immutable"):
        return
    for field in ("data", "binaryData", "immutable"):
        if body.get(field) != old.get(field):
            why = (
                "field is immutable when `immutable` is set"
                if field != "immutable"
                else "may not unset or set to false"
            )
            yield faults.refused(field, why)


def _priority_class_change(body: Object, old: Object) -> Faults:
    if body.get("value") != old.get("value"):
        yield faults.refused("value", "may not be changed in an update.")


def _pod_change(body: Object, old: Object) -> Faults:
    return pod_validation.update_faults(body["spec"], old["spec"])


_RULES: Mapping[str, Callable[[Object], Faults]] = {
    "pods": _pod,
    "nodes": _node,
    "events": _event,
    "secrets": _secret,
    "daemonsets.apps": _workload,
    "deployments.apps": _workload,
    "jobs.batch": _job,
    "replicasets.apps": _workload,
    "poddisruptionbudgets.policy": _budget,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "roles.rbac.authorization.k8s.io": _role,
    "clusterroles.rbac.authorization.k8s.io": _role,
    "rolebindings.rbac.authorization.k8s.io": _binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _binding,
}

_CHANGE: Mapping[str, Callable[[Object, Object], Faults]] = {
    "pods": _pod_change,
    "configmaps": _config_map_change,
    "secrets": _config_map_change,
    "daemonsets.apps": _selector_change,
    "jobs.batch": _selector_change,
    "deployments.apps": _selector_change,
    "replicasets.apps": _selector_change,
    "priorityclasses.scheduling.k8s.io": _priority_class_change,
    "rolebindings.rbac.authorization.k8s.io": _role_ref_change,
    "clusterrolebindings.rbac.authorization.k8s.io": _role_ref_change,
}
