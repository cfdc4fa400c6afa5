"""One look at the node: every source asked once, joined into the facts of a turn. Nothing is decided here.

A source that does not answer is named, and the facts are as good as the others make them.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from colocate.apps.memory.cluster_view import ClusterView
from colocate.apps.memory.holders import who_holds
from colocate.apps.memory.machine import Machine
from colocate.apps.memory.objects import identity, reserves
from colocate.clock import Clock
from colocate.host.identity import this_machine
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.pod_holders import pods_holding
from colocate.memory.facts import Facts, Outcome
from colocate.model.memory import NodeWord, PodUid

Promised = Callable[[Iterable[str]], tuple[str, ...]]


class Look(msgspec.Struct, frozen=True):
    """The facts, and a sentence for every source that said less than it should."""

    facts: Facts
    silent: tuple[str, ...] = ()


class Observer:
    """Looks at one node."""

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
        """Who holds blocks of a resource that an earlier configuration named; None where nobody can say."""
        holdings = await pods_holding(self._paths, self._clock, resource)
        if holdings is None:
            return None
        running = {reading.uid for reading in (await self._machine.read()).pods.pods}
        return who_holds(
            holdings, self._cluster.pods, resource, api_knows=self._cluster.is_synced, running=running
        )

    async def look(self, *, off: bool, outcomes: tuple[Outcome, ...], promised: Promised) -> Look:
        """Everything, now; Unavailable where not even the machine's own memory can be read."""
        # Holders before readings: a pod that starts in between is then counted as online, which is the safe side.
        holdings = await pods_holding(self._paths, self._clock, self._resource)
        machine = await self._machine.read()
        pods = self._cluster.pods
        running = {reading.uid for reading in machine.pods.pods}
        silent = [f"pod {each.uid} cannot be read: {each.reason}" for each in machine.pods.unread]
        holders = None
        if holdings is None:
            silent.append(
                "who holds which block is not known: neither podresources nor the checkpoint answers"
            )
        else:
            silent += [f"who holds which block is known in part: {why}" for why in holdings.silent]
            holders = who_holds(
                holdings, pods, self._resource, api_knows=self._cluster.is_synced, running=running
            )
        if not self._cluster.answers:
            silent.append(f"the API server does not answer: {self._cluster.trouble}")
        word = self._word()
        if word is not None and word.absent:
            silent.append(
                f"the API server has no node named {self._cluster.node_name}; set memory.node to this node's name"
            )
        facts = Facts(
            node_name=self._cluster.node_name,
            boot=self._boot,
            node=machine.node,
            word=word,
            controls=machine.controls,
            readings=machine.pods.pods,
            pods=tuple(identity(pod, self._resource) for pod in pods if not pod.is_finished),
            holders=holders,
            promised=promised(id for ids in (holders or {}).values() for id in ids),
            api=self._cluster.answers,
            without_eviction=self._cluster.rights.without_eviction,
            without_creation=self._cluster.rights.without_creation,
            off=off,
            outcomes=outcomes,
        )
        return Look(facts, tuple(silent))

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
