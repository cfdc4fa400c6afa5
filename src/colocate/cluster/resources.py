"""The kinds of objects: their paths, and the shape in which each is read. Pure."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import msgspec

T = TypeVar("T", covariant=True)
S = TypeVar("S")

Object = dict[str, object]
"""A whole object, for callers without a shape of their own."""


class Resource(msgspec.Struct, Generic[T], frozen=True):
    """A kind of object as the API names it, and the type in which this caller reads it."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    shape: type[T] = cast(type[T], dict[str, Any])
    """The type into which msgspec decodes each object. Declare only the fields that are used: the others cost
    nothing."""

    def read_as(self, shape: type[S]) -> "Resource[S]":
        """This kind of object, read in another shape."""
        return Resource(self.plural, self.kind, self.group, self.version, self.namespaced, shape)

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of the objects, of one object, or of its subresource. Every step is escaped."""
        steps = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.namespaced:
            steps += ["namespaces", namespace]
        steps.append(self.plural)
        if name:
            steps.append(name)
            if subresource:
                steps.append(subresource)
        return "/" + "/".join(_step(step) for step in steps)


def _step(text: str) -> str:
    if text in (".", ".."):
        # quote() does not escape these, and HTTP clients remove them from paths.
        raise ValueError(f"{text!r} is not a name of an object")
    return quote(text, safe="")


class Selection(msgspec.Struct, frozen=True):
    """Selects objects of a kind: of one namespace or all, by label and field selectors of the API."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def parameters(self) -> Mapping[str, str]:
        given = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: text for name, text in given.items() if text}


def on_node(node: str) -> Selection:
    """All pods of one node, including those that have ended."""
    return Selection(fields=f"spec.nodeName={node}")


UNFINISHED = Selection(fields="status.phase!=Succeeded,status.phase!=Failed")
"""Pods that have not ended. A watch reports a pod that ends as deleted, with its last state before that. Ended pods
stay in the API by the thousand, with all of their annotations."""


def unfinished_on(node: str) -> Selection:
    """The pods of one node that have not ended."""
    return Selection(fields=f"spec.nodeName={node},{UNFINISHED.fields}")


NODES: Resource[Object] = Resource("nodes", "Node", namespaced=False)
PODS: Resource[Object] = Resource("pods", "Pod")
NAMESPACES: Resource[Object] = Resource("namespaces", "Namespace", namespaced=False)
EVENTS: Resource[Object] = Resource("events", "Event")
CONFIG_MAPS: Resource[Object] = Resource("configmaps", "ConfigMap")
SECRETS: Resource[Object] = Resource("secrets", "Secret")
LEASES: Resource[Object] = Resource("leases", "Lease", "coordination.k8s.io")
DEPLOYMENTS: Resource[Object] = Resource("deployments", "Deployment", "apps")
DISRUPTION_BUDGETS: Resource[Object] = Resource("poddisruptionbudgets", "PodDisruptionBudget", "policy")
