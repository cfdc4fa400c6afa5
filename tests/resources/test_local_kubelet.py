"""Which node is this machine, and what its kubelet adds to what the API shows."""

import shutil
from pathlib import Path

import msgspec
import pytest
from tests.resources.lab_resources import ResourceLab
from tests.support.plugins import FAN, Fans
from tests.support.rights import bind_role, user

from colocate.clock import SystemClock
from colocate.devices.extended_resources import ResourceState
from colocate.devices.resources.local_kubelet import LocalKubelet, NodeIdentity, _NodeMarks
from colocate.devices.resources.observe import ResourceObserver
from colocate.doctor.check import Patient
from colocate.doctor.examination import chosen, examine
from colocate.errors import UserError
from colocate.host.identity import Identity, this_machine
from colocate.kubelet.paths import KubeletPaths
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import NODES
from colocate.lab.api.users import known
from colocate.lab.cluster import MACHINE

HERE = Identity("boot-1", "machine-1", "host-1")


STATED = KubeletPaths(Path("/elsewhere/kubelet"))


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubeletPaths:
    """The usual folder, in which no kubelet of this machine has said what it calls this boot."""
    monkeypatch.setattr(KubeletPaths, "boot_id", tmp_path / "boot_id")
    return KubeletPaths()


def marks(name: str, hostname: str, boot: str, machine: str) -> _NodeMarks:
    return _NodeMarks(name, hostname, NodeIdentity(boot, machine))


BY_HOST = marks("n1", "host-1", "boot-1", "machine-2")
BY_MACHINE = marks("n2", "other", "boot-1", "machine-1")
BY_KERNEL = marks("n3", "third", "boot-1", "machine-3")
BY_KERNEL_TOO = marks("n4", "fourth", "boot-1", "machine-1")
NOT_HERE = marks("n5", "host-1", "boot-2", "machine-1")


@pytest.mark.parametrize(
    ("nodes", "name"),
    [
        ([BY_HOST], "n1"),
        ([BY_MACHINE], "n2"),
        ([BY_MACHINE, BY_HOST, BY_KERNEL], "n1"),
        ([BY_MACHINE, BY_KERNEL], "n2"),
        ([BY_MACHINE, BY_KERNEL_TOO], None),
        ([BY_KERNEL], None),
        ([NOT_HERE], None),
        ([], None),
    ],
)
def test_a_node_is_this_machine_if_it_is_the_same_boot_and_more_agrees_for_one_alone(
    nodes: list[_NodeMarks], name: str | None, usual: KubeletPaths
) -> None:
    assert LocalKubelet(usual, HERE, SystemClock()).which(nodes) == name


@pytest.mark.parametrize(
    ("nodes", "said", "name"),
    [
        ([BY_KERNEL], "", "n3"),
        ([BY_KERNEL, NOT_HERE], "", "n3"),
        ([BY_KERNEL, marks("n6", "sixth", "boot-1", "machine-6")], "", None),
        ([BY_KERNEL, marks("n6", "sixth", "boot-1", "machine-6")], "n6", "n6"),
        ([BY_KERNEL, BY_HOST], "", "n1"),
        ([BY_KERNEL, BY_HOST], "n3", "n1"),
        ([NOT_HERE], "n5", None),
    ],
)
def test_a_folder_that_was_named_belongs_to_one_node_and_not_to_all_of_this_kernel(
    nodes: list[_NodeMarks], said: str, name: str | None
) -> None:
    kubelet = LocalKubelet(STATED, HERE, SystemClock(), node=said)
    assert kubelet.which(nodes) == name
    assert kubelet.which(nodes[::-1]) == name


def test_a_machine_that_does_not_know_itself_is_no_node() -> None:
    nobody = LocalKubelet(STATED, Identity("", "", ""), SystemClock())
    assert nobody.which([marks("n1", "", "", "")]) is None


def test_a_host_name_is_the_same_in_capitals_which_kubelets_do_not_write(usual: KubeletPaths) -> None:
    loud = LocalKubelet(usual, Identity("boot-1", "", "HOST-1"), SystemClock())
    assert loud.which([BY_HOST]) == "n1"


def share_kernel(lab: ResourceLab) -> None:
    """The simulated node is another container on this machine, as in kind."""

    def change(body: Object) -> None:
        body["status"]["nodeInfo"] = lab.status()["nodeInfo"]

    lab.cluster.registry.force(NODES, lab.cluster.registry.get(NODES, "", "other"), change)


async def test_a_kubelet_and_an_embedded_one_on_one_machine_do_not_speak_for_each_other(
    lab: ResourceLab, tmp_path: Path
) -> None:
    here = msgspec.structs.replace(this_machine(), boot_id="of the kernel")
    clock, embedded = SystemClock(), lab.cluster.kubelet.paths
    await lab.node.serve(Fans("fan-0"))
    await lab.node.devices(FAN, 1)
    real = KubeletPaths(tmp_path)
    real.device_plugins.mkdir()
    shutil.copy(embedded.checkpoint, real.checkpoint)
    info = lab.status()["nodeInfo"]
    of_lab = marks(MACHINE, MACHINE, info["bootID"], info["machineID"])
    of_host = marks("host", here.hostname.lower(), here.boot_id, here.machine_id)
    for said in ("", MACHINE, "host"):
        one, other = (LocalKubelet(paths, here, clock, node=said) for paths in (embedded, real))
        assert (one.which([of_lab]), one.which([of_host])) == (MACHINE, None)
        assert (other.which([of_lab]), other.which([of_host])) == (None, "host")
    lab.patch_by_hand("example.com/hand", "1")
    async with lab.client() as client:
        for paths, certain in ((embedded, True), (real, False)):
            look = await ResourceObserver(client, LocalKubelet(paths, here, clock), lab.pacer).node(MACHINE)
            found = look.find("example.com/hand")
            assert found is not None
            assert found.certain == certain, "whether a checkpoint was read, which does not know it"


async def test_of_nodes_that_share_a_kernel_none_takes_the_word_of_the_kubelet_of_another(
    lab: ResourceLab,
) -> None:
    if not this_machine().boot_id:
        pytest.skip("this machine has no boot id")
    await lab.node.serve(Fans("fan-0"))
    await lab.node.devices(FAN, 1)
    lab.patch_by_hand(FAN, "7", "other")
    await lab.sync()
    share_kernel(lab)

    async def certain(said: str) -> dict[str, str]:
        """The nodes whose kubelet was asked, looked at alone and together."""
        async with lab.client() as client:
            alone = [
                await lab.observer(client, on_node=True, said=said).node(one) for one in (MACHINE, "other")
            ]
            together = await lab.observer(client, on_node=True, said=said).all_nodes()
        reasons = [
            {look.node.name: found.reason for look in looks if (found := look.find(FAN)) is not None}
            for looks in (alone, together)
        ]
        assert reasons[0] == reasons[1]
        return {node: reason for node, reason in reasons[0].items() if "podresources of this node" in reason}

    assert await certain(said="") == {}
    assert await certain(said=MACHINE) == {MACHINE: "podresources of this node lists 1 healthy"}


async def test_the_doctor_takes_the_same_node_for_this_machine(lab: ResourceLab) -> None:
    if not this_machine().boot_id:
        pytest.skip("this machine has no boot id")
    group = await lab.node.serve(Fans("fan-0"))
    await lab.node.devices(FAN, 1)
    await lab.node.kill(group)
    await lab.node.devices(FAN, 0)
    await lab.sync()

    def change(body: Object) -> None:
        body["status"]["nodeInfo"]["machineID"] = "another"

    lab.cluster.registry.force(NODES, lab.cluster.registry.get(NODES, "", MACHINE), change)
    paths = lab.cluster.kubelet.paths
    async with lab.client() as client:
        patient = Patient(paths, paths.root / "agent.sock", "nobody", lab.pacer, client)
        [examined] = [one async for one in examine(patient, chosen(["extended resources"]))]
        found = (await lab.observer(client, on_node=True).node(MACHINE)).find(FAN)
    assert found is not None
    assert found.certain
    assert examined.results[0].reason == f"{FAN} on {MACHINE}: {found.reason}"


async def test_who_may_not_list_nodes_is_shown_what_the_api_says(lab: ResourceLab) -> None:
    await lab.node.serve(Fans("fan-0"))
    await lab.node.devices(FAN, 1)
    await lab.sync()
    rules = [{"verbs": ["get"], "resources": ["nodes"]}, {"verbs": ["list"], "resources": ["pods"]}]
    bind_role(lab.cluster.registry, "few", [{"apiGroups": [""], **rule} for rule in rules], user("few"))
    lab.let_in("few-token", known("few"))
    async with lab.client("few-token") as client:
        found = (await lab.observer(client, on_node=True).node(MACHINE)).find(FAN)
    assert found is not None
    assert found.reason == "the kubelet reports its plugin's devices"


async def test_a_node_without_a_name_is_the_users_mistake(lab: ResourceLab) -> None:
    with pytest.raises(UserError, match="the name of the node is empty; 'colocate resource list' shows"):
        await lab.look(node="")


async def test_on_the_node_itself_its_kubelet_is_asked(lab: ResourceLab) -> None:
    if not this_machine().boot_id:
        pytest.skip("this machine has no boot id")
    await lab.node.serve(Fans("fan-0", "fan-1"))
    await lab.node.devices(FAN, 2)
    await lab.sync()
    found = (await lab.look(on_node=True)).find(FAN)
    assert found is not None
    assert found.reason == "podresources of this node lists 2 healthy"
    lab.cluster.kubelet.faults.podresources_refusal = "too busy"
    found = (await lab.look(on_node=True)).find(FAN)
    assert found is not None
    assert (found.state, found.reason) == (ResourceState.ALIVE, "the kubelet reports its plugin's devices")
    lab.patch_by_hand("example.com/hand", "1")
    found = (await lab.look(on_node=True)).find("example.com/hand")
    assert found is not None
    assert (found.state, found.certain) == (ResourceState.HAND_PATCHED, True), (
        "the checkpoint does not know it"
    )
    lab.cluster.kubelet.paths.checkpoint.write_text("nonsense")
    assert await lab.look(on_node=True), "what cannot be read is left out"
