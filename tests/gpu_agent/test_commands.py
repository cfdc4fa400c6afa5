"""What an operator does with an agent that shares mock GPUs: its commands, its signals, its configuration."""

import json
import signal

import msgspec
import pytest

from colocate.cli.mock_gpu import print_mock_gpus
from colocate.gpus.agent.mock_faults import MockGpuList, MockGpuStatus
from colocate.lab.api.resources import PODS
from colocate.lab.cluster import MACHINE
from tests.cli.running import colocate
from tests.gpu_agent.lab import A100, CORES, COUNT, MEMORY, MOCKS, T4, gpu_lab
from tests.support.waiting import until

SMALL = [{**gpu, "memory": f"{memory}Mi"} for gpu, memory in zip(MOCKS, (150, 400), strict=True)]
"""Few ids: what is tried here does not depend on their number."""
BOTH = 550


def test_a_mock_gpu_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = MockGpuStatus(
        index=0, uuid="GPU-a", model="T4", memory=1 << 30, used=0, numa=None, mig=False, lost=False
    )
    other = msgspec.structs.replace(gpu, index=1, uuid="GPU-b")
    print_mock_gpus(MockGpuList((gpu, other)), {"GPU-a": "unhealthy: XID 48"})
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert first.endswith("unhealthy: XID 48")
    assert second.endswith("answers")
    print_mock_gpus(MockGpuList((gpu,), "the driver is not loaded"), {})
    assert "answers no question" in (shown := capsys.readouterr().out)
    assert shown.splitlines()[1].endswith("silent")


async def test_status_explain_mock_diff_and_doctor() -> None:
    async with gpu_lab() as lab:
        lab.configure(SMALL, health={"refresh": "1s", "recovery": "1h"})
        await lab.start_agent()
        await lab.shows(BOTH, 2)
        wish = {"doslab.io/gpu-uuid": T4, "doslab.io/gpu-assume-time": "1", "doslab.io/gpu-assigned": "false"}
        lab.create_pod("infer", 40, annotations=wish, limits={"doslab.io/gpu-core": "30"})
        lab.create_pod("tune", 80, annotations=wish)
        for name in ("infer", "tune"):
            await lab.until_phase(name)
        await until(lambda: lab.annotations("infer").get("doslab.io/gpu-assigned") == "true", "the flag", 20)
        socket = ("--socket", lab.socket)

        shown = await colocate("gpu", "status", *socket)
        assert shown.code == 0, shown.err
        assert f"{MACHINE}: 2 GPUs (mock GPUs)" in shown.out
        assert f"GPU 0: Tesla T4, 150 MiB, NUMA node 0, {T4}" in shown.out
        assert "120 MiB and 30 of 100 cores booked, 30 MiB free; 0 B in use" in shown.out
        assert "A  default/infer  main" in shown.out

        why = await colocate("gpu", "explain", "infer", *socket)
        assert f"Container main has {T4}: 40 MiB, proven." in why.out
        nobody = await colocate("gpu", "explain", "nobody", *socket)
        assert nobody.code == 2
        assert "default/nobody" in nobody.err

        used = await colocate("mock", "gpu", "memory", "1", "5Mi", *socket)
        assert "5 MiB" in used.out
        listed = await colocate("mock", "gpu", "list", *socket)
        assert listed.out.count("answers") == 2
        broken = await colocate("mock", "gpu", "xid", "1", "48", *socket)
        assert "reports XID 48" in broken.out
        assert broken.out.count("answers") == 1
        refused = await colocate("mock", "gpu", "xid", "0", "x", *socket)
        assert refused.code == 2
        assert "'x' is no XID" in refused.err
        await lab.shows(BOTH - 400, 1)
        lab.configure(SMALL)
        lab.hang_up()
        # The GPU with the XID is healthy again: what follows looks at a node at rest.
        await lab.shows(BOTH, 2)

        cluster = ("--kubeconfig", lab.root / "kubeconfig", "--node", MACHINE)
        environ = {
            "COLOCATE_KUBELET_ROOT": str(lab.cluster.kubelet.paths.root),
            "COLOCATE_CONTROL_SOCKET": str(lab.socket),
        }

        agrees = await colocate("checkpoint", "diff", *cluster, **environ)
        assert agrees.code == 0, agrees.out  # The counts are the agent's own: nobody is told to remove them.
        listed = await colocate("resource", "list", "-o", "json", *cluster, **environ)
        states = {one["name"]: one["state"] for one in json.loads(listed.out)}
        assert {states[name] for name in (MEMORY, COUNT, CORES)} == {"alive"}, listed.out
        kept = await colocate("resource", "remove", MACHINE, COUNT, "--yes", *cluster[:2], **environ)
        assert f"the agent of {MEMORY} writes it beside its devices" in kept.err

        def rewrite(body: dict[str, object]) -> None:
            body["metadata"]["annotations"]["doslab.io/gpu-uuid"] = A100  # type: ignore[index]

        lab.cluster.registry.modify(PODS, "default", "infer", rewrite)
        differs = await colocate("checkpoint", "diff", "-o", "json", *cluster, **environ)
        [finding] = [each for each in json.loads(differs.out)["findings"] if each["code"] == "gpu-disagrees"]
        assert finding["sentence"] == (
            f"default/infer: its annotation doslab.io/gpu-uuid names {A100}, and container main was started "
            f"with {T4}"
        )
        examined = await colocate("doctor", "gpu*", *cluster, **environ)
        assert examined.code == 1, examined.out
        assert f"GPU {T4} is healthy" in examined.out
        assert "[gpu-disagrees]" in examined.out
        assert "1 node with GPUs, one unit for each resource" in examined.out


async def test_sighup_reads_mock_gpus_and_figures_again_and_a_bad_file_changes_nothing() -> None:
    async with gpu_lab() as lab:
        lab.configure(SMALL[:1])
        await lab.start_agent()
        await lab.shows(150, 1)
        lab.configure(SMALL)
        lab.hang_up()
        await lab.shows(BOTH, 2)
        lab.mocks.write_text("version: 1\ngpus: 7")
        lab.hang_up()
        await until(lambda: '"config.refused"' in lab.log(), "the refusal", 20)
        lab.configure(SMALL, dialects=[{"name": "volcano"}])
        lab.hang_up()
        await until(lambda: '"gpus.dialects"' in lab.log(), "what waits for the next start", 20)
        await lab.shows(BOTH, 2)
        assert await lab.stop_agent(signal.SIGINT) == 0
        await until(lambda: set(lab.node().values()) <= {"0"}, "the node to show no GPUs", 30)


async def test_a_kubelet_that_lost_its_checkpoint_shows_everything_again() -> None:
    async with gpu_lab() as lab:
        lab.configure(SMALL)
        await lab.start_agent()
        await lab.shows(BOTH, 2)
        lab.cluster.kubelet.paths.checkpoint.unlink()
        await lab.cluster.kubelet.restart()
        await lab.shows(BOTH, 2)
        await lab.shows(BOTH, 2, "capacity")


async def test_what_one_dialect_takes_is_gone_in_the_others() -> None:
    async with gpu_lab() as lab:
        lab.configure(MOCKS[:1], dialects=[{"name": "doslab"}, {"name": "gpushare"}])
        await lab.start_agent()
        await lab.shows(15360, 1)
        table = lab.cluster.kubelet.devices.table
        await until(lambda: len(table.healthy("aliyun.com/gpu-mem")) == 15, "fifteen GiB", 20)
        lab.create_pod("train", 4096)
        await lab.until_phase("train")
        await until(lambda: len(table.healthy("aliyun.com/gpu-mem")) == 11, "eleven GiB", 20)
        assert len(table.healthy(MEMORY)) == 15360


async def test_a_dialect_is_not_dropped_under_pods_that_hold_devices_of_it() -> None:
    """The default has changed, or `drain: true` was removed too early: what they have would be sold again."""
    async with gpu_lab() as lab:
        lab.configure(SMALL)
        await lab.start_agent()
        await lab.shows(BOTH, 2)
        lab.create_pod("train", 12)
        await lab.until_phase("train")
        assert await lab.stop_agent() == 0
        lab.configure(SMALL, dialects=[{"name": "colocate", "unit": "10Mi"}])
        await lab.start_agent()
        assert lab.agent is not None
        assert await lab.agent.wait() == 2
        assert "1 running pod of this node holds doslab.io/gpu-memory" in lab.log()
        assert "add {name: doslab, drain: true} to gpus.dialects" in lab.log()
        lab.agent = None
        lab.configure(
            SMALL, dialects=[{"name": "colocate", "unit": "10Mi"}, {"name": "doslab", "drain": True}]
        )
        await lab.start_agent()
        table = lab.cluster.kubelet.devices.table
        await until(lambda: len(table.healthy("colocate.dev/gpu-memory")) > 0, "it to be offered", 30)


async def test_a_unit_is_not_changed_under_pods_that_hold_devices_of_it() -> None:
    """Counted in the new unit, what they have would be sold again."""
    async with gpu_lab() as lab:
        lab.configure(SMALL, dialects=[{"name": "doslab", "unit": "10Mi"}])
        await lab.start_agent()
        await lab.shows(15 + 40, 2)
        lab.create_pod("train", 12)
        await lab.until_phase("train")
        assert await lab.stop_agent() == 0
        lab.configure(SMALL)
        await lab.start_agent()
        assert lab.agent is not None
        assert await lab.agent.wait() == 2
        assert "1 running pod got devices of another unit than 1 MiB" in lab.log()
        lab.agent = None
        lab.delete_pod("train")
        await until(lambda: not lab.pod("train"), "the pod to go", 20)
        await lab.start_agent()
        await lab.shows(BOTH, 2)


async def test_a_pod_gets_that_much_of_each_of_two_gpus() -> None:
    async with gpu_lab() as lab:
        lab.configure(SMALL)
        await lab.start_agent()
        await lab.shows(BOTH, 2)
        lab.create_pod("both", 100, limits={"doslab.io/gpu-count": "2", "doslab.io/gpu-core": "40"})
        await lab.until_phase("both")
        given = lab.env("both")
        assert sorted(given["NVIDIA_VISIBLE_DEVICES"].split(",")) == sorted([T4, A100])
        assert given["DOSLAB_IO_GPU_UUID"] == given["NVIDIA_VISIBLE_DEVICES"]
        report = await lab.report()
        assert [(gpu.booked, gpu.booked_cores) for gpu in report.gpus] == [(100, 40), (100, 40)]
        # A hundred ids are held, and two hundred units are gone: the marks follow the book.
        table = lab.cluster.kubelet.devices.table
        await until(lambda: len(table.healthy(MEMORY)) == BOTH - 100, "marks that follow the book", 20)


async def test_containers_get_cdi_devices_where_that_is_configured() -> None:
    async with gpu_lab() as lab:
        lab.configure(SMALL, injection="cdi")
        await lab.start_agent()
        await lab.shows(BOTH, 2)
        lab.create_pod(
            "train", 10, annotations={"doslab.io/gpu-uuid": A100, "doslab.io/gpu-assume-time": "1"}
        )
        await lab.until_phase("train")
        pod = lab.cluster.kubelet.pod("default/train").pod
        [response] = lab.cluster.kubelet.devices.injected(pod, pod.containers[0])
        assert [device.name for device in response.cdi_devices] == [f"nvidia.com/gpu={A100}"]
        assert lab.env("train")["NVIDIA_VISIBLE_DEVICES"] == "void"


async def test_gpus_that_no_message_has_room_for_end_the_agent_with_the_unit_to_use() -> None:
    async with gpu_lab() as lab:
        lab.configure([{"memory": "80Gi", "count": 8, "numa": 1}])
        await lab.start_agent()
        assert lab.agent is not None
        assert await lab.agent.wait() == 2
        assert "set the unit of gpus.dialects[doslab] to 5Mi or more" in lab.log()


async def test_an_agent_that_shares_no_gpus_says_how_it_would() -> None:
    async with gpu_lab() as lab:
        lab.configure(enabled=False)
        await lab.start_agent()
        await until(lab.socket.exists, "the control socket", 20)
        for words in (("gpu", "status"), ("mock", "gpu", "list")):
            asked = await colocate(*words, "--socket", lab.socket)
            assert asked.code == 2
            assert "gpus.enabled" in asked.err
