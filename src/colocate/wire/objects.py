"""Pods and nodes in the API's JSON, as much of them as a placement depends on; the rest is passed over unread.

A list or mapping that is null counts as not there, as in Go. Nothing is worked out here.
"""

from typing import TypeAlias

import msgspec

Quantities: TypeAlias = dict[str, str | int | float]
"""Amounts as the API writes them, by resource; `model.quantity` reads them."""


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """None of these can be part of a cycle, so the collector need not look at thousands of them."""


class OwnerReference(_Object, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(_Object, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    creation_timestamp: str | None = None


class Resources(_Object, frozen=True, gc=False):
    requests: Quantities | None = None
    limits: Quantities | None = None


class Container(_Object, frozen=True, gc=False):
    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None
    """`Always` makes a sidecar of an init container."""


class PodSpec(_Object, frozen=True, gc=False):
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: Quantities | None = None
    resources: Resources | None = None
    """What the pod asks for as a whole."""
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""


class Pod(_Object, frozen=True, gc=False):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class NodeMetadata(_Object, frozen=True, gc=False):
    name: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class NodeStatus(_Object, frozen=True, gc=False):
    allocatable: Quantities | None = None
    capacity: Quantities | None = None


class Node(_Object, frozen=True, gc=False):
    metadata: NodeMetadata
    status: NodeStatus = NodeStatus()

    @property
    def name(self) -> str:
        return self.metadata.name
