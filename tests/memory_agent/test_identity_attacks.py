"""A tenant writes what it likes into its own pods: nothing of that changes another pod, or gives its own more."""

import asyncio
from typing import Any

import msgspec
import pytest

from colocate.host.memory_group import MemoryGroup
from colocate.host.memory_limits import read_limits
from colocate.kubelet import holders
from colocate.lab.api.deletion import DeleteOptions, delete
from colocate.lab.api.resources import PODS
from colocate.lab.cluster import MACHINE
from colocate.memory.actions import Evict
from colocate.model.pod import Phase, Pod
from colocate.telemetry import Event
from tests.memory_agent.driving import BLOCK, MIB, SETTINGS, Driven, driven
from tests.memory_agent.eating import Eater
from tests.memory_agent.lab import NAMESPACE, RESOURCE
from tests.support.logs import logged, told
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
    """A pod that says to be the mirror of another, as any tenant who may create pods can make one."""
    made = node.lab.create_pod(name, blocks, namespace=namespace, annotations={MIRROR: uid}, **spec)
    await until(lambda: any(pod.metadata.uid == made for pod in node.cluster.pods), "the watch to know")


def run_static_pod(node: Driven, name: str, blocks: int) -> None:
    """From a file on the node: the API does not make it, nor does it know its uid."""
    main = {
        "name": "main",
        "command": ["sleep", "infinity"],
        "resources": {"limits": {RESOURCE: str(blocks)}},
    }
    body = {
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": FILE},
        "spec": {"containers": [main], "terminationGracePeriodSeconds": 1},
    }
    node.lab.cluster.kubelet.add_pod(msgspec.convert(body, Pod))


async def until_it_runs(node: Driven, name: str) -> None:
    kubelet = node.lab.cluster.kubelet
    await until(lambda: kubelet.pod(f"{NAMESPACE}/{name}").status.phase == Phase.RUNNING, f"{name} to run")


async def test_a_pod_of_another_namespace_that_annotates_a_victims_uid_does_not_change_the_victims_limit() -> (
    None
):
    async with driven() as node:
        lab = node.lab
        await started(node)
        await node.run_pod("database", 3)
        (victim,) = (await node.turn()).pods
        for blocks in (1, 20):
            await claim(node, f"thief-{blocks}", victim.uid, blocks)
            decision = await node.turn()
            assert lab.limit("database") == 3 * BLOCK
            assert [each.pod for each in decision.pods] == [victim.pod]
            assert not victim.pod.static


async def test_who_claims_to_be_another_pod_is_named_in_its_events_those_of_the_node_and_the_log() -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        await node.run_pod("database", 3)
        (victim,) = (await node.turn()).pods
        await claim(node, "thief", victim.uid, 1)
        with logged() as logs:
            await node.turns(3)
        said = f"default/thief claims to be pod {victim.uid}, which is {NAMESPACE}/database"
        event = (COLLISION, f"Ignored: {said}.")
        await until(lambda: event in lab.events("thief") and event in lab.events(MACHINE), "the events")
        assert not any(reason == COLLISION for reason, _ in lab.events("database"))
        lines = told(logs, Event.MEMORY_IDENTITY_COLLISION)
        assert [line["reason"] for line in lines] == [said], "once while it lasts"


async def test_a_pod_starts_with_its_own_limit_while_another_claims_its_uid() -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        uid = lab.create_pod("database", 3)
        await claim(node, "thief", uid, 20)
        await lab.until_running("database")
        await until(lambda: lab.said("database") != [], "its first words")
        assert lab.said("database") == [f"limit {3 * BLOCK}"]
        await node.turn()
        assert lab.limit("database") == 3 * BLOCK


async def test_a_tenant_that_deletes_its_pod_and_comes_back_as_its_mirror_is_given_no_more() -> None:
    """The processes outlive their pod in the API, and the kubelet's records give the uid to this very name."""
    async with driven() as node:
        lab = node.lab
        await started(node)
        await node.run_pod("batch", 2)
        (before,) = (await node.turn()).pods
        # Its processes take all the time to end that their pod allows.
        lab.cluster.kubelet.pod(before.pod.key).deleting = asyncio.Event()
        delete(lab.cluster.registry, PODS, NAMESPACE, "batch", DeleteOptions(gracePeriodSeconds=0))
        await until(lambda: not node.cluster.pods, "the watch to know")
        await claim(node, "batch", before.uid, 20, namespace=NAMESPACE)
        (batch,) = (await node.turn()).pods
        assert batch.pod == before.pod
        assert lab.limit("batch") == 2 * BLOCK


async def test_a_static_pod_is_held_to_its_blocks_and_is_not_asked_to_go() -> None:
    async with driven() as node:
        await started(node)
        await claim(node, "agent", FILE, 3, namespace=NAMESPACE)
        run_static_pod(node, "agent", 3)
        await until_it_runs(node, "agent")
        (pod,) = (await node.turn()).pods
        assert (pod.uid, pod.pod.key, pod.pod.static) == (FILE, f"{NAMESPACE}/agent", True)
        assert node.lab.limit("agent") == 3 * BLOCK
        node.small.system += 300 * MIB
        assert not any(isinstance(action, Evict) for action in await node.turns(6))


async def test_who_claims_a_static_pods_uid_changes_nothing_for_it() -> None:
    async with driven() as node:
        await started(node)
        await claim(node, "thief", FILE, 20)
        await claim(node, "agent", FILE, 3, namespace=NAMESPACE)
        run_static_pod(node, "agent", 3)
        await until_it_runs(node, "agent")
        await claim(node, "agent", FILE, 1)
        decision = await node.turn()
        assert [(each.uid, each.pod.key) for each in decision.pods] == [(FILE, f"{NAMESPACE}/agent")]
        assert node.lab.limit("agent") == 3 * BLOCK


async def test_a_mirrors_uid_that_climbs_out_of_a_pods_group_limits_no_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the checkpoint is silent, a pod is known by its name alone: a mirror's word must not become a path."""
    async with driven() as node:
        lab = node.lab
        await started(node)
        await node.run_pod("database", 3)
        decision = await node.turn()
        victim = lab.group("database")
        monkeypatch.setattr(holders, "_entries", lambda *_: None)
        await claim(node, "climber", f"{decision.pods[0].uid}/..", 1, namespace=NAMESPACE)
        run_static_pod(node, "climber", 1)
        record = lab.cluster.kubelet.pod(f"{NAMESPACE}/climber")
        async with asyncio.timeout(60):
            while record.status.phase != Phase.RUNNING and not any(
                "static pod that" in event.message for event in lab.cluster.kubelet.events
            ):
                await node.clock.advance(1.0)
                await asyncio.sleep(0.002)
        assert read_limits(MemoryGroup(victim.folder.parent, victim.version)).memory is None
        assert record.status.phase == Phase.PENDING
        again = await node.turn()
        assert [each.uid for each in again.pods] == [decision.pods[0].uid]
        assert again.held == 4, "its block is not free, whosever it is"
        assert lab.limit("database") == 3 * BLOCK


async def test_a_mirror_of_no_pod_that_requests_all_memory_takes_no_block_from_others() -> None:
    async with driven() as node:
        await started(node)
        await node.run_pod("batch", 2)
        before = (await node.turn()).offered
        huge = [{"name": "c", "image": "x", "resources": {"requests": {"memory": "900Gi"}}}]
        await claim(node, "phantom", FILE, 0, containers=huge)
        decision = await node.turn()
        assert decision.offered == before > 0
        assert not decision.balance.debt


async def test_a_namespace_that_is_sold_to_no_more_has_no_limit_raised_and_gives_first() -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        lab.create_pod("guest", 2, namespace="default")
        await lab.until_running("guest", "default")
        await node.run_pod("batch", 2)
        await node.turn()
        node.part.settings = msgspec.structs.replace(SETTINGS, namespaces=(NAMESPACE,))
        decision = await node.turn()
        assert [(each.pod.name, each.entitled) for each in decision.pods] == [
            ("guest", False),
            ("batch", True),
        ]
        assert lab.limit("guest", "default") == 2 * BLOCK
        assert any("default/guest holds blocks" in sentence for sentence in node.part.report.sentences)


async def test_what_a_pod_of_an_unknown_name_uses_is_counted_as_online(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a static pod without blocks, whose mirror proves nothing."""
    async with driven() as node:
        etcd = await Eater(node.lab, "etcd", 0).ready()
        await node.until_known("etcd")
        before = await node.turn()
        await etcd.anon(40 * MIB)
        monkeypatch.setattr(type(node.cluster), "pods", property(lambda _: []))
        decision = await node.turn()
        assert decision.usage.online >= before.usage.online + 36 * MIB, (
            "less what else it has let go meanwhile"
        )
        (online,) = (each for each in decision.usage.online_pods if each.uid == etcd.uid)
        assert online.request == online.used, "so it counts by what it uses wherever others count by request"
