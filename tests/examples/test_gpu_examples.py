"""examples/gpus: the files can be used, fit each other, and give no more rights than the agent needs."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.cluster.serving import connect
from tests.support.rights import account_token, apply

from colocate.agent.configuration import build
from colocate.clock import SystemClock
from colocate.cluster.errors import Forbidden
from colocate.cluster.node_status import set_extended_resources
from colocate.cluster.resources import NODES, PODS
from colocate.gpus import ANNOUNCED, COLOCATE, COUNT_WISH, DIALECTS, DOSLAB, GpuPod, asks_of
from colocate.gpus.agent.mock_file import load_mock_gpus
from colocate.lab.api.resources import NODES as LAB_NODES
from colocate.lab.api.resources import PODS as LAB_PODS
from colocate.lab.api.server import ApiServer

EXAMPLES = Path(__file__).parents[2] / "examples" / "gpus"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def test_the_configurations_can_be_used() -> None:
    in_config_map = documents("daemonset.yaml")[0]["data"]["agent.yaml"]
    for text in ((EXAMPLES / "agent.yaml").read_text(), in_config_map):
        config = build(text.encode(), "agent.yaml").config
        assert config.gpus.enabled
        assert config.gpus.settings().dialects == (COLOCATE,)


def test_the_pods_of_doslab_ask_for_a_mock_gpu_that_is_there() -> None:
    mocks = {gpu.uuid for gpu in load_mock_gpus(EXAMPLES / "mock-gpus.yaml", "node")}
    for pod, keys in zip(documents("doslab-pods.yaml"), DOSLAB.annotations, strict=True):
        annotations = pod["metadata"]["annotations"]
        assert set(annotations) == {keys.gpus, keys.assume_time, keys.assigned}
        assert annotations[keys.gpus] in mocks


def test_the_demo_pods_ask_in_the_dialect_of_the_daemonset() -> None:
    pods = [msgspec.convert(each, GpuPod) for each in documents("demo-pods.yaml")]
    asked = [asks_of(pod, COLOCATE) for pod in pods]
    assert [each.containers[0].memory for each in asked] == [4096, 8192, 3072]
    assert not any(each.problem for each in asked)
    assert pods[-1].annotations == {COUNT_WISH: "2"}


def test_the_agent_runs_with_the_account_of_the_role() -> None:
    account = next(each for each in documents("rbac.yaml") if each["kind"] == "ServiceAccount")
    daemon_set = documents("daemonset.yaml")[1]
    assert daemon_set["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]


def test_the_policy_knows_every_count_and_the_account() -> None:
    policy = next(each for each in documents("rbac.yaml") if each["kind"] == "ValidatingAdmissionPolicy")
    counts = policy["spec"]["variables"][0]["expression"]
    for dialect in DIALECTS.values():
        assert all(f'"{name}"' in counts for name in (dialect.count, dialect.cores) if name)
    assert ANNOUNCED in str(policy["spec"]["validations"])
    [condition] = policy["spec"]["matchConditions"]
    assert '"system:serviceaccount:kube-system:colocate-gpus"' in condition["expression"]


async def test_the_role_suffices_for_the_counts_and_for_no_more(server: ApiServer) -> None:
    apply(server, "gpus/rbac.yaml")
    server.registry.create(LAB_NODES, "", {"metadata": {"name": "worker"}})
    pod = {"metadata": {"name": "victim"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    server.registry.create(LAB_PODS, "default", pod)
    async with connect(server.url, SystemClock(), token=account_token(server, "colocate-gpus")) as agent:
        await agent.list(PODS)
        await set_extended_resources(agent, "worker", {DOSLAB.count: 2}, annotations={ANNOUNCED: "[]"})
        for deed in (
            agent.patch(PODS, "victim", {"metadata": {"labels": {"a": "b"}}}, namespace="default"),
            agent.delete(PODS, "victim", "default"),
            agent.create(PODS, {**pod, "metadata": {"name": "root"}}, "default"),
            agent.delete(NODES, "worker"),
        ):
            with pytest.raises(Forbidden):
                await deed
