"""What an extended resource is taken off a node with: the rights of the example, and none less."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.resources.lab_resources import ResourceLab, dead_plugin
from tests.support.plugins import FAN
from tests.support.rights import bind_role, user

from colocate.cluster.errors import Forbidden
from colocate.devices.resources.removal import NotRemoved
from colocate.lab.api import deletion
from colocate.lab.api.resources import CLUSTER_ROLE_BINDINGS
from colocate.lab.api.users import known

RBAC = Path(__file__).parents[2] / "examples" / "resource-rbac.yaml"


def roles() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(RBAC.read_text()))


def grant(lab: ResourceLab, rules: dict[str, list[dict[str, Any]]]) -> None:
    """Apply roles of these names and rules, and bind them all to the user `tidy`."""
    for name, given in rules.items():
        bind_role(lab.cluster.registry, name, given, user("tidy"))
    lab.let_in("tidy-token", known("tidy"))


async def test_the_roles_of_the_example_are_enough(lab: ResourceLab) -> None:
    await dead_plugin(lab)
    grant(lab, {role["metadata"]["name"]: role["rules"] for role in roles()})
    async with lab.client("tidy-token") as client:
        assert await lab.observer(client).all_nodes()
    await lab.remove(FAN, token="tidy-token")
    assert lab.capacity(FAN) == (None, None)


@pytest.mark.parametrize(
    ("verb", "resource"), [("get", "nodes"), ("list", "pods"), ("patch", "nodes/status")]
)
async def test_without_any_one_right_the_missing_one_is_named(
    lab: ResourceLab, verb: str, resource: str
) -> None:
    lab.patch_by_hand(FAN, "7")
    kept = [
        {**rule, "verbs": [one for one in rule["verbs"] if (one, rule["resources"]) != (verb, [resource])]}
        for role in roles()
        for rule in role["rules"]
    ]
    grant(lab, {"nearly": [rule for rule in kept if rule["verbs"]]})
    with pytest.raises(Forbidden, match=f"grant tidy the verb {verb} on {resource}"):
        await lab.remove(FAN, token="tidy-token")
    assert lab.capacity(FAN)[0] == "7"


async def test_a_right_that_is_lost_after_the_patch_hides_nothing_of_it(lab: ResourceLab) -> None:
    grant(lab, {role["metadata"]["name"]: role["rules"] for role in roles()})
    lab.patch_by_hand(FAN, "7")
    await lab.sync()

    async def revoke() -> None:
        for role in roles():
            deletion.delete(lab.cluster.registry, CLUSTER_ROLE_BINDINGS, "", role["metadata"]["name"])

    lab.pacer.at(2, revoke)
    with pytest.raises(NotRemoved, match=r"grant tidy the verb get on nodes .* until then: it was removed"):
        await lab.remove(FAN, token="tidy-token")
