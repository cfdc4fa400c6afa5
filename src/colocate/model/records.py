"""Other records of who holds which device, beside the kubelet's checkpoint: what each of them says.

Values alone: `devices.checkpoint.sources` asks for them.
"""

from collections.abc import Mapping, Sequence

import msgspec


class ListedPod(msgspec.Struct, frozen=True):
    """A pod as podresources lists it: without its uid."""

    namespace: str
    name: str
    containers: Mapping[str, Mapping[str, frozenset[str]]]
    """By container, by resource: the ids that it holds. Init containers that have ended are not listed."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class KnownPod(msgspec.Struct, frozen=True):
    """A pod of the node as the API knows it."""

    uid: str
    """As the API server gave it."""
    namespace: str
    name: str
    phase: str = ""
    requests: Mapping[str, Mapping[str, int]] = {}
    """By container that runs as long as the pod does, by extended resource: how many it asks for."""
    mirrors: str = ""
    """The uid of the static pod that it says to mirror. Anybody can write that: alone it proves nothing."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


class NodeCounts(msgspec.Struct, frozen=True):
    """The extended resources in a node's status."""

    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]


class Records(msgspec.Struct, frozen=True):
    """What every source says; None where it did not answer."""

    listing: Sequence[ListedPod] | None = None
    """podresources: who holds what."""
    healthy: Mapping[str, frozenset[str]] | None = None
    """podresources: the healthy devices of every resource, held or not."""
    pods: Sequence[KnownPod] | None = None
    """The API: the pods of this node."""
    node: NodeCounts | None = None
    """The API: this node's status."""
