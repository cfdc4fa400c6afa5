"""Pods that ask for GPUs in the embedded cluster: its scheduler asks the extender, which chooses and binds."""

import asyncio
import base64
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Flags, find
from colocate.cluster.resources import NODES, PODS
from colocate.cluster.usage import PrometheusSettings, UsageSettings
from colocate.gpus import DOSLAB, SEAL, GpuPod, GpuWish, asks_of, wish_of
from colocate.lab.api.kubeconfig import Credential
from colocate.lab.api.resources import PODS as LAB_PODS
from colocate.lab.api.resources import SECRETS
from colocate.model.values import Seconds
from colocate.scheduler.gpus.sealing import SealingKeys
from colocate.scheduler.gpus.section import GpuKeySecret, GpuPolicy, GpuSection
from colocate.scheduler.process import running
from colocate.scheduler.settings import Act
from colocate.wire.extender_questions import BindingAsked
from tests.gpu_scheduler.clusters import SIZE, GpuLab, gpu_lab, gpu_pod, gpus, uuid
from tests.scheduler.pretending import pretending
from tests.support.prometheus import free_port
from tests.support.rights import account_token, apply
from tests.support.waiting import until


async def test_the_seeds_pod_is_scheduled_with_no_annotation_by_hand() -> None:
    """`schedulerName: doslab-gpu-scheduler`, one GPU by memory and cores."""
    async with gpu_lab(("a", 2)) as lab, lab.scheduling():
        await lab.create(gpu_pod("mnist", 8192, cores=30))
        (pod,) = await lab.bound("mnist")
    assert pod.node == "a"
    assert pod.gpus in (uuid("a", 0), uuid("a", 1))
    assert pod.annotations["doslab.io/gpu-assigned"] == "false"
    assert int(pod.annotations["doslab.io/gpu-assume-time"]) > 10**18


async def test_the_other_set_of_annotations_is_answered_in_kind() -> None:
    async with gpu_lab(("a", 1)) as lab, lab.scheduling():
        await lab.create(gpu_pod("old", 1024, annotations={"DOSLAB_IO_GPU_ASSIGNED": "false"}))
        (pod,) = await lab.bound("old")
    assert pod.annotations["DOSLAB_IO_GPU_UUID"] == uuid("a", 0)
    assert "doslab.io/gpu-uuid" not in pod.annotations


async def test_a_burst_fills_every_gpu_and_oversells_none() -> None:
    async with gpu_lab(("a", 2), ("b", 4)) as lab, lab.scheduling() as process:
        names = [f"p{number}" for number in range(12)]
        await lab.create(*(gpu_pod(name, SIZE // 2, cores=50) for name in names))
        pods = await lab.bound(*names)
        assert Counter(pod.gpus for pod in pods) == {
            uuid(node, index): 2 for node, count in (("a", 2), ("b", 4)) for index in range(count)
        }
        await lab.create(gpu_pod("late", 1024))
        await until(lambda: "GPU" in lab.why("late") or "Insufficient" in lab.why("late"), "a reason")
        assert not lab.pod("late").node
        await lab.client.delete(PODS, "p0", "default", grace=0)
        await lab.bound("late")
        assert process.gpus is not None
        assert not any(book.oversold for book in process.gpus.book.books.values())


async def test_whole_and_several_gpus_beside_shares() -> None:
    async with gpu_lab(("a", 4), cpu="64") as lab, lab.scheduling():
        await lab.create(
            gpu_pod("share", 4096), gpu_pod("pair", SIZE, count=2, cores=100), gpu_pod("whole", SIZE)
        )
        share, pair, whole = await lab.bound("share", "pair", "whole")
    taken = [share.gpus, *pair.gpus.split(","), whole.gpus]
    assert len(set(taken)) == 4


async def test_a_pod_gets_the_model_that_it_names() -> None:
    async with gpu_lab(("a", 1), ("b", 1)) as lab, lab.scheduling():
        await lab.announce(gpus("b", 1, model="NVIDIA A100-SXM4-40GB"), "b")
        await lab.create(gpu_pod("picky", 1024, annotations={"colocate.dev/gpu-models": "A100|H100"}))
        (pod,) = await lab.bound("picky")
    assert pod.node == "b"


async def test_a_hot_node_loses_though_its_gpu_fits_best() -> None:
    """The two extenders' scores add up by their weights: with --points 25, a small difference of GPUs gives way."""
    uses = {"a": (10.0, 95.0), "b": (10.0, 10.0)}
    async with pretending(uses) as prometheus, gpu_lab(("a", 1), ("b", 1), loads=True) as lab:
        config = msgspec.structs.replace(
            lab.config(Act.EXTENDER, Act.GPUS),
            usage=UsageSettings(prometheus=PrometheusSettings(url=prometheus.url), interval=Seconds(0.2)),
        )
        async with lab.scheduling(config) as process:
            await until(lambda: not process.judge.unready(), "samples")
            for name in ("p", "q"):
                # One by one: until its bind comes, a GPU is kept on the node that is best by GPUs alone, and packing
                # would draw the next pod there.
                await lab.create(gpu_pod(name, SIZE // 4))
                (pod,) = await lab.bound(name)
                assert pod.node == "b"
            await lab.create(*(gpu_pod(name, SIZE) for name in ("r",)))
            (last,) = await lab.bound("r")
            assert last.node == "a", "no other GPU is free, and scores keep nobody from running"


@pytest.mark.parametrize("policy", GpuPolicy)
async def test_every_policy_schedules(policy: GpuPolicy) -> None:
    async with gpu_lab(("a", 2), ("b", 2)) as lab, lab.scheduling(lab.config(policy=policy)):
        names = [f"p{number}" for number in range(4)]
        await lab.create(*(gpu_pod(name, SIZE) for name in names))
        assert len({pod.gpus for pod in await lab.bound(*names)}) == 4


async def test_a_sick_gpu_gets_no_pod_until_it_is_well() -> None:
    async with gpu_lab(("a", 2)) as lab, lab.scheduling():
        await lab.announce(gpus("a", 2, sick=(0,)), "a")
        await lab.create(gpu_pod("first", SIZE))
        (first,) = await lab.bound("first")
        assert first.gpus == uuid("a", 1)
        await lab.create(gpu_pod("second", SIZE))
        await until(lambda: "no GPU that fits is free" in lab.why("second"), "the reason in an event")
        await lab.announce(gpus("a", 2), "a")
        await lab.create(gpu_pod("third", SIZE))
        (third,) = await lab.bound("third")
        assert third.gpus == uuid("a", 0)


async def test_a_node_whose_agent_announces_nothing_is_named() -> None:
    async with gpu_lab(("a", 1)) as lab, lab.scheduling():
        await lab.client.patch(NODES, "a", {"metadata": {"annotations": {"colocate.dev/gpus": None}}})
        await lab.create(gpu_pod("pod", 16))
        await until(lambda: "its agent announces no GPUs" in lab.why("pod"), "the reason in an event")


async def test_a_nonsense_request_is_told_in_the_pods_events() -> None:
    async with gpu_lab(("a", 1)) as lab, lab.scheduling():
        pod = gpu_pod("odd", 16)
        limits = pod["spec"]["containers"][0]["resources"]["limits"]  # type: ignore[index]
        del limits["doslab.io/gpu-memory"]
        limits["doslab.io/gpu-count"] = "1"
        await lab.create(pod)
        await until(lambda: "without doslab.io/gpu-memory" in lab.why("odd"), "the reason in an event")


async def test_bookings_are_sealed_with_the_key_of_the_agents(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef\n")
    async with gpu_lab(("a", 1)) as lab, lab.scheduling(lab.config(key_file=key)):
        await lab.create(gpu_pod("sealed", 1024))
        (pod,) = await lab.bound("sealed")
    assert len(pod.annotations[SEAL]) == len("1:") + 64


def key_of(lab: GpuLab) -> bytes:
    stored = lab.cluster.registry.find(SECRETS, "kube-system", "colocate-gpu-key")
    assert stored is not None
    return base64.b64decode(stored.body["data"]["keys"])


@pytest.mark.parametrize("empty", [False, True])
async def test_where_no_file_is_named_the_key_is_made_once_in_the_cluster(empty: bool) -> None:
    """Also in the empty Secret of the manifest; and of several replicas that start at once, all have the same."""
    async with gpu_lab(("a", 2)) as lab:
        if empty:
            body = {"metadata": {"name": "colocate-gpu-key"}, "type": "Opaque"}
            lab.cluster.registry.create(SECRETS, "kube-system", body)
        several = [SealingKeys(GpuSection(), lab.client) for _ in range(5)]
        found = await asyncio.gather(*(each.refresh() for each in several))
        assert set(found) == {tuple(key_of(lab).split())}
        async with lab.scheduling() as process:
            assert process.gpus is not None
            assert process.gpus.sealing.keys == found[0]
            await lab.create(gpu_pod("one", 1024))
            await lab.bound("one")
        before = key_of(lab)
        async with lab.scheduling() as process:
            assert process.gpus is not None
            await lab.create(gpu_pod("two", 1024))
            await lab.bound("two")
            asks = [ask_of(lab, name) for name in ("one", "two")]
            assert all(wish.sealed for wish in asks)
        assert key_of(lab) == before


def ask_of(lab: GpuLab, name: str) -> GpuWish:
    body = next(
        stored.body for stored in lab.cluster.store.items(LAB_PODS.storage) if stored.key.name == name
    )
    pod = msgspec.convert(body, GpuPod)
    keys = tuple(key_of(lab).split())
    return wish_of(pod, DOSLAB, asks_of(pod, DOSLAB).containers, gpus("a", 2), keys)


async def test_a_scheduler_that_may_not_read_the_secret_binds_unsealed_and_says_so() -> None:
    async with gpu_lab(("a", 1)) as lab:
        apply(lab.cluster.server, "scheduler/rbac.yaml", "scheduler/gpus-rbac.yaml")
        server = lab.cluster.server
        server.write_kubeconfig(
            lab.root / "limited", Credential(token=account_token(server, "colocate-scheduler"))
        )
        config = lab.config(key_secret=GpuKeySecret(namespace="default"))
        async with (
            Client(find(Flags(kubeconfig=lab.root / "limited"))) as client,
            running(config, client, SystemClock()) as process,
        ):
            assert process.gpus is not None
            scheduling = process.gpus
            await until(lambda: not scheduling.unready(), "the GPU scheduler to be ready")
            assert "apply examples/scheduler/gpus-rbac.yaml" in scheduling.sealing.trouble
            await lab.create(gpu_pod("pod", 1024))
            (pod,) = await lab.bound("pod")
            assert SEAL not in pod.annotations


async def test_with_the_rights_of_the_manifest_the_key_is_made_and_bookings_are_sealed() -> None:
    async with gpu_lab(("a", 1)) as lab:
        server = lab.cluster.server
        apply(server, "scheduler/rbac.yaml", "scheduler/gpus-rbac.yaml")
        if server.registry.find(SECRETS, "kube-system", "colocate-gpu-key") is None:
            body = {"metadata": {"name": "colocate-gpu-key"}, "type": "Opaque"}
            server.registry.create(SECRETS, "kube-system", body)
        server.write_kubeconfig(
            lab.root / "limited", Credential(token=account_token(server, "colocate-scheduler"))
        )
        async with (
            Client(find(Flags(kubeconfig=lab.root / "limited"))) as client,
            running(lab.config(), client, SystemClock()) as process,
        ):
            assert process.gpus is not None
            scheduling = process.gpus
            await until(lambda: not scheduling.unready(), "the GPU scheduler to be ready")
            assert scheduling.sealing.trouble == ""
            await lab.create(gpu_pod("pod", 1024))
            (pod,) = await lab.bound("pod")
            assert SEAL in pod.annotations


async def test_after_a_restart_the_book_is_rebuilt_from_the_api() -> None:
    async with gpu_lab(("a", 2)) as lab:
        async with lab.scheduling():
            await lab.create(gpu_pod("one", SIZE))
            (one,) = await lab.bound("one")
        async with lab.scheduling() as process:
            assert process.gpus is not None
            assert process.gpus.book.booking(one.uid) is not None
            await lab.create(gpu_pod("two", SIZE))
            (two,) = await lab.bound("two")
    assert {one.gpus, two.gpus} == {uuid("a", 0), uuid("a", 1)}


async def test_of_two_replicas_one_binds_and_the_other_takes_over() -> None:
    async with gpu_lab(("a", 4)) as lab:
        other = lab.config(port=free_port("127.0.0.1"))
        async with AsyncExitStack() as stack:
            leader = AsyncExitStack()
            await leader.enter_async_context(lab.scheduling())
            waiting = await stack.enter_async_context(running(other, lab.client, SystemClock()))
            assert waiting.gpus is not None
            standby = waiting.gpus
            await until(lambda: not standby.feed.unready(), "the second replica to know the cluster")
            assert standby.unready()
            await lab.create(gpu_pod("p", SIZE), gpu_pod("q", SIZE, schedulerName="nobody"))
            (pod,) = await lab.bound("p")
            asked = BindingAsked("q", "default", lab.pod("q").uid, "a")
            assert "does not hold the lease" in await standby.binder.bind(asked)
            await leader.aclose()
            await until(lambda: not standby.unready(), "the second replica to take over")
            assert standby.book.booking(pod.uid) is not None
            assert await standby.binder.bind(asked) == ""
            assert lab.pod("q").gpus != pod.gpus
