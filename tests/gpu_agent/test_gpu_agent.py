"""The whole way in the embedded cluster: pods, an agent with mock GPUs, and what containers are started with."""

import signal
from pathlib import Path

import yaml

from colocate.gpus.agent.control import EXPLAIN, ExplainGpuPod
from colocate.gpus.agent.mock_faults import LoseGpu, RecoverGpu, ReplaceGpu
from colocate.model.pod import Phase
from colocate.wire import control_socket as control
from tests.gpu_agent.lab import A100, MEMORY, MOCKS, T4, GpuLab, gpu_lab
from tests.support.waiting import until

SMALL = ({**MOCKS[0], "memory": "160Mi"}, {**MOCKS[1], "memory": "400Mi"})
SHARED = 560
DEMO = Path(__file__).parents[2] / "examples/gpus/doslab-pods.yaml"


async def started(lab: GpuLab, **section: object) -> None:
    """An agent with two small GPUs of different kinds."""
    devices = lab.cluster.kubelet.devices
    before = devices.socket_of(MEMORY)
    lab.configure(SMALL, stateFolder=str(lab.root / "state"), **section)
    await lab.start_agent()
    # The node's status may still be that of the agent before.
    await until(lambda: devices.socket_of(MEMORY) not in (None, before), "the registration of this agent")
    await lab.shows(SHARED, 2)


async def test_the_demo_pods_of_both_annotation_sets_run_on_their_gpu() -> None:
    async with gpu_lab() as lab:
        lab.configure(MOCKS[:1], stateFolder=str(lab.root / "state"))
        await lab.start_agent()
        await lab.shows(15360, 1)
        for body in yaml.safe_load_all(DEMO.read_text()):
            lab.create(body)
        for name, memory, assigned in (
            ("doslab-demo", "4096", "doslab.io/gpu-assigned"),
            ("doslab-demo-env-style", "8192", "DOSLAB_IO_GPU_ASSIGNED"),
        ):
            await lab.until_phase(name)
            assert lab.env(name) == {
                "NVIDIA_VISIBLE_DEVICES": T4,
                "DOSLAB_IO_GPU_UUID": T4,
                "DOSLAB_IO_GPU_RESOURCE_USED_BY_POD": memory,
                "DOSLAB_IO_GPU_RESOURCE_USED_BY_CONTAINER": memory,
                "DOSLAB_IO_GPU_RESOURCE_TOTAL": "15360",
            }
            await lab.until_annotated(name, assigned, "true")
        shares = {gpu.uuid: gpu.booked for gpu in (await lab.report()).gpus}
        assert shares == {T4: 4096 + 8192}

        await lab.cluster.kubelet.restart()
        await lab.shows(15360, 1)
        lab.hang_up()
        await until(lambda: "config.reloaded" in lab.log(), "the configuration to be read again", 30)
        await lab.shows(15360, 1)
        assert await lab.stop_agent() == 0
        await until(lambda: set(lab.node().values()) <= {"0"}, "the node to show no GPUs", 30)


async def test_a_kubelet_that_lost_its_checkpoint_gives_nobody_what_runs() -> None:
    async with gpu_lab() as lab:
        await started(lab)
        wish = {"doslab.io/gpu-uuid": T4, "doslab.io/gpu-assume-time": "1"}
        units = 100
        lab.create_pod("old", units, annotations=wish)
        await lab.until_phase("old")
        booked = {gpu.uuid: gpu.booked for gpu in (await lab.report()).gpus}
        await lab.cluster.kubelet.stop()
        lab.cluster.kubelet.paths.checkpoint.unlink()
        await lab.cluster.kubelet.start()
        await until(lambda: "gpu.forgotten" in lab.log(), "the agent to see it", 30)
        await lab.shows(SHARED, 2)
        lab.create_pod("new", units, annotations=wish)
        await lab.until_told("new", "must not start: it got a GPU that is booked for other pods")
        lab.create_pod("other", units, annotations={**wish, "doslab.io/gpu-uuid": A100})
        await lab.until_phase("other")
        await lab.until_phase("old")
        report = await lab.report()
        assert {gpu.uuid: gpu.booked for gpu in report.gpus} == booked | {A100: booked[T4]}
        assert any("lost its record of 1 running pod (default/old)" in note for note in report.notes)


async def test_an_agent_that_was_killed_finds_who_has_what_again() -> None:
    async with gpu_lab() as lab:
        await started(lab)
        lab.create_pod("p", 50, annotations={"doslab.io/gpu-uuid": A100, "doslab.io/gpu-assume-time": "1"})
        lab.create_pod("q", 70)
        for name in ("p", "q"):
            await lab.until_phase(name)
        before = {gpu.uuid: gpu.booked for gpu in (await lab.report()).gpus}
        assert sum(before.values()) == 120
        await lab.stop_agent(signal.SIGKILL)
        await lab.start_agent()
        await lab.shows(SHARED, 2)

        await until(
            lambda: (
                lab.log().count("agent.started") == 2
                and lab.log().rpartition("agent.started")[2].count("gpu.judged") == 2
            ),
            "both pods to be found",
            30,
        )
        assert {gpu.uuid: gpu.booked for gpu in (await lab.report()).gpus} == before


async def test_what_cannot_be_served_is_said_in_the_pods_events() -> None:
    async with gpu_lab() as lab:
        await started(lab)
        lab.create_pod("absent", 10, annotations={"doslab.io/gpu-uuid": "GPU-gone"})
        await lab.until_told("absent", "GPU-gone, which is not on this node")
        lab.create_pod("large", 450)
        await lab.until_told("large", f"{T4} 160 MiB and 100 cores; {A100} 400 MiB")
        lab.create_pod("count", 0, limits={"doslab.io/gpu-count": "1"})
        await lab.until_told("count", "gpu-count without doslab.io/gpu-memory and would get no GPU")
        for name in ("absent", "large"):
            await lab.until_phase(name, Phase.FAILED)
        lab.create_pod("fine", 10)
        await lab.until_phase("fine")
        found = await control.ask(lab.socket, EXPLAIN, ExplainGpuPod("fine"))
        assert any("asks for 10 of doslab.io/gpu-memory" in sentence for sentence in found.sentences)

        await lab.fault(LoseGpu(gpu=A100))
        await lab.shows(160, 1)
        await lab.fault(RecoverGpu(gpu=A100))
        await lab.shows(SHARED, 2)
        await lab.fault(ReplaceGpu(gpu=A100))
        await until(lambda: "gpu.gone" in lab.log(), "the agent to notice", 30)
        lab.create_pod("late", 10, annotations={"doslab.io/gpu-uuid": A100, "doslab.io/gpu-assume-time": "1"})
        await lab.until_told("late", f"names the GPU {A100}, which is not on this node")


async def test_a_pod_with_no_booking_is_told_who_should_have_booked() -> None:
    async with gpu_lab() as lab:
        await started(lab, unassumed="refuse")
        lab.create_pod("p", 10)
        await lab.until_phase("p", Phase.FAILED)
        await lab.until_told("p", "schedulerName: doslab-gpu-scheduler")


async def test_alike_pods_that_the_kubelet_admits_in_another_order_run_with_what_their_annotations_say() -> (
    None
):
    async with gpu_lab() as lab:
        twins = [{**SMALL[0], "uuid": f"GPU-{letter * 4}"} for letter in "ab"]
        lab.configure(twins, stateFolder=str(lab.root / "state"))
        await lab.start_agent()
        await lab.shows(2 * 160, 2)
        for number, gpu in enumerate(["GPU-aaaa", "GPU-bbbb"] * 4):
            # Times against the order in which the kubelet hears of them.
            lab.create_pod(
                f"p{number}",
                10,
                annotations={
                    "doslab.io/gpu-uuid": gpu,
                    "doslab.io/gpu-assume-time": str(4 * 10**18 - number),
                },
            )
        for number in range(8):
            await lab.until_phase(f"p{number}")

        def said() -> bool:
            return all(
                lab.annotations(f"p{number}").get("doslab.io/gpu-assigned") == "true"
                and lab.annotations(f"p{number}")["doslab.io/gpu-uuid"]
                == lab.env(f"p{number}")["NVIDIA_VISIBLE_DEVICES"]
                for number in range(8)
            )

        await until(said, "annotations that say what the pods have", 30)
        assert {gpu.booked for gpu in (await lab.report()).gpus} == {40}


async def test_a_pod_with_figures_of_another_does_not_start_and_is_told_what_to_do() -> None:
    async with gpu_lab() as lab:
        await started(lab)
        wish = {"doslab.io/gpu-uuid": T4, "doslab.io/gpu-assume-time": "1"}
        later = {**wish, "doslab.io/gpu-uuid": A100, "doslab.io/gpu-assume-time": str(4 * 10**18)}
        # The kubelet does not tell which pod it admits, and hears of the first one last.
        lab.cluster.kubelet.faults.podresources_refusal = "not today"
        release = lab.hold_back("first")
        lab.create({"metadata": {"name": "first", "annotations": wish}, "spec": _spec(10)})
        await lab.until_explained("first")
        containers = [{**_spec(10)["containers"][0], "name": name} for name in ("main", "beside")]  # type: ignore[index]
        lab.create({"metadata": {"name": "second", "annotations": later}, "spec": {"containers": containers}})
        await lab.until_told("second", f"its GPU is {A100}, and it was given {T4}")
        await lab.until_told("second", "no scheduler has booked its GPU for another pod")
        assert lab.pod("second")["status"]["phase"] == "Pending"
        release()
        await lab.until_phase("first")
        assert lab.env("first")["NVIDIA_VISIBLE_DEVICES"] == T4


def _spec(units: int) -> dict[str, object]:
    limits = {"doslab.io/gpu-memory": str(units)}
    return {"containers": [{"name": "main", "image": "busybox", "resources": {"limits": limits}}]}


async def test_pods_of_several_containers_and_an_agent_that_dies_again_and_again() -> None:
    async with gpu_lab() as lab:
        await started(lab)
        names = [f"p{number}" for number in range(12)]
        for number, name in enumerate(names):
            parts = [{**_spec(size)["containers"][0], "name": f"c{size}"} for size in (3, 2)]  # type: ignore[index]
            side = [{**_spec(3)["containers"][0], "name": "side", "restartPolicy": "Always"}]  # type: ignore[index]
            wish = {
                "doslab.io/gpu-uuid": (T4, A100)[number % 2],
                "doslab.io/gpu-assume-time": str(10**18 + number),
            }
            lab.create(
                {
                    "metadata": {"name": name, "annotations": wish},
                    "spec": {"containers": parts, "initContainers": side},
                }
            )
            if number % 4 == 3:
                lives = lab.log().count("plugin.registered")
                await _until_logged(lab, "gpu.given", lab.log().count("gpu.given") + 5)
                await lab.stop_agent(signal.SIGKILL)
                await lab.start_agent()
                await _until_logged(lab, "plugin.registered", lives + 1)
                await lab.shows(SHARED, 2)
        for name in names:
            await _until_decided(lab, name)
        # One that was asked for while nobody answered has failed, as with any device plugin; no other has.
        running = [name for name in names if lab.pod(name)["status"]["phase"] == Phase.RUNNING]
        assert len(running) >= 3, "in each of its lives it has let one start"
        for name in running:
            assert lab.env(name)["NVIDIA_VISIBLE_DEVICES"] == lab.annotations(name)["doslab.io/gpu-uuid"]
        booked = {gpu.uuid: gpu.booked for gpu in (await lab.report()).gpus}
        assert booked[T4] <= 160
        assert booked[A100] <= 400
        for name in names:
            lab.delete_pod(name)

        def all_free() -> bool:
            return all(not lab.pod(name) for name in names)

        await until(all_free, "all pods to be gone", 60)
        lab.create_pod("whole", 160, annotations={"doslab.io/gpu-uuid": T4, "doslab.io/gpu-assume-time": "1"})
        await lab.until_phase("whole")


async def _until_decided(lab: GpuLab, name: str) -> None:
    def decided() -> bool:
        return lab.pod(name)["status"].get("phase") in (Phase.RUNNING, Phase.FAILED) or any(
            "must not start" in event for event in lab.events(name)
        )

    await until(decided, f"{name} to run or to be refused", 60)


async def _until_logged(lab: GpuLab, event: str, times: int) -> None:
    await until(lambda: lab.log().count(event) >= times, f"{event} in the log {times} times", 30)
