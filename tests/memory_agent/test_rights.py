"""The roles of examples/memory are enough for all that the agent does, and none of it could be left out."""

import asyncio

import msgspec
import pytest
import yaml

from colocate.lab.api import deletion
from colocate.lab.api.resources import NAMESPACES, ROLE_BINDINGS
from colocate.memory.actions import ActionResult, Evict, Recreate
from colocate.memory.agent.objects import MAY_MOVE
from tests.memory_agent.driving import MIB, SETTINGS, Driven
from tests.memory_agent.eating import Eater
from tests.memory_agent.lab import NAMESPACE, MemoryLab, memory_lab
from tests.support.rights import Right, account_token, apply, rights
from tests.support.waiting import until

SELLING = ("memory/rbac.yaml", "memory/namespace.yaml")
MOVING = "memory/mover.yaml"
EVICTOR = "colocate-memory-evictor"


def grant(lab: MemoryLab, *files: str, without: Right | None = None) -> None:
    """Let the agent in with the rights of manifests, but one."""
    apply(lab.cluster.server, *files, without=without)
    kubeconfig = yaml.safe_load((lab.root / "kubeconfig").read_text())
    kubeconfig["users"][0]["user"] = {"token": account_token(lab.cluster.server, "colocate-agent")}
    (lab.root / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))


async def everything(lab: MemoryLab) -> set[str]:
    """All that an agent ever asks of the API server; what could not be done."""
    missing: set[str] = set()
    node = Driven(lab)
    async with node.following():
        followed = (node.cluster._pods, node.cluster._nodes)
        await until(
            lambda: (
                all(cache._opened is not None for cache in followed) or "forbidden" in node.cluster.trouble
            ),
            "both watches, or a refusal",
        )
        if node.cluster.trouble:
            return {node.cluster.trouble}
    async with Driven(lab).running() as node:
        await node.listed(await node.turn())
        bare = await Eater(lab, "bare", 4).ready()
        mover = await Eater(lab, "mover", 4, annotations={MAY_MOVE: "true"}).ready()
        await node.until_known("bare", "mover")
        await bare.anon(50 * MIB)
        await mover.anon(50 * MIB)
        node.small.system += 300 * MIB
        for _ in range(14):
            await node.turn()
            outcomes = node.part.executor._outcomes
            missing |= {
                o.message for o in outcomes if o.result in (ActionResult.REFUSED, ActionResult.UNREACHABLE)
            }
            pod = lab.pod("mover")
            if lab.pod("bare") is None and pod is not None and pod["metadata"]["uid"] != mover.uid:
                break
            await asyncio.sleep(0.02)
        else:
            missing.add("a pod did not leave")
        # Twice the same words are one event that is counted.
        for _ in range(2):
            node.cluster.tell_node("Test", "the same words")
            await node.cluster._events.flush()
        if node.cluster._events.dropped:
            missing.add("events were dropped")
    return missing


async def test_the_rights_of_the_example_are_enough() -> None:
    async with memory_lab() as lab:
        grant(lab, *SELLING, MOVING)
        assert await everything(lab) == set()


@pytest.mark.parametrize("right", rights(*SELLING, MOVING), ids=" ".join)
async def test_no_right_of_the_example_can_be_left_out(right: Right) -> None:
    async with memory_lab() as lab:
        grant(lab, *SELLING, MOVING, without=right)
        assert await everything(lab) != set()


async def pressed(node: Driven) -> list[type]:
    """What is asked of the API for a debt that no lower rung pays."""
    node.small.system += 300 * MIB
    actions = await node.turns(14)
    return [type(action) for action in actions if isinstance(action, Evict | Recreate)]


async def test_without_the_movers_rights_a_pod_that_may_move_is_evicted_like_others() -> None:
    async with memory_lab() as lab:
        grant(lab, *SELLING)
        async with Driven(lab).running() as node:
            await node.listed(await node.turn())
            mover = await Eater(lab, "mover", 4, annotations={MAY_MOVE: "true"}).ready()
            await node.until_known("mover")
            await mover.anon(50 * MIB)
            await node.turn()
            rights = node.cluster.rights
            await until(lambda: NAMESPACE in rights.without_creation, "the API server's word on rights")
            assert rights.without_eviction == frozenset()
            assert await pressed(node) == [Evict]
            assert lab.pod("mover") is None


async def test_no_pod_is_evicted_where_no_binding_allows_it_and_status_names_the_namespace() -> None:
    async with memory_lab() as lab:
        lab.cluster.registry.create(NAMESPACES, "", {"metadata": {"name": "unbound"}})
        grant(lab, *SELLING)
        sold_to_two = msgspec.structs.replace(SETTINGS, namespaces=(NAMESPACE, "unbound"))
        async with Driven(lab, sold_to_two).running() as node:
            await node.listed(await node.turn())
            rights = node.cluster.rights
            await until(lambda: rights.without_eviction == {"unbound"}, "the API server's word on rights")
            await node.turn()
            assert node.part.report.without_eviction == ("unbound",)
            eater = await Eater(lab, "eater", 4).ready()
            await node.until_known("eater")
            await eater.anon(50 * MIB)
            # A binding that is taken away counts when the server is next asked.
            deletion.delete(lab.cluster.registry, ROLE_BINDINGS, NAMESPACE, EVICTOR)
            await node.clock.advance(300)
            await until(lambda: rights.without_eviction == {NAMESPACE, "unbound"}, "the same again")
            assert await pressed(node) == []
            assert lab.pod("eater") is not None
            told = " ".join(node.part.report.sentences)
            assert f"this agent may not evict pods of namespace {NAMESPACE}" in told
