"""A tenant writes what it likes into its own pods: nothing of that changes another pod, or gives its own more."""

import asyncio
from typing import Any

import msgspec
import pytest

from colocate.host.memory_group import MemoryGroup
from colocate.host.memory_limits import read_limits
from colocate.kubelet import pod_holders
from colocate.lab.api.resources import PODS
from colocate.memory.decide import Decision
from colocate.memory.forecast import Koordinator, Policy
from colocate.model.pod import Phase, Pod
from tests.memory_agent.driving import BLOCK, MIB, SETTINGS, Driven, driven
from tests.memory_agent.eating import Eater
from tests.memory_agent.lab import NAMESPACE, RESOURCE
from tests.support.waiting import until

MIRROR = "kubernetes.io/config.mirror"
FILE = "0123456789abcdef0123456789abcdef"
"""The uid that a kubelet makes for a static pod."""
COLLISION = "ColocationMemoryIdentityCollision"


async def started(node: Driven) -> None:
    await node.listed(await node.turn())


async def claim(
    node: Driven, name: str, uid: str, blocks: int, namespace: str = "default", **spec: Any
) -> None:
    """A pod that says to be the mirror of another, as anybody who may create pods can make one."""
    node.lab.create_pod(name, blocks, namespace=namespace, annotations={MIRROR: uid}, **spec)
    await until(lambda: any(pod.metadata.name == name for pod in node.cluster.pods), "the watch to know")


def run_static_pod(node: Driven, name: str, blocks: int) -> None:
    """From a file on the node: the API does not make it, nor does it know its uid."""
    main = {
        "name": "main",
        "command": ["sleep", "infinity"],
        "resources": {"limits": {RESOURCE: str(blocks)}},
    }
    body = {"metadata": {"name": name, "namespace": NAMESPACE, "uid": FILE}, "spec": {"containers": [main]}}
    node.lab.cluster.kubelet.add_pod(msgspec.convert(body, Pod))


async def until_static_pod_runs(node: Driven, name: str) -> None:
    record = node.lab.cluster.kubelet.pod(f"{NAMESPACE}/{name}")
    await until(lambda: record.status.phase == Phase.RUNNING, f"{name} to run")


def limit_in(node: Driven, decision: Decision, uid: str) -> int | None:
    (pod,) = (each for each in decision.pods if each.uid == uid)
    return pod.limits.pod if pod.limits else None


async def test_a_pod_of_another_namespace_that_annotates_a_victims_uid_does_not_change_the_victims_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        victim = await Eater(lab, "database", 3).ready()
        await node.until_known("database")
        for blocks in (1, 20):
            await claim(node, f"thief-{blocks}", victim.uid, blocks, priority=2_000_000_000)
            decision = await node.turn()
            assert lab.limit("database") == 3 * BLOCK
            assert [each.pod.key for each in decision.pods] == [f"{NAMESPACE}/database"]
            assert not decision.pods[0].pod.static
            assert decision.pods[0].pod.priority == 0
        await until(lambda: any(reason == COLLISION for reason, _ in lab.events("thief-1")), "its event")
        assert any(reason == COLLISION for reason, _ in lab.events("this-machine")), "and one of the node"
        assert not any(reason == COLLISION for reason, _ in lab.events("database"))


async def test_a_pod_starts_with_its_own_limit_while_another_claims_its_uid() -> None:
    """As the victim's next container: its pod is asked for by uid before the container exists."""
    async with driven() as node:
        lab = node.lab
        await started(node)
        uid = lab.create_pod("database", 3)
        await claim(node, "thief", uid, 20)
        await lab.until_running("database")
        await until(lambda: lab.said("database") != [], "its first words")
        assert lab.said("database") == [f"limit {3 * BLOCK}"]
        assert limit_in(node, await node.turn(), uid) == 3 * BLOCK


async def test_a_tenant_that_deletes_its_pod_and_comes_back_as_its_mirror_is_given_no_more() -> None:
    """The kubelet's records give the uid to this very name: what the pod was before is what it stays."""
    async with driven() as node:
        lab = node.lab
        await started(node)
        await node.run_pod("batch", 2)
        await node.turn()
        uid = lab.create_pod("other", 1)
        await lab.until_running("other")
        group = lab.group("batch")
        (batch,) = (each for each in (await node.turn()).pods if each.pod.name == "batch")
        # Its processes outlive their pod in the API for as long as it says that they need to end.
        record = lab.cluster.kubelet.pod(f"{NAMESPACE}/batch")
        stored = lab.cluster.registry.find(PODS, NAMESPACE, "batch")
        assert stored is not None
        lab.cluster.kubelet.records[batch.uid] = record
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record.deleting, "set", lambda: None)
            await _force_away(node, "batch")
            await claim(node, "batch", batch.uid, 20, namespace=NAMESPACE)
            decision = await node.turn()
        (again,) = (each for each in decision.pods if each.uid == batch.uid)
        assert (again.pod.static, again.limits and again.limits.pod) == (False, 2 * BLOCK)
        assert read_limits(group).memory == 2 * BLOCK
        assert uid in decision.state.holders
        record.deleting.set()


async def _force_away(node: Driven, name: str) -> None:
    from colocate.lab.api.deletion import DeleteOptions, delete

    delete(node.lab.cluster.registry, PODS, NAMESPACE, name, DeleteOptions(gracePeriodSeconds=0))
    await until(lambda: all(pod.metadata.name != name for pod in node.cluster.pods), "the watch to know")


async def test_a_static_pod_is_held_to_its_blocks_and_is_not_asked_to_go() -> None:
    async with driven() as node:
        await started(node)
        await claim(node, "agent", FILE, 3, namespace=NAMESPACE)
        run_static_pod(node, "agent", 3)
        await until_static_pod_runs(node, "agent")
        decision = await node.turn()
        (pod,) = decision.pods
        assert (pod.uid, pod.pod.key, pod.pod.static) == (FILE, f"{NAMESPACE}/agent", True)
        assert node.lab.limit("agent") == 3 * BLOCK
        assert not decision.state.pods[FILE].terminating


async def test_who_claims_a_static_pods_uid_changes_nothing_for_it() -> None:
    async with driven() as node:
        await started(node)
        await claim(node, "thief", FILE, 20)
        await claim(node, "agent", FILE, 3, namespace=NAMESPACE)
        run_static_pod(node, "agent", 3)
        await until_static_pod_runs(node, "agent")
        await claim(node, "agent", FILE, 1)
        decision = await node.turn()
        assert [(each.uid, each.pod.key) for each in decision.pods] == [(FILE, f"{NAMESPACE}/agent")]
        assert node.lab.limit("agent") == 3 * BLOCK


async def test_a_static_pods_mirror_with_a_uid_that_climbs_does_not_limit_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the checkpoint is silent, a pod is known by name alone: its mirror's word must not become a path."""
    async with driven() as node:
        lab = node.lab
        await started(node)
        await node.run_pod("database", 3)
        victim = lab.group("database")
        monkeypatch.setattr(pod_holders, "_entries", lambda *_: None)
        await claim(node, "climber", f"{victim.folder.name.removeprefix('pod')}/..", 1, namespace=NAMESPACE)
        run_static_pod(node, "climber", 1)
        record = lab.cluster.kubelet.pod(f"{NAMESPACE}/climber")
        await until(
            lambda: any(
                "PreStart" in event.message or "prestart" in event.message.lower() or "holds" in event.message
                for event in lab.cluster.kubelet.events
            ),
            "it to be refused",
        )
        assert record.status.phase == Phase.PENDING
        decision = await node.turn()
        assert all(".." not in uid for uid in decision.state.holders)
        assert decision.held == 4, "its block is not free, whosever it is"
        tier = MemoryGroup(victim.folder.parent, victim.version)
        assert read_limits(tier).memory is None
        assert lab.limit("database") == 3 * BLOCK
        await asyncio.sleep(0)


async def test_a_mirror_of_nobody_that_requests_all_memory_takes_no_block_from_anybody() -> None:
    async with driven() as node:
        await started(node)
        before = (await node.turn()).offered
        huge = [{"name": "c", "image": "x", "resources": {"requests": {"memory": "900Gi"}}}]
        await claim(node, "phantom", FILE, 0, containers=huge)
        decision = await node.turn()
        assert decision.offered == before > 0
        assert not decision.balance.debt


async def test_what_a_static_pod_without_blocks_uses_is_online_whoever_it_is() -> None:
    by_request = msgspec.structs.replace(
        SETTINGS, forecast=Koordinator(policy=Policy.REQUEST, threshold=90.0)
    )
    async with driven(by_request) as node:
        lab = node.lab
        eater = await Eater(lab, "etcd", 0).ready()
        await node.until_known("etcd")
        await eater.anon(40 * MIB)
        known = await node.turn()
        (online,) = (each for each in known.usage.online_pods if each.uid == eater.uid)
        assert online.request == 0, "the API says that it requested nothing"
        monkey = lab.cluster.registry
        assert monkey is not None
        pods = [pod for pod in node.cluster.pods if pod.metadata.name != "etcd"]
        node.cluster.__class__ = type("Blind", (node.cluster.__class__,), {"pods": pods})
        unknown = await node.turn()
        (online,) = (each for each in unknown.usage.online_pods if each.uid == eater.uid)
        assert online.request >= 40 * MIB
        assert unknown.offered <= known.offered
