"""The roles of examples/memory are enough for all that the agent does, and none of it could be left out."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from colocate.apps.config.file import build
from colocate.apps.memory.objects import MAY_MOVE
from colocate.lab.api.users import known
from colocate.memory.facts import Result
from tests.memory_agent.driving import MIB, Driven
from tests.memory_agent.eating import Eater
from tests.memory_agent.lab import NAMESPACE, RESOURCE, MemoryLab, memory_lab
from tests.support.rights import bind_role, user
from tests.support.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples" / "memory"
TOKEN = "agent-token"
USER = "colocate-agent"


def roles() -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((EXAMPLES / "rbac.yaml").read_text())
    return [document for document in documents if document["kind"] == "ClusterRole"]


RIGHTS = sorted(
    {
        (resource, verb)
        for role in roles()
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
)


def grant(lab: MemoryLab, without: tuple[str, str] | None = None) -> None:
    """Let the agent in with the example's rights, but one."""
    rules = [
        {"apiGroups": [""], "resources": [resource], "verbs": [verb]}
        for resource, verb in RIGHTS
        if (resource, verb) != without
    ]
    bind_role(lab.cluster.registry, USER, rules, user(USER))
    lab.cluster.server.authenticator.add_token(TOKEN, known(USER))
    kubeconfig = yaml.safe_load((lab.root / "kubeconfig").read_text())
    kubeconfig["users"][0]["user"] = {"token": TOKEN}
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
            missing |= {o.message for o in outcomes if o.result in (Result.REFUSED, Result.UNREACHABLE)}
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
        grant(lab)
        assert await everything(lab) == set()


@pytest.mark.parametrize("right", RIGHTS, ids=" ".join)
async def test_no_right_of_the_example_can_be_left_out(right: tuple[str, str]) -> None:
    async with memory_lab() as lab:
        grant(lab, without=right)
        assert await everything(lab) != set()


def test_the_example_of_a_daemonset_has_a_configuration_that_an_agent_takes() -> None:
    config, daemon_set = yaml.safe_load_all((EXAMPLES / "daemonset.yaml").read_text())
    memory = build(config["data"]["agent.yaml"].encode(), "agent.yaml").config.memory
    assert memory.enabled
    assert (memory.resource, memory.namespaces) == (RESOURCE, (NAMESPACE,))
    mounted = {
        mount["mountPath"]
        for c in daemon_set["spec"]["template"]["spec"]["containers"]
        for mount in c["volumeMounts"]
    }
    assert {"/var/lib/kubelet", "/sys/fs/cgroup", str(memory.state_folder)} <= mounted
