"""Recorded kubelets talk through the proxy to recorded runtimes: what is not ours to change arrives byte for byte."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import grpc.aio
import msgspec
import pytest
from tests.support import cri_runtime
from tests.support.cri_proxies import proxying
from tests.support.cri_runtime import Requests, call_unary
from tests.support.noted_events import NotedEvents
from tests.support.waiting import until

from colocate.model.container import CpuPin
from colocate.model.cpuset import CpuSet
from colocate.runtime.cri_messages import found_sandbox, requested
from colocate.runtime.events import Placing
from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri

RECORDINGS = Path(__file__).parents[1] / "data/recordings/cri"
KUBELETS = ["kubelet-1.34-to-containerd-1.6", "kubelet-1.36-to-containerd-2.1"]
PIN = CpuPin(cpus=CpuSet.parse("4-7,12"), mems=(1,))

Rewritten = type[cri.CreateContainerRequest] | type[cri.UpdateContainerResourcesRequest]
REWRITTEN: dict[str, tuple[Rewritten, Callable[..., cri.LinuxContainerResources]]] = {
    methods.CREATE_CONTAINER.path: (
        cri.CreateContainerRequest,
        lambda message: message.config.linux.resources,
    ),
    methods.UPDATE_RESOURCES.path: (cri.UpdateContainerResourcesRequest, lambda message: message.linux),
}


class Recorded(msgspec.Struct):
    """One call."""

    method: str
    request: str
    response: str = ""
    code: str = "OK"
    details: str = ""

    @property
    def asked(self) -> bytes:
        return base64.b64decode(self.request)

    @property
    def answered(self) -> bytes:
        return base64.b64decode(self.response)


class RecordedRuntime:
    """Answers each call with what was recorded for it; before that it has nothing."""

    def __init__(self) -> None:
        self.now: Recorded | None = None
        self.asked = b""

    async def serve(self, path: str, requests: Requests, context: grpc.aio.ServicerContext) -> None:
        async for request in requests:
            self.asked = request
        if self.now is None:
            await context.write(b"")
            return
        assert path == self.now.method
        if self.now.code != "OK":
            await context.abort(grpc.StatusCode[self.now.code], self.now.details)
        await context.write(self.now.answered)


def calls(name: str) -> list[Recorded]:
    lines = (RECORDINGS / f"{name}.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Recorded) for line in lines]


@asynccontextmanager
async def replay(
    events: NotedEvents,
) -> AsyncIterator[tuple[RecordedRuntime, grpc.aio.Channel]]:
    with TemporaryDirectory(prefix="cri") as folder:
        behind, before = Path(folder, "runtime.sock"), Path(folder, "proxy.sock")
        runtime = RecordedRuntime()
        async with (
            cri_runtime.serving(behind, runtime.serve),
            proxying(behind, before, events),
            cri_runtime.client(before) as kubelet,
        ):
            await until(lambda: events.said("synchronize") == 1, "the reconciliation")
            yield runtime, kubelet


@pytest.mark.parametrize("name", KUBELETS)
async def test_calls_arrive_as_they_were_sent_and_so_do_their_answers(name: str) -> None:
    events = NotedEvents()
    async with replay(events) as (runtime, kubelet):
        for call in calls(name):
            runtime.now = call
            ended = await call_unary(kubelet, call.method, call.asked)
            assert runtime.asked == call.asked
            assert (ended.code, ended.details) == (call.code, call.details)
            assert ended.answers == ((call.answered,) if call.code == "OK" else ())
    assert events.said("create") == sum(call.method == methods.CREATE_CONTAINER.path for call in calls(name))


@pytest.mark.parametrize("name", KUBELETS)
async def test_a_decision_changes_the_cpuset_and_nothing_else(name: str) -> None:
    events = NotedEvents()
    events.placing = Placing(own=PIN)
    async with replay(events) as (runtime, kubelet):
        for call in calls(name):
            runtime.now = call
            await call_unary(kubelet, call.method, call.asked)
            if call.method not in REWRITTEN:
                assert runtime.asked == call.asked
                continue
            assert runtime.asked != call.asked
            kind, part = REWRITTEN[call.method]
            sent = kind.FromString(runtime.asked)
            resources = part(sent)
            assert (resources.cpuset_cpus, resources.cpuset_mems) == ("4-7,12", "1")
            resources.cpuset_cpus = part(kind.FromString(call.asked)).cpuset_cpus
            resources.cpuset_mems = part(kind.FromString(call.asked)).cpuset_mems
            assert sent.SerializeToString(deterministic=True) == kind.FromString(
                call.asked
            ).SerializeToString(deterministic=True)


async def test_events_say_what_the_kubelet_did() -> None:
    events = NotedEvents()
    async with replay(events) as (runtime, kubelet):
        for call in calls(KUBELETS[1]):
            runtime.now = call
            await call_unary(kubelet, call.method, call.asked)
    created = [container for _, container in events.of("create")]
    first = created[0]
    assert (first.name, first.attempt, first.resources.cpu_period) == ("i", 0, 100_000)
    ids = [told[2] for told in events.told if told[0] == "created"]
    assert len(ids) == 3
    assert events.told[1:] == [
        ("create", "i"),
        ("created", "i", ids[0]),
        ("started", ids[0]),
        # It ended by itself, as a status told the kubelet, before the next was created.
        ("stopped", ids[0]),
        ("create", created[1].name),
        ("created", created[1].name, ids[1]),
        ("started", ids[1]),
        ("create", created[2].name),
        ("created", created[2].name, ids[2]),
        ("started", ids[2]),
        *[told for told in events.told if told[0] == "update"],
        *[told for told in events.told if told[0] == "stopped"][1:],
        *[told for told in events.told if told[0] == "sandbox_stopped"],
        *[told for told in events.told if told[0] == "removed"],
        ("detached",),
    ]
    assert events.said("removed") == 3


def test_of_a_pods_annotations_its_wishes_for_cpus_are_kept_and_no_more_of_them_than_anyone_needs() -> None:
    said = {"example.com/long": "x" * 200_000, "colocate.dev/cpus": "exclusive"}
    request = cri.CreateContainerRequest()
    request.sandbox_config.annotations.update(said)
    listed = cri.PodSandbox(annotations=said)
    for sandbox in (requested(request)[0], found_sandbox(listed, "")):
        assert sandbox.annotations == {"colocate.dev/cpus": "exclusive"}
    for number in range(1000):
        listed.annotations[f"colocate.dev/cpus.{number}"] = "x" * 10_000
    kept = found_sandbox(listed, "").annotations
    assert (len(kept), max(map(len, kept.values()))) == (256, 1024)
