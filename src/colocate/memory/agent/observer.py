"""Asks every source about the node once, and joins the answers into the facts of a turn. Decides nothing.

A source that does not answer is named; the facts then come from the others.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from colocate.clock import Clock
from colocate.host.identity import this_machine
from colocate.kubelet.holders import pods_holding
from colocate.kubelet.paths import KubeletPaths
from colocate.memory import ActionOutcome, MemoryFacts
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.machine import Machine
from colocate.memory.agent.objects import reserves
from colocate.memory.agent.roster import IdentityCollision, Roster, held_by_unknown, roster, who_holds
from colocate.model.holdings import Holdings
from colocate.model.memory import NodeWord, PodUid

Promised = Callable[[Iterable[str]], tuple[str, ...]]


class NodeLook(msgspec.Struct, frozen=True):
    """The facts, and what the agent reports about them."""

    facts: MemoryFacts
    silent: tuple[str, ...] = ()
    """A sentence for every source that did not answer, or not completely."""
    collisions: tuple[IdentityCollision, ...] = ()


class MemoryObserver:
    """Observes one node."""

    def __init__(
        self, machine: Machine, paths: KubeletPaths, cluster: ClusterView, clock: Clock, resource: str
    ) -> None:
        self._machine = machine
        self._paths = paths
        self._cluster = cluster
        self._clock = clock
        self._resource = resource
        self._boot = this_machine().boot_id

    async def holders_of(self, resource: str) -> Mapping[PodUid, tuple[str, ...]] | None:
        """Which pods hold blocks of a resource of an earlier configuration; None where that is unknown."""
        holdings = await pods_holding(self._paths, self._clock, resource)
        if holdings is None:
            return None
        running = {reading.uid for reading in (await self._machine.read()).pods.pods}
        pods = self._roster(holdings, running)
        return who_holds(holdings, pods, resource, api_knows=self._cluster.is_synced, running=running)

    def _roster(self, holdings: Holdings, running: set[PodUid]) -> Roster:
        uids = {each.uid for each in holdings.pods if each.uid}
        return roster(self._cluster.pods, holdings.proven, running | uids)

    async def look(
        self, *, off: bool, outcomes: tuple[ActionOutcome, ...], promised: Promised, unstored: str = ""
    ) -> NodeLook:
        """The facts now; Unavailable where not even the machine's own memory can be read."""
        # Read holders before memory: a pod that starts in between then counts as online, which is safe.
        holdings = await pods_holding(self._paths, self._clock, self._resource)
        machine = await self._machine.read()
        running = {reading.uid for reading in machine.pods.pods}
        silent = [f"pod {each.uid} cannot be read: {each.reason}" for each in machine.pods.unread]
        pods = self._roster(holdings or Holdings(), running)
        holders = None
        unknown: tuple[str, ...] = ()
        if holdings is None:
            silent.append(
                "the agent does not know which pods hold blocks: neither podresources nor the checkpoint answers"
            )
        else:
            silent += [
                f"the agent knows only in part which pods hold blocks: {why}" for why in holdings.silent
            ]
            holders = who_holds(
                holdings, pods, self._resource, api_knows=self._cluster.is_synced, running=running
            )
            unknown = held_by_unknown(holdings, holders)
        if not self._cluster.answers:
            silent.append(f"the API server does not answer: {self._cluster.trouble}")
        word = self._word()
        if word is not None and word.absent:
            silent.append(
                f"the API server has no node named {self._cluster.node_name}; set memory.node to this node's name"
            )
        facts = MemoryFacts(
            node_name=self._cluster.node_name,
            boot=self._boot,
            node=machine.node,
            word=word,
            controls=machine.controls,
            readings=machine.pods.pods,
            pods=tuple(
                pod
                for pod in pods.identities(self._resource)
                # A pod that the kubelet may still reject does not count: any tenant can bind one.
                if pods.pods[pod.uid].is_admitted or pod.uid in running or pod.uid in (holders or {})
            ),
            holders=holders,
            promised=(*promised(id for ids in (holders or {}).values() for id in ids), *unknown),
            api=self._cluster.answers,
            without_eviction=self._cluster.rights.without_eviction,
            without_creation=self._cluster.rights.without_creation,
            off=off,
            unstored=unstored,
            outcomes=outcomes,
        )
        return NodeLook(facts, tuple(silent), pods.collisions)

    def _word(self) -> NodeWord | None:
        if not self._cluster.is_synced:
            return None
        node = self._cluster.node
        if node is None:
            return NodeWord(absent=True)
        return NodeWord(
            cordoned=node.spec.unschedulable,
            draining=node.is_draining,
            memory_pressure=node.has_memory_pressure,
            reserves=reserves(node, self._cluster.kubelet),
        )
