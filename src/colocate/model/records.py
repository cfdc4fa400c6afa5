"""Records of which pod holds which device, other than the kubelet's checkpoint.

Values only: `devices.checkpoint.sources` collects them.
"""

from collections.abc import Mapping, Sequence

import msgspec


class ListedPod(msgspec.Struct, frozen=True):
    """A pod as podresources lists it: without its uid."""

    namespace: str
    name: str
    containers: Mapping[str, Mapping[str, frozenset[str]]]
    """The ids held, by container and resource. Init containers that have ended are not listed."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class KnownPod(msgspec.Struct, frozen=True):
    """A pod of the node as the API knows it."""

    uid: str
    """The uid that the API server assigned."""
    namespace: str
    name: str
    phase: str = ""
    requests: Mapping[str, Mapping[str, int]] = {}
    """How many of each extended resource each container requests; containers that end before the pod are left
    out."""
    mirrors: str = ""
    """The uid of the static pod that it claims to mirror. Any user can write that, so alone it proves nothing."""

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
    """What each source says; None where it did not answer."""

    listing: Sequence[ListedPod] | None = None
    """From podresources: which pod holds what."""
    healthy: Mapping[str, frozenset[str]] | None = None
    """From podresources: the healthy devices of every resource, held or not."""
    pods: Sequence[KnownPod] | None = None
    """From the API: the pods of this node."""
    node: NodeCounts | None = None
    """From the API: this node's status."""
