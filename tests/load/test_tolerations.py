"""A node takes a pod that tolerates all that keeps others off it."""

import pytest

from colocate.load.tolerations import ClosedNode, Toleration, open_to
from colocate.model.load import OPEN, Access, NodeFacts, Taint
from tests.load.facts import SIZE

GPU = Access(taints=(Taint("gpu", "NoSchedule", "a100"),))
LEAVING = Access(taints=(Taint("gpu", "NoSchedule", "a100"), Taint("leaving", "NoExecute")))
CORDONED = Access(cordoned=True)
CORDON = "node.kubernetes.io/unschedulable"
CORDONED_BY_TAINT = Access(cordoned=True, taints=(Taint(CORDON, "NoSchedule"),))
NODES = {
    name: NodeFacts(name, SIZE, SIZE, access=access)
    for name, access in {
        "open": OPEN,
        "gpu": GPU,
        "leaving": LEAVING,
        "cordoned": CORDONED,
        "cordoned too": CORDONED_BY_TAINT,
    }.items()
}


def test_nodes_that_do_not_take_a_pod_are_told_with_the_reason() -> None:
    assert open_to((), NODES) == (
        ["open"],
        (
            ClosedNode("gpu", "the pod does not tolerate its taint gpu=a100:NoSchedule"),
            ClosedNode("leaving", "the pod does not tolerate its taint gpu=a100:NoSchedule"),
            ClosedNode("cordoned", "it is cordoned"),
            ClosedNode("cordoned too", "it is cordoned"),
        ),
    )


@pytest.mark.parametrize(
    ("tolerations", "taken"),
    [
        ([Toleration(operator="Exists")], ["gpu", "leaving", "cordoned", "cordoned too"]),
        ([Toleration("gpu", "Exists")], ["gpu"]),
        ([Toleration("gpu", value="a100")], ["gpu"]),
        ([Toleration("gpu", "", "a100", "NoSchedule")], ["gpu"]),
        ([Toleration("gpu", value="h100")], []),
        ([Toleration("gpu")], []),
        ([Toleration("gpu", "Exists", effect="NoExecute")], []),
        ([Toleration("other", "Exists")], []),
        (
            [Toleration("gpu", "Exists"), Toleration("leaving", "Exists", effect="NoExecute")],
            ["gpu", "leaving"],
        ),
        ([Toleration(CORDON, "Exists", effect="NoSchedule")], ["cordoned", "cordoned too"]),
    ],
)
def test_what_is_tolerated(tolerations: list[Toleration], taken: list[str]) -> None:
    found, closed = open_to(tolerations, NODES)
    assert found == ["open", *taken]
    assert {one.node for one in closed} == NODES.keys() - set(found)
