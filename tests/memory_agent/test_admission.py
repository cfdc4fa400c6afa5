"""Who gets blocks, and how pods are held: namespaces, sidecars, several containers, resets, the switch, moving."""

import asyncio

import msgspec
import pytest

from colocate.errors import UserError
from colocate.host.memory_group import MemoryGroup
from colocate.host.memory_limits import GroupLimits, read_limits, set_limits
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import DISRUPTION_BUDGETS, NODES
from colocate.lab.cluster import MACHINE
from colocate.memory.actions import Action, Evict, Recreate
from colocate.memory.agent.objects import MAY_MOVE
from colocate.model.device import Device, Health
from colocate.model.pod import Phase
from tests.memory_agent.driving import BLOCK, MIB, SETTINGS, Driven, driven
from tests.memory_agent.eating import Eater
from tests.memory_agent.lab import NAMESPACE, RESOURCE, SAY_LIMIT, memory_lab
from tests.support.waiting import until

SOLD_TO_ONE = msgspec.structs.replace(SETTINGS, namespaces=(NAMESPACE,))


def container(name: str, **limits: str) -> Object:
    command = ["/bin/sh", "-c", f"{SAY_LIMIT} exec sleep infinity"]
    return {
        "name": name,
        "image": "busybox",
        "command": command,
        "resources": {"limits": {key.replace("_blocks", RESOURCE): value for key, value in limits.items()}},
    }


async def started(node: Driven) -> None:
    await node.listed(await node.turn())


async def test_a_namespace_that_is_not_allowed_is_refused_at_allocate_with_an_event() -> None:
    async with driven(SOLD_TO_ONE) as node:
        lab = node.lab
        await started(node)
        lab.create_pod("outsider", 2, namespace="default")
        await until(lambda: lab.phase("outsider", "default") == Phase.FAILED, "it to be turned away")
        await until(
            lambda: any(
                "ColocationMemoryRefused" in reason
                and "offers it only to namespace colocation-memory" in message
                for reason, message in lab.events("outsider")
            ),
            "the reason in its events",
        )
        assert lab.held() == {}
        lab.create_pod("insider", 2)
        await lab.until_running("insider")


async def test_a_namespace_that_allocate_could_not_tell_is_refused_before_the_container_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a pod from where blocks are allowed waits for as many at the same time."""
    async with driven(SOLD_TO_ONE) as node:
        lab = node.lab
        await started(node)
        monkeypatch.setattr(node.part.plugin, "_check_namespace", lambda count: None)
        lab.create_pod("outsider", 2, namespace="default")
        await until(
            lambda: any("may not use" in message for _, message in lab.events("outsider")), "the reason"
        )
        assert lab.phase("outsider", "default") == Phase.PENDING
        assert lab.said("outsider", "default") == []


async def test_the_pods_limit_is_its_blocks_and_the_limits_of_its_other_containers() -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        containers = [container("main", _blocks="2"), container("helper", memory="20Mi")]
        lab.create_pod("pair", 0, containers=containers)
        await lab.until_running("pair")
        assert lab.limit("pair") == 2 * BLOCK + 20 * MIB
        await until(lambda: lab.said("pair") != [], "its first words")
        assert lab.said("pair") == [f"limit {2 * BLOCK + 20 * MIB}"]


async def test_a_sidecar_without_a_limit_makes_the_pods_limit_none_and_the_containers_its_blocks() -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        lab.create_pod("pair", 0, containers=[container("main", _blocks="2"), container("sidecar")])
        await lab.until_running("pair")
        await node.until_known("pair")
        await node.turn()
        pod = lab.group("pair")
        assert lab.limit("pair") is None
        assert read_limits(MemoryGroup(pod.folder / "main", pod.version)).memory == 2 * BLOCK
        assert read_limits(MemoryGroup(pod.folder / "sidecar", pod.version)).memory is None


async def test_a_limit_that_is_reset_is_set_again_at_the_next_turn() -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        await node.run_pod("batch", 3)
        assert not (await node.turn()).plan.actions
        set_limits(lab.group("batch"), GroupLimits())
        await node.turn()
        assert lab.limit("batch") == 3 * BLOCK
        if node.part._machine.tree.version == 2 or lab.group("batch").has("memory.memsw.limit_in_bytes"):
            assert read_limits(lab.group("batch")).swap == 0, "blocks are all that it has"


async def test_a_cordoned_node_offers_nothing_and_pods_keep_their_blocks() -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        await node.run_pod("batch", 3)

        def cordon(body: Object) -> None:
            body["spec"]["unschedulable"] = True

        lab.cluster.registry.modify(NODES, "", MACHINE, cordon)
        await until(
            lambda: node.cluster.node is not None and node.cluster.node.spec.unschedulable,
            "the watch to know",
        )
        decision = await node.turn()
        assert decision.offered == 0
        assert decision.held == 3
        assert lab.limit("batch") == 3 * BLOCK
        assert any("cordoned" in sentence for sentence in node.part.report.sentences)


async def test_nothing_is_done_to_a_pod_that_holds_no_block() -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        batch = await Eater(lab, "batch", 4).ready()
        stranger = lab.create_pod("web", 0)
        await lab.until_running("web")
        await node.until_known("batch", "web")
        await batch.anon(60 * MIB)
        node.small.system += 300 * MIB
        decision = await node.turn()
        action = Evict(pod=msgspec.structs.replace(decision.pods[0].ref, uid=stranger, name="web"), reason="")
        done = await node.part.executor.carry_out([action], frozenset(decision.state.holders), off=False)
        assert [outcome.message for outcome in done] == ["it holds no block"]
        assert lab.phase("web") == Phase.RUNNING


async def test_switched_off_all_limits_are_restored_all_blocks_withdrawn_and_that_outlives_a_restart() -> (
    None
):
    async with memory_lab() as lab:
        async with Driven(lab).running() as node:
            await started(node)
            await node.run_pod("batch", 3)
            await node.turn()
            node.part.switch(True)
            await node.turns(2)
            assert lab.limit("batch") is None
            assert node.part.report.restored
            await node.listed(await node.turn())
            assert lab.healthy() == []
        async with Driven(lab, clock=node.clock).running() as again:
            decision = await again.turn()
            assert again.part.is_off
            assert decision.offered == 0
            assert lab.limit("batch") is None
            again.part.switch(False)
            await again.turns(9)
            assert lab.limit("batch") == 3 * BLOCK
            last = await again.turn()
            assert last.offered > 0
            await again.listed(last)


async def test_withdrawn_blocks_leave_the_kubelet_by_the_sdk_once_no_pod_holds_them() -> None:
    async with driven(sdk={"linger": 0.2, "holders_interval": 0.05}) as node:
        await started(node)
        await node.run_pod("batch", 3)
        held = {id for ids in (await node.turn()).state.holders.values() for id in ids}
        offered = set(node.lab.healthy())
        assert held < offered
        known = node.lab.cluster.kubelet.devices.table.devices
        seen: list[dict[str, Health]] = []

        def left(ids: set[str]) -> bool:
            seen.append({id: device.health for id, device in known.get(RESOURCE, {}).items()})
            return seen[-1].keys() == ids

        node.part.switch(True)
        plan = (await node.turn()).plan.blocks
        assert plan.devices == tuple(Device(id).unhealthy() for id in sorted(held))
        assert set(plan.withdrawn) == offered
        await until(lambda: left(held), "free blocks to be dropped")
        assert dict.fromkeys(offered, Health.UNHEALTHY) in seen, "they are Unhealthy first"
        await node.lab.delete_pod("batch")
        assert (await node.turn()).plan.blocks.devices == ()
        await until(lambda: left(set()), "the pod's blocks to be dropped")


async def test_a_disruption_budget_holds_an_eviction_back() -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        budget = {
            "metadata": {"name": "all"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {}}},
        }
        lab.cluster.registry.create(DISRUPTION_BUDGETS, NAMESPACE, budget)
        batch = await Eater(lab, "batch", 6).ready()
        await node.until_known("batch")
        await batch.anon(80 * MIB)
        node.small.system += 250 * MIB
        actions = await node.turns(6)
        assert any(isinstance(action, Evict) for action in actions)
        assert lab.phase("batch") == Phase.RUNNING
        decision = await node.turn()
        leaving = decision.state.ladder.leaving[batch.uid]
        assert "disruption budget" in leaving.waits_for
        assert not leaving.accepted


async def test_a_bare_pod_that_may_move_is_created_again_with_an_affinity_against_this_node() -> None:
    async with driven() as node:
        lab = node.lab
        await started(node)
        mover = await Eater(lab, "mover", 6, annotations={MAY_MOVE: "true"}).ready()
        await node.until_known("mover")
        await mover.anon(80 * MIB)
        node.small.system += 300 * MIB
        actions: list[Action] = []
        for _ in range(12):
            actions += (await node.turn()).plan.actions
            pod = lab.pod("mover")
            if pod is not None and pod["metadata"]["uid"] != mover.uid:
                break
            await asyncio.sleep(0.05)
        assert any(isinstance(action, Recreate) for action in actions)
        again = lab.pod("mover")
        assert again is not None
        assert again["metadata"]["uid"] != mover.uid
        rule = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["this-machine"]}
        required = again["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert required["nodeSelectorTerms"] == [{"matchExpressions": [rule]}]
        assert not again["spec"].get("nodeName")
        assert again["metadata"]["annotations"][MAY_MOVE] == "true"
        assert not list((lab.root / "state").glob("memory-recreate-*"))


async def test_size_and_name_of_blocks_do_not_change_while_a_pod_holds_one() -> None:
    async with memory_lab() as lab:
        async with Driven(lab).running() as node:
            await started(node)
            await node.run_pod("batch", 3)
            await node.turn()
        larger = msgspec.structs.replace(SETTINGS, block_size=2 * BLOCK)
        async with Driven(lab, larger, clock=node.clock).running() as again:
            with pytest.raises(UserError, match="switch colocation off"):
                await again.turn()


async def test_a_dry_run_decides_as_the_agent_would_and_changes_nothing() -> None:
    async with memory_lab() as lab:
        lab.configure(blockSize="64Mi")
        await lab.start_agent("--dry-run")
        await until(lambda: "memory.would_act" in lab.log() or "ended" in lab.log(), "a plan in the log")
        assert '"action": "Publish"' in lab.log(), "the blocks that would be offered"
        report = await lab.report()
        assert report.dry_run
        assert report.offered > 0
        assert any("room for" in sentence for sentence in report.sentences)
        assert lab.healthy() == []
        assert not (lab.root / "state").exists()
        assert await lab.stop_agent() == 0
