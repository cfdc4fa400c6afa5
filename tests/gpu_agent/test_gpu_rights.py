"""An agent with the rights of examples/gpus: what it does with each, and what it says without."""

import signal

from colocate.lab.api.kubeconfig import Credential
from colocate.model.pod import Phase
from tests.gpu_agent.lab import A100, MOCKS, T4, GpuLab, gpu_lab
from tests.support.rights import account_token, apply
from tests.support.waiting import until

SMALL = ({**MOCKS[0], "memory": "160Mi"}, {**MOCKS[1], "memory": "400Mi"})


async def agent_with(lab: GpuLab, *files: str) -> None:
    """An agent that has the rights of these files and no others."""
    apply(lab.cluster.server, *files)
    token = account_token(lab.cluster.server, "colocate-gpus")
    lab.cluster.server.write_kubeconfig(lab.root / "kubeconfig", Credential(token=token))
    lab.configure(SMALL, stateFolder=str(lab.root / "state"), keyFile=str(lab.root / "key"))
    await lab.start_agent()
    await lab.shows(560, 2)


async def test_without_the_right_to_patch_pods_the_agent_works_and_says_which_flags_it_could_not_set() -> (
    None
):
    async with gpu_lab() as lab:
        await agent_with(lab, "gpus/rbac.yaml")
        lab.create_pod("p", 10, annotations={"doslab.io/gpu-uuid": A100, "doslab.io/gpu-assume-time": "1"})
        await lab.until_phase("p")
        assert lab.env("p")["NVIDIA_VISIBLE_DEVICES"] == A100
        await until(lambda: "gpu.unflagged" in lab.log(), "the agent to say so", 30)
        notes = " ".join((await lab.report()).notes)
        assert "the annotations doslab.io/gpu-assigned of default/p could not be set" in notes
        assert "apply examples/gpus/pods-rbac.yaml" in notes
        assert "doslab.io/gpu-assigned" not in lab.annotations("p")


async def test_with_it_a_pod_of_a_controller_that_holds_what_another_has_booked_is_deleted_and_made_anew() -> (
    None
):
    async with gpu_lab() as lab:
        await agent_with(lab, "gpus/rbac.yaml", "gpus/pods-rbac.yaml")
        lab.cluster.kubelet.faults.podresources_refusal = "not today"
        release = lab.hold_back("first", "owned")
        lab.create_pod("first", 10)
        lab.book("first", T4)
        container = {
            "name": "main",
            "image": "busybox",
            "resources": {"limits": {"doslab.io/gpu-memory": "10"}},
        }
        lab.create(
            {
                "metadata": {"name": "owned", "ownerReferences": [lab.owner()]},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
            }
        )
        lab.book("owned", A100)
        await lab.until_explained("owned")
        release("owned")
        await until(lambda: "gpu.pod_deleted" in lab.log() and not lab.pod("owned"), "it to be deleted", 30)
        await lab.until_told("owned", "its ConfigMap makes a new one")
        release()
        await lab.until_phase("first")
        assert lab.env("first")["NVIDIA_VISIBLE_DEVICES"] == T4
        await lab.until_annotated("first", "doslab.io/gpu-assigned", "true")
        # Nothing of it is left: the room that it held is free.
        lab.create_pod(
            "next", 380, annotations={"doslab.io/gpu-uuid": A100, "doslab.io/gpu-assume-time": "2"}
        )
        await lab.until_phase("next", Phase.RUNNING)
        await lab.stop_agent(signal.SIGTERM)
