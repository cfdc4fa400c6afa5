"""The facts that a decision is made from, as the agent collects them."""

from collections.abc import Mapping

import msgspec

from colocate.memory.actions import ActionOutcome
from colocate.model.memory import MemoryControls, NodeMemory, NodeWord, PodIdentity, PodMemory, PodUid


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment."""

    node_name: str
    boot: str = ""
    """Identifies this boot of the machine; its monotonic time starts at 0 with each."""
    node: NodeMemory
    word: NodeWord | None = NodeWord()
    """What the API says of the node; None where it has not answered since the agent started."""
    controls: MemoryControls
    readings: tuple[PodMemory, ...] = ()
    """The memory of all pods that have a control group."""
    pods: tuple[PodIdentity, ...] = ()
    """All pods that are known to run here, or to be about to."""
    holders: Mapping[PodUid, tuple[str, ...]] | None = {}
    """Which pod holds which blocks; None where that is unknown, and the last known holders count."""
    promised: tuple[str, ...] = ()
    """Blocks that the kubelet has got for a container, and that no pod is known to hold yet."""
    api: bool = True
    """Whether the API server answers."""
    without_eviction: frozenset[str] = frozenset()
    """Namespaces in which this agent may not evict pods, according to the API server."""
    without_creation: frozenset[str] = frozenset()
    """Namespaces in which this agent may not create pods again, according to the API server."""
    off: bool = False
    """Whether memory colocation is switched off on this node."""
    unstored: str = ""
    """Why the state cannot be stored; empty where it can."""
    outcomes: tuple[ActionOutcome, ...] = ()
