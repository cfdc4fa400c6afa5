"""Label and field selectors of lists and watches. Pure.

A selector that cannot be parsed raises ValueError; the server answers 400.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from colocate.lab.api.objects import Object, at, labels_of

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_COMPARISON = re.compile(rf"({_KEY})\s*(>|<)\s*(-?\d+)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")
_BARE_VALUE = re.compile(_VALUE)


class SelectorRequirement(msgspec.Struct, frozen=True):
    """One condition on one label."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
        if value is None or not re.fullmatch(r"-?\d+", value):
            return False
        bound = int(next(iter(self.values)))
        return int(value) > bound if self.operator == "gt" else int(value) < bound


class LabelSelector(msgspec.Struct, frozen=True):
    """Conditions on labels that must all hold; an empty selector matches everything."""

    requirements: tuple[SelectorRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.holds(labels) for requirement in self.requirements)


class FieldSelector(msgspec.Struct, frozen=True):
    """Conditions on fields: equal or not equal to a value."""

    terms: tuple[tuple[str, bool, str], ...] = ()
    """Field, whether it must be equal, and the value."""

    def matches(self, obj: Object) -> bool:
        return all((field_value(obj, field) == value) is equal for field, equal, value in self.terms)

    def required(self, field: str) -> str | None:
        """The value that a field must have; None where any is allowed."""
        return next((value for name, equal, value in self.terms if equal and name == field), None)


class ObjectSelection(msgspec.Struct, frozen=True):
    """Selects objects of a resource."""

    labels: LabelSelector = LabelSelector()
    fields: FieldSelector = FieldSelector()

    @property
    def is_everything(self) -> bool:
        return not self.labels.requirements and not self.fields.terms

    def matches(self, obj: Object) -> bool:
        return self.labels.matches(labels_of(obj)) and self.fields.matches(obj)


def parse_labels(text: str) -> LabelSelector:
    """Read `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>5`."""
    found: list[SelectorRequirement] = []
    rest = text.strip()
    while rest:
        requirement, rest = _next_requirement(rest, text)
        found.append(requirement)
        rest = rest.lstrip()
        if rest:
            if not rest.startswith(",") or not rest[1:].strip():
                raise ValueError(f"unable to parse requirement: found {rest!r} in {text!r}")
            rest = rest[1:].lstrip()
    return LabelSelector(tuple(found))


def _next_requirement(rest: str, text: str) -> tuple[SelectorRequirement, str]:
    if match := _SET.match(rest):
        key, operator, listed = match.groups()
        values = [value.strip() for value in listed.split(",")]
        if not all(_BARE_VALUE.fullmatch(value) for value in values):
            raise ValueError(f"unable to parse requirement: a value in {match.group()!r} is no label value")
        requirement = SelectorRequirement(key, operator, frozenset(values))
    elif match := _EQUALITY.match(rest):
        key, operator, value = match.groups()
        requirement = SelectorRequirement(key, "notin" if operator == "!=" else "in", frozenset([value]))
    elif match := _COMPARISON.match(rest):
        key, operator, value = match.groups()
        requirement = SelectorRequirement(key, "gt" if operator == ">" else "lt", frozenset([value]))
    elif match := _EXISTS.match(rest):
        requirement = SelectorRequirement(match.group(2), "!" if match.group(1) else "exists")
    else:
        raise ValueError(f"unable to parse requirement: found {rest!r} in {text!r}")
    return requirement, rest[match.end() :]


def from_object(selector: Object | None) -> LabelSelector:
    """The selector of a Deployment or a disruption budget: matchLabels and matchExpressions."""
    selector = selector or {}
    found = [
        SelectorRequirement(key, "in", frozenset([value]))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}
    for expression in selector.get("matchExpressions") or []:
        operator = operators.get(str(expression.get("operator")))
        if operator is None:
            raise ValueError(f"{expression.get('operator')!r} is not a valid label selector operator")
        found.append(
            SelectorRequirement(
                str(expression.get("key")), operator, frozenset(expression.get("values") or [])
            )
        )
    return LabelSelector(tuple(found))


def to_text(selector: Object | None) -> str:
    """A selector object as text, in the form of `kubectl -l`."""
    selector = selector or {}
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for expression in selector.get("matchExpressions") or []:
        key, listed = expression.get("key"), ",".join(sorted(expression.get("values") or []))
        forms = {"In": f"{key} in ({listed})", "NotIn": f"{key} notin ({listed})", "DoesNotExist": f"!{key}"}
        parts.append(forms.get(str(expression.get("operator")), str(key)))
    return ",".join(parts)


_COMMON_FIELDS = ("metadata.name", "metadata.namespace")
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "replicasets.apps": ("status.replicas",),
    "events": (
        *(f"involvedObject.{field}" for field in _INVOLVED),
        *(f"regarding.{field}" for field in _INVOLVED),
        "reason",
        "reportingComponent",
        "reportingController",
        "source",
        "type",
    ),
}


def parse_fields(text: str, storage: str) -> FieldSelector:
    """Read `a.b=c,d!=e`; only the fields that a real server indexes for the resource are allowed."""
    allowed = _COMMON_FIELDS + _FIELDS.get(storage, ())
    terms: list[tuple[str, bool, str]] = []
    for part in filter(None, _split(text)):
        match = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", part)
        if match is None:
            raise ValueError(f"invalid selector: {text!r}; can't understand {part!r}")
        field, operator, value = match.groups()
        if field not in allowed:
            raise ValueError(f'field label not supported: "{field}"')
        terms.append((field, operator != "!=", re.sub(r"\\(.)", r"\1", value)))
    return FieldSelector(tuple(terms))


def _split(text: str) -> list[str]:
    """Split at commas, except after a backslash."""
    return re.findall(r"(?:[^,\\]|\\.)+", text)


def field_value(obj: Object, field: str) -> str:
    """A field as text, as selectors compare it; a missing field is its zero value."""
    special = _SPECIAL.get(field)
    value = special(obj) if special else at(obj, *field.split("."))
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _involved(name: str) -> Callable[[Object], object]:
    return lambda event: at(event, "involvedObject", name)


_SPECIAL: Mapping[str, Callable[[Object], object]] = {
    "spec.unschedulable": lambda node: bool(at(node, "spec", "unschedulable")),
    "spec.hostNetwork": lambda pod: bool(at(pod, "spec", "hostNetwork")),
    "status.replicas": lambda owner: at(owner, "status", "replicas") or 0,
    "source": lambda event: at(event, "source", "component") or event.get("reportingComponent"),
    "reportingController": lambda event: event.get("reportingComponent"),
    **{f"regarding.{name}": _involved(name) for name in _INVOLVED},
}
