"""How the tests find their way on a cluster that was given to them; no cluster is needed to see that."""

from typing import Any

import pytest

from tests.on_cluster.conftest import Cluster, find_own_node


def node(name: str, boot_id: str = "", *, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"metadata": {"name": name}, "status": {"conditions": conditions, "nodeInfo": {"bootID": boot_id}}}


@pytest.mark.parametrize(
    ("nodes", "named", "found"),
    [
        ([node("a", "other"), node("b", "ours")], "", "b"),
        ([node("a", "other"), node("b", "ours")], "a", "a"),
        ([node("only", "another")], "", "only"),
        ([node("a", "ours", ready=False), node("b", "ours")], "", "b"),
    ],
)
def test_the_node_that_is_this_machine_is_found(nodes: list[Any], named: str, found: str) -> None:
    assert find_own_node(nodes, "ours", named) == found


@pytest.mark.parametrize(
    "nodes",
    [
        [node("a", "other"), node("b", "another")],
        [node("a", "ours"), node("b", "ours")],
        [node("a", "ours", ready=False)],
        [],
    ],
)
def test_where_it_cannot_be_told_the_variable_is_named(nodes: list[Any]) -> None:
    with pytest.raises(pytest.skip.Exception, match="set COLOCATE_TEST_NODE"):
        find_own_node(nodes, "ours")


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"])
def test_an_image_that_cannot_be_had_fails_at_once(reason: str) -> None:
    container = {"image": "nowhere/none:1", "state": {"waiting": {"reason": reason}}}
    pod = {"status": {"containerStatuses": [container]}}
    with pytest.raises(pytest.fail.Exception, match=r"nowhere/none:1.*COLOCATE_TEST_IMAGE"):
        Cluster.check_images([pod])
    container["state"] = {"waiting": {"reason": "ContainerCreating"}}
    Cluster.check_images([pod])
