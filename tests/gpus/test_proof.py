"""Whose an answer really was: proven, swapped or condemned before a container starts."""

import msgspec
import pytest

from colocate.gpus import (
    DOSLAB,
    VISIBLE,
    AnswerKey,
    AnswerState,
    Gem,
    GpuAnswers,
    GpuHolding,
    GpuInjection,
    GpuMatch,
    GpuPod,
    GpuRecords,
    GpuSettings,
    HamiCore,
    asks_of,
    dialect,
    injection,
    overridden,
    settle,
    slices_of,
)
from colocate.model.gpu import Gpu, GpuInventory
from tests.gpus.node import TWO, Node, annotated, booked, gpu_pod

A, B = "GPU-aaaa", "GPU-bbbb"
UUID, ASSIGNED = "doslab.io/gpu-uuid", "doslab.io/gpu-assigned"
KEY_OF_P = AnswerKey("p", DOSLAB.memory, "c0")


def test_a_container_with_its_own_gpu_may_start_and_its_pod_is_assigned() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1))
    assert node.admit("p") is None
    assert not node.start("p")
    assert node.flags("p") == {ASSIGNED: "true"}
    node.write_flags()
    assert node.flags("p") == {}


def test_nothing_is_assigned_before_it_is_proven() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1))
    assert node.admit("p") is None
    assert node.flags("p") == {}


def test_pods_that_were_taken_for_each_other_and_are_alike_are_swapped() -> None:
    node = Node()
    node.add(gpu_pod("first", 4, gpus=A, time=1), gpu_pod("second", 4, gpus=B, time=2))
    assert node.admit("second") is None  # The kubelet has its own order.
    assert node.admit("first") is None
    assert (node.gpus("second"), node.gpus("first")) == (A, B)
    assert not node.start("second")
    assert not node.start("first")
    node.write_flags()
    assert node.api["second"].annotations[UUID] == A
    assert node.api["first"].annotations[UUID] == B
    assert {pod.annotations[ASSIGNED] for pod in node.api.values()} == {"true"}
    assert node.answers.book(TWO).free(A).memory == node.answers.book(TWO).free(B).memory == 12


def test_swapped_bookings_are_sealed_anew() -> None:
    node = Node()
    node.add(booked(gpu_pod("first", 4), [A], time=1), booked(gpu_pod("second", 4), [B], time=2))
    assert node.admit("second") is None
    assert not node.start("second")
    node.write_flags()
    node.answers = GpuAnswers()  # An agent that starts now believes the annotations alone.
    assert not node.start("second")
    assert node.admit("first") is None
    assert node.gpus("first") == B
    assert not node.start("first")


def test_pods_of_several_containers_are_swapped_as_a_whole() -> None:
    node = Node()
    node.add(gpu_pod("first", 4, 3, gpus=A, time=1), gpu_pod("second", 4, 3, gpus=B, time=2))
    assert node.admit("second") is None
    assert node.admit("first") is None
    for uid, gpu in (("second", A), ("first", B)):
        for container in ("c0", "c1"):
            assert node.gpus(uid, container) == gpu
            assert not node.start(uid, container), (uid, container)


MIXED = GpuInventory((TWO.gpus[0], Gpu(uuid=B, index=1, memory=16, model="A100")))


WISH = gpu_pod("one", 4, gpus=A, time=1)
OURS = booked(gpu_pod("one", 4), [A])


def taken_for(node: Node, one: GpuPod, two: GpuPod) -> None:
    """The kubelet admits `two`, and the agent answers for `one`."""
    node.add(one, two)
    node.blind.add("two")
    node.allocate("two")
    node.blind.clear()
    assert node.gpus("two") == A


@pytest.mark.parametrize(
    ("inventory", "one", "two"),
    [
        (MIXED, WISH, gpu_pod("two", 4, gpus=B, time=2)),
        (TWO, WISH, gpu_pod("two", 4, gpus=B, time=2, cores=10)),
        (TWO, OURS, gpu_pod("two", 4, gpus=B, time=2)),
        (TWO, WISH, booked(gpu_pod("two", 4), [B])),
        (TWO, OURS, booked(gpu_pod("two", 4, cores=10), [B])),
    ],
    ids=["another kind of GPU", "other cores", "meant for a booked one", "booked itself", "both booked"],
)
def test_a_pod_keeps_the_gpu_of_another_where_there_is_room_and_it_is_as_good_as_booked(
    inventory: GpuInventory, one: GpuPod, two: GpuPod
) -> None:
    node = Node(inventory)
    taken_for(node, one, two)
    assert not node.start("two")
    assert node.flags("two")[UUID] == A
    # Nobody pays for it: the pod that the GPU was for gets it when its own turn comes.
    assert node.admit("one") is None
    assert node.gpus("one") == A
    assert not node.start("one")
    assert node.answers.book(node.inventory).free(A).memory == 8


@pytest.mark.parametrize(
    ("inventory", "one", "two", "spared"),
    [
        (TWO, WISH, gpu_pod("two", 4, 4, gpus=B, time=2), True),
        (TWO, OURS, gpu_pod("two", 4, 4, gpus=B, time=2), False),
        (MIXED, WISH, booked(gpu_pod("two", 4), [B]), True),
        (MIXED, OURS, booked(gpu_pod("two", 4), [B]), False),
        (TWO, WISH, gpu_pod("two", 4, gpus="GPU-gone", time=2), True),
    ],
    ids=["other figures", "of a booked one", "booked on another kind", "both", "its wish cannot be"],
)
def test_a_pod_that_cannot_keep_it_must_not_start_and_ends_only_for_one_that_is_booked(
    inventory: GpuInventory, one: GpuPod, two: GpuPod, spared: bool
) -> None:
    node = Node(inventory)
    taken_for(node, one, two)
    reason = node.start("two")
    assert "pod default/two must not start: " in reason
    assert f"it was given {A}, which was meant for pod default/one" in reason
    assert node.answers.by_key[AnswerKey("two", DOSLAB.memory, "c0")].spared is spared
    assert node.flags("two") == {}
    assert node.admit("one") is None
    assert node.gpus("one") == A
    assert not node.start("one")
    assert node.start("two") == reason
    assert node.answers.book(node.inventory).free(A).memory == 12


def test_a_pod_that_was_spared_starts_once_there_is_room() -> None:
    node = Node()
    node.add(gpu_pod("two", 4, gpus=B, time=2))
    node.allocate("two")
    node.add(gpu_pod("wish", 14, gpus=A, time=1))
    node.allocate("wish", stored=False)  # The agent counts it, and the kubelet may never hold it.
    key = AnswerKey("two", DOSLAB.memory, "c0")
    node.answers = node.answers.without([key])
    injected = node.held[key].injected
    assert injected is not None
    wrong = {**injected.envs, VISIBLE: A, "DOSLAB_IO_GPU_UUID": A}
    node.held[key] = msgspec.structs.replace(
        node.held[key], injected=msgspec.structs.replace(injected, envs=wrong)
    )
    assert "booked for other pods" in node.start("two")
    assert node.answers.by_key[key].spared
    node.delete("wish")
    assert not node.start("two")


@pytest.mark.parametrize(
    "change",
    [
        {UUID: "nonsense"},
        {UUID: B, "doslab.io/gpu-assume-time": "x"},
        {"colocate.dev/gpu-count": "2"},
        {"colocate.dev/gpu-count": "x"},
    ],
)
def test_a_pod_that_nobody_booked_is_judged_by_what_it_was_answered(change: dict[str, str]) -> None:
    """Its owner patches it between Allocate and start: that must not spend the deletions of the node."""
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1, owner="ReplicaSet"))
    assert node.admit("p") is None
    node.api["p"] = annotated(node.api["p"], change)
    assert not node.start("p")
    assert node.answers.by_key[KEY_OF_P].state is AnswerState.PROVEN
    assert node.answers.book(TWO).free(A).memory == 12
    node.write_flags()
    assert node.api["p"].annotations[UUID] == A


@pytest.mark.parametrize("change", [{UUID: "nonsense"}, {"colocate.dev/gpu-count": "x"}])
def test_a_pod_is_spared_for_what_its_owner_did_to_it_alone(change: dict[str, str]) -> None:
    """An agent that starts anew does not know what it answered."""
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1, owner="ReplicaSet"))
    assert node.admit("p") is None
    node.api["p"] = annotated(node.api["p"], change)
    node.crash()
    assert "must not start" in node.start("p")
    assert node.answers.by_key[KEY_OF_P].spared


def test_a_pod_is_spared_where_its_room_is_of_no_booked_pod() -> None:
    node = Node()
    node.add(gpu_pod("runs", 14, gpus=A, time=1))
    assert node.admit("runs") is None
    assert not node.start("runs")
    node.add(gpu_pod("p", 4, gpus=B, time=2))
    assert node.admit("p") is None
    injected = node.held[KEY_OF_P].injected
    assert injected is not None
    envs = {**injected.envs, VISIBLE: A, "DOSLAB_IO_GPU_UUID": A}
    node.held[KEY_OF_P] = msgspec.structs.replace(
        node.held[KEY_OF_P], injected=msgspec.structs.replace(injected, envs=envs)
    )
    node.crash()
    assert "booked for other pods" in node.start("p")
    assert node.answers.by_key[KEY_OF_P].spared
    node.add(booked(gpu_pod("ours", 2), [A]))
    node.crash()
    assert "booked for other pods" in node.start("p")
    assert not node.answers.by_key[KEY_OF_P].spared


def test_a_condemned_pod_frees_all_when_it_is_deleted() -> None:
    node = Node(MIXED)
    taken_for(node, OURS, booked(gpu_pod("two", 4), [B]))
    assert node.start("two")
    node.delete("two")
    node.settle()
    assert list(node.answers) == []


def test_a_mirror_claims_nothing() -> None:
    node = Node()
    node.add(booked(annotated(gpu_pod("ghost", 16), {"kubernetes.io/config.mirror": "x"}), [A]))
    node.add(gpu_pod("victim", 16))
    assert node.admit("victim") is None
    assert not node.start("victim")
    assert node.gpus("victim") == A, "nothing is kept for what no kubelet runs"


def test_one_that_nobody_booked_keeps_what_it_got_and_is_told() -> None:
    node = Node()
    node.add(gpu_pod("wish", 4, gpus=A, time=1), gpu_pod("free", 4))
    assert node.admit("free") is None
    assert node.gpus("free") == A
    assert not node.start("free")
    assert node.flags("free") == {UUID: A, ASSIGNED: "true", "doslab.io/gpu-assume-time": "5"}
    assert node.admit("wish") is None
    assert not node.start("wish")


def test_one_that_nobody_booked_does_not_keep_what_a_scheduler_of_ours_booked() -> None:
    node = Node()
    node.add(booked(gpu_pod("ours", 10), [A]), gpu_pod("free", 10))
    node.allocate("free")
    assert "booked for other pods" in node.start("free")
    assert node.admit("ours") is None
    assert not node.start("ours")


def test_a_container_that_restarts_beside_a_starting_pod_keeps_its_own_limit() -> None:
    """Users of HAMi saw 30480 MiB given to a container that had asked for 1024."""
    gpus = GpuInventory((Gpu(uuid=A, index=0, memory=32768),))
    node = Node(gpus, GpuSettings(hami_core=HamiCore()))
    node.add(gpu_pod("old", 1024, gpus=A, time=1))
    assert node.admit("old") is None
    assert not node.start("old")
    node.add(gpu_pod("new", 30480, gpus=A, time=2))
    assert node.admit("new") is None
    node.api["old"] = gpu_pod("old", 1024, gpus=A, time=1, run=True)
    for agent in (node.answers, GpuAnswers()):  # Also where the agent is new.
        node.answers = agent
        assert not node.start("old")
        assert not node.start("new")
    limits = {
        uid: held.injected.envs["CUDA_DEVICE_MEMORY_LIMIT_0"]
        for (uid, held) in ((key.uid, held) for key, held in node.held.items())
        if held.injected
    }
    assert limits == {"old": "1024m", "new": "30480m"}


def test_a_restart_is_not_refused_because_somebody_changed_an_annotation() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1))
    assert node.admit("p") is None
    assert not node.start("p")
    node.api["p"] = annotated(gpu_pod("p", 4, gpus=B, time=1, run=True), {})
    for agent in (node.answers, GpuAnswers()):
        node.answers = agent
        assert not node.start("p")
        assert node.answers.book(TWO).free(A).memory == 12


def test_after_a_crash_all_is_rebuilt_from_what_the_kubelet_keeps() -> None:
    node = Node()
    node.add(
        gpu_pod("p", 4, 2, init=(5,), gpus=A, time=1),
        gpu_pod("q", 3, gpus=f"{A},{B}", time=2, count=2),
        booked(gpu_pod("r", 6, cores=20), [B]),
    )
    for uid in ("p", "q", "r"):
        assert node.admit(uid) is None
    node.settle()
    before = node.answers.book(TWO)
    node.answers = GpuAnswers()
    node.settle()
    after = node.answers.book(TWO)
    assert after.used == before.used
    assert after.pods.keys() == before.pods.keys()


def test_what_cannot_be_read_back_counts_by_its_ids_while_the_api_is_silent() -> None:
    slices = slices_of(TWO.gpus, 1)
    key = AnswerKey("p", DOSLAB.memory, "c0")
    held = GpuHolding(key=key, ids=frozenset(slices.ids[B][:5]), injected=None)
    answers = settle(GpuRecords(None, (held,)), GpuAnswers(), TWO, GpuSettings(), 0.0, gpu_of=slices.gpu_of)
    assert answers.book(TWO).free(B).memory == 11


def test_a_gpu_follows_the_annotation_and_not_the_ids() -> None:
    """Fragmented ids: slices named after one GPU, memory of the other."""
    node = Node()
    node.add(*(gpu_pod(f"p{n}", n, gpus=A if n % 2 else B, time=n) for n in (1, 2, 3, 4, 5)))
    for n in (1, 2, 3, 4, 5):
        assert node.admit(f"p{n}") is None
    node.delete("p2")
    node.delete("p3")
    node.add(gpu_pod("q", 6, gpus=B, time=9))
    assert node.admit("q") is None
    assert not node.start("q")
    slices = slices_of(TWO.gpus, 1)
    ids = node.held[AnswerKey("q", "doslab.io/gpu-memory", "c0")].ids
    assert {slices.gpu_of(id) for id in ids} != {B}
    book = node.answers.book(TWO)
    assert (book.free(A).memory, book.free(B).memory) == (16 - 1 - 5, 16 - 4 - 6)


@pytest.mark.parametrize("agent_lives", [True, False])
def test_a_pod_that_has_run_does_not_run_on_with_the_gpu_of_another(agent_lives: bool) -> None:
    """A kubelet that lost its checkpoint asks for running pods anew, in an order of its own."""
    gpus = GpuInventory(
        (Gpu(uuid=A, index=0, memory=16, model="T4"), Gpu(uuid=B, index=1, memory=40, model="A100"))
    )
    node = Node(gpus)
    node.add(gpu_pod("a", 4, gpus=A, time=1), gpu_pod("b", 4, gpus=B, time=2))
    for uid in ("a", "b"):
        assert node.admit(uid) is None
        assert not node.start(uid)
    node.add(gpu_pod("a", 4, gpus=A, time=1, run=True), gpu_pod("b", 4, gpus=B, time=2, run=True))
    node.restart_kubelet(checkpoint=False)
    if not agent_lives:
        node.crash()
    assert node.admit("b") is None
    assert node.gpus("b") == A, "the guess is not wrong, and this test shows nothing"
    assert "must not start" in node.start("b")
    if agent_lives:
        assert node.answers.book(gpus).used[B].memory == 4, "it runs on where it is"
        assert node.answers.book(gpus).used[A].memory == 4
        assert node.admit("a") is None
        assert node.gpus("a") == A
        assert not node.start("a")


@pytest.mark.parametrize("reverse", [False, True])
def test_a_kubelet_that_lost_its_checkpoint_is_answered_for_running_pods_what_they_run_with(
    reverse: bool,
) -> None:
    """Nobody has booked: the agent itself has chosen, and would choose otherwise now."""
    node = Node()
    node.add(*(gpu_pod(f"p{n}", n, created=n) for n in (3, 5, 7, 9)))
    before = {}
    for n in (9, 7, 5, 3):
        assert node.admit(f"p{n}") is None
        assert not node.start(f"p{n}")
        before[f"p{n}"] = node.gpus(f"p{n}")
    assert set(before.values()) == {A, B}
    node.add(*(gpu_pod(f"p{n}", n, created=n, run=True) for n in (3, 5, 7, 9)))
    node.restart_kubelet(checkpoint=False)
    node.add(gpu_pod("new", 8, time=1, gpus=A))
    refused = node.admit("new")
    assert refused is not None
    assert "MiB free" in refused.sentence, (
        "what runs is not given to others, whatever the kubelet counts as free"
    )
    node.delete("new")
    for n in sorted((3, 5, 7, 9), reverse=reverse):
        assert node.admit(f"p{n}") is None
    assert {uid: node.gpus(uid) for uid in before} == before
    assert not any(node.start(uid) for uid in before)
    assert not node.answers.lost
    assert node.answers.book(TWO).free(A).memory + node.answers.book(TWO).free(B).memory == 32 - 24


def test_a_new_pod_goes_before_one_that_runs_and_is_forgotten() -> None:
    """Newer kubelets do not ask for what runs: whoever waits is more likely the one that is asked for."""
    node = Node()
    node.add(gpu_pod("old", 4, gpus=A, time=1, created=1))
    assert node.admit("old") is None
    assert not node.start("old")
    node.restart_kubelet(checkpoint=False)
    node.add(gpu_pod("new", 4, gpus=B, time=2, created=2))
    assert node.admit("new") is None
    assert node.gpus("new") == B
    assert not node.start("new")
    assert node.answers.book(TWO).free(A).memory == 12
    node.delete("old")
    node.settle()
    assert node.answers.book(TWO).free(A).memory == 16
    assert not node.answers.lost


def test_a_kubelet_that_restarts_with_its_checkpoint_has_forgotten_nothing() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1))
    assert node.admit("p") is None
    assert not node.start("p")
    node.restart_kubelet(checkpoint=True)
    node.settle()
    assert not node.answers.lost
    assert not node.start("p")


def test_a_kubelet_that_lost_its_checkpoint_does_not_make_running_pods_free() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1))
    assert node.admit("p") is None
    assert not node.start("p")
    node.restart_kubelet(checkpoint=False)
    node.settle()
    assert node.answers.book(TWO).free(A).memory == 12


def test_while_the_api_is_silent_nothing_is_forgotten() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1))
    assert node.admit("p") is None
    kept = settle(GpuRecords(None, None), node.answers, TWO, node.settings, 1000.0)
    assert kept == node.answers


@pytest.mark.parametrize(
    "settings", [GpuSettings(injection=GpuInjection.CDI), GpuSettings(gem=Gem(ip="10.0.0.1", port=50051))]
)
def test_what_is_injected_is_read_back(settings: GpuSettings) -> None:
    node = Node(settings=settings)
    node.add(gpu_pod("p", 4, gpus=B, time=1, annotations={"doslab.io/gem-podmanager-port": "50052"}))
    result = node.allocate("p")
    assert isinstance(result, GpuMatch)
    node.answers = GpuAnswers()
    assert not node.start("p")
    [answer] = node.answers
    assert answer.gpus == (B,)
    assert answer.state is AnswerState.PROVEN
    assert answer.injected is not None
    if settings.gem:
        assert answer.injected.envs["POD_MANAGER_PORT"] == "50052"
        assert answer.injected.envs["POD_NAME"] == "default/p"
        assert answer.injected.envs["LD_PRELOAD"] == "/kubeshare/library/libgemhook.so.1"
    else:
        assert answer.injected.cdi == (f"nvidia.com/gpu={B}",)
        assert answer.injected.envs["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(("ip", "port"), [("10.0.0.1; rm", "0"), ("", "70000"), ("::g", "12345678901")])
def test_what_gem_is_told_by_annotations_is_an_address_and_a_port_or_nothing(ip: str, port: str) -> None:
    node = Node(settings=GpuSettings(gem=Gem(ip="10.9.9.9", port=7)))
    node.add(
        gpu_pod("p", 4, annotations={"doslab.io/gem-scheduler-ip": ip, "doslab.io/gem-podmanager-port": port})
    )
    result = node.allocate("p")
    assert isinstance(result, GpuMatch)
    assert result.answer.injected is not None
    envs = result.answer.injected.envs
    assert (envs["POD_MANAGER_IP"], envs["POD_MANAGER_PORT"]) == ("10.9.9.9", "7")


def test_hami_core_gets_its_library_its_limits_and_a_folder_for_each_container() -> None:
    node = Node(settings=GpuSettings(hami_core=HamiCore(oversubscribe=True)))
    node.add(gpu_pod("p", 4, gpus=f"{A},{B}", time=1, cores=30, count=2))
    result = node.allocate("p")
    assert isinstance(result, GpuMatch)
    injected = result.answer.injected
    assert injected is not None
    assert {name: value for name, value in injected.envs.items() if name.startswith("CUDA")} == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "4m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/vgpu/share.cache",
        "CUDA_OVERSUBSCRIBE": "true",
    }
    mounts = {mount.container_path: (mount.host_path, mount.read_only) for mount in injected.mounts}
    assert mounts == {
        "/usr/local/vgpu/libvgpu.so": ("/usr/local/vgpu/libvgpu.so", True),
        "/etc/ld.so.preload": ("/usr/local/vgpu/ld.so.preload", True),
        "/tmp/vgpu": ("/usr/local/vgpu/containers/p_c0", False),
        "/tmp/vgpulock": ("/tmp/vgpulock", False),
    }


def test_what_the_kubelet_keeps_is_believed_over_what_the_agent_remembers() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1))
    node.allocate("p")
    key = AnswerKey("p", "doslab.io/gpu-memory", "c0")
    injected = node.held[key].injected
    assert injected is not None
    wrong = msgspec.structs.replace(injected, envs={**injected.envs, "NVIDIA_VISIBLE_DEVICES": B})
    node.held[key] = msgspec.structs.replace(node.held[key], injected=wrong)
    assert f"its GPU is {A}, and it was given {B}" in node.start("p")


def test_an_envelope_with_other_figures_must_not_start() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1))
    node.allocate("p")
    key = AnswerKey("p", "doslab.io/gpu-memory", "c0")
    injected = node.held[key].injected
    assert injected is not None
    wrong = msgspec.structs.replace(
        injected, envs={**injected.envs, "DOSLAB_IO_GPU_RESOURCE_USED_BY_CONTAINER": "15"}
    )
    node.held[key] = msgspec.structs.replace(node.held[key], injected=wrong)
    assert "with figures of another request or of other settings" in node.start("p")


def test_what_runs_in_one_dialect_is_counted_before_another_is_judged_anew() -> None:
    share = dialect("gpushare", 1)
    node = Node(settings=GpuSettings(dialects=(DOSLAB, share)))
    node.add(gpu_pod("runs", 10, gpus="0", time=1, dialect=share))
    assert node.admit("runs", share) is None
    assert not node.start("runs", dialect=share)
    node.add(gpu_pod("p", 10, gpus=B, time=1))
    assert node.admit("p") is None
    node.api["p"] = gpu_pod("p", 10, gpus=A, time=1)
    key = AnswerKey("p", DOSLAB.memory, "c0")
    injected = node.held[key].injected
    assert injected is not None
    envs = {**injected.envs, "NVIDIA_VISIBLE_DEVICES": A, "DOSLAB_IO_GPU_UUID": A}
    node.held[key] = msgspec.structs.replace(
        node.held[key], injected=msgspec.structs.replace(injected, envs=envs)
    )
    node.crash()
    assert "booked for other pods" in node.start("p")
    assert not node.start("runs", dialect=share)


@pytest.mark.parametrize(
    ("names", "settings", "found"),
    [
        ([VISIBLE, "PATH"], GpuSettings(), [VISIBLE]),
        (["DOSLAB_IO_GPU_UUID", "DOSLAB_IO_GPU_RESOURCE_TOTAL"], GpuSettings(), None),
        (["CUDA_DEVICE_MEMORY_LIMIT_0", "LD_PRELOAD", "POD_NAME"], GpuSettings(), []),
        (["LD_PRELOAD", "POD_NAME"], GpuSettings(gem=Gem()), None),
        (["CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_5"], GpuSettings(hami_core=HamiCore()), None),
        (["CUDA_DEVICE_SM_LIMIT", "CUDA_OVERSUBSCRIBE"], GpuSettings(hami_core=HamiCore()), None),
        (["GPU_CORE_UTILIZATION_POLICY", "CUDA_REDIRECT"], GpuSettings(hami_core=HamiCore()), None),
        ([VISIBLE], GpuSettings(injection=GpuInjection.CDI), None),
        (["NVIDIA_DRIVER_CAPABILITIES"], GpuSettings(), []),
    ],
)
def test_variables_of_a_pod_that_go_before_what_it_is_given_are_found(
    names: list[str], settings: GpuSettings, found: list[str] | None
) -> None:
    """None: all of them."""
    env = [{"name": name, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}} for name in names]
    limits = {"limits": {DOSLAB.memory: 4}}
    spec = {
        "containers": [{"name": "c0", "resources": limits}],
        "initContainers": [{"name": "i0", "env": env, "resources": limits}],
    }
    pod = msgspec.convert({"metadata": {"uid": "p"}, "spec": spec}, GpuPod)
    asks = asks_of(pod, DOSLAB).containers
    given = injection(pod, asks[0], asks, TWO.gpus[:1], DOSLAB, settings)
    assert list(overridden(pod, "i0", given, settings)) == (names if found is None else found)
    assert not overridden(pod, "c0", given, settings), "another container's env is its own"


def test_a_pod_that_runs_with_more_containers_than_may_ask_by_now_keeps_what_it_has() -> None:
    node = Node()
    node.add(gpu_pod("p", *[1] * 10, gpus=A, time=1, run=True))
    assert node.admit("p") is None
    # It has ten more, from before there was a bound.
    node.add(gpu_pod("p", *[1] * 20, gpus=A, time=1, run=True))
    first = node.held[AnswerKey("p", DOSLAB.memory, "c0")]
    for place, id in enumerate(slices_of(TWO.shared, 1).ids[B][:10], start=10):
        key = AnswerKey("p", DOSLAB.memory, f"c{place}")
        node.held[key] = GpuHolding(key=key, ids=frozenset({id}), injected=first.injected)
    node.answers = GpuAnswers()
    node.settle()
    assert {each.state for each in node.answers} == {AnswerState.PROVEN}
    assert len(node.answers.by_key) == 20
    assert node.answers.book(TWO).free(A).memory == 0
