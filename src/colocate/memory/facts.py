"""All that a decision is made from, as the process that joins the edges puts it together."""

from collections.abc import Mapping

import msgspec

from colocate.memory.actions import ActionOutcome
from colocate.model.memory import MemoryControls, NodeMemory, NodeWord, PodIdentity, PodMemory, PodUid


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a node."""

    node_name: str
    boot: str = ""
    """Changes when the machine starts: its time begins anew then."""
    node: NodeMemory
    word: NodeWord | None = NodeWord()
    """What the API says of the node; None where it has not answered since the agent started: then as last known."""
    controls: MemoryControls
    readings: tuple[PodMemory, ...] = ()
    """Of all pods that have a control group."""
    pods: tuple[PodIdentity, ...] = ()
    """All that run here or are about to, as far as is known."""
    holders: Mapping[PodUid, tuple[str, ...]] | None = {}
    """Which pod holds which blocks; None where nobody can say, and then as last known."""
    promised: tuple[str, ...] = ()
    """Blocks that the kubelet was given for a container and that no pod is seen to hold yet."""
    api: bool = True
    """Whether the API server answers."""
    without_eviction: frozenset[str] = frozenset()
    """Namespaces of which it says that no pod may be evicted there by this agent."""
    without_creation: frozenset[str] = frozenset()
    """Namespaces of which it says that no pod may be created anew there by this agent."""
    off: bool = False
    """Whether memory colocation is switched off on this node."""
    unstored: str = ""
    """Why the state cannot be stored; empty where it can."""
    outcomes: tuple[ActionOutcome, ...] = ()
