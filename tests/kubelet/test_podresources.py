"""Which pods a kubelet has, asked for one by one: as kubelets of several versions answer, and as none should."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from colocate.clock import SystemClock
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import KubeletPods, known_pods
from colocate.wire import methods
from colocate.wire import podresources_pb2 as pr
from colocate.wire.rpc import RpcError, Service, serve, stop_server


class Kubelet:
    """Has some pods, and answers for one of them as a test says."""

    def __init__(self, root: Path, *keys: str) -> None:
        self.paths = KubeletPaths(root)
        self.keys = keys
        self.asked: list[str] = []
        self.errors: list[RpcError] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Kubelet"]:
        self.paths.pod_resources_socket.parent.mkdir(parents=True)
        service = Service({methods.GET_POD: self._get, methods.LIST_PODS: self._list})
        server = await serve(self.paths.pod_resources_socket, service)
        try:
            yield self
        finally:
            await stop_server(server)

    async def known(self, *keys: str, only_first: bool = False) -> KubeletPods:
        return await known_pods(self.paths, SystemClock(), keys, only_first=only_first)

    async def _get(self, request: pr.GetPodResourcesRequest) -> pr.GetPodResourcesResponse:
        key = f"{request.pod_namespace}/{request.pod_name}"
        self.asked.append(key)
        if self.errors:
            raise self.errors.pop(0)
        if key not in self.keys:
            words = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            raise RpcError(grpc.StatusCode.UNKNOWN, words)
        return pr.GetPodResourcesResponse(pod_resources=_pod(key))

    async def _list(self, _: pr.ListPodResourcesRequest) -> pr.ListPodResourcesResponse:
        self.asked.append("all")
        return pr.ListPodResourcesResponse(pod_resources=map(_pod, self.keys))


def _pod(key: str) -> pr.PodResources:
    namespace, _, name = key.partition("/")
    return pr.PodResources(namespace=namespace, name=name)


async def test_pods_are_asked_for_one_by_one_up_to_the_first_that_is_there(tmp_path: Path) -> None:
    async with Kubelet(tmp_path, "a/two", "a/three").serving() as kubelet:
        told = await kubelet.known("a/one", "a/two", "a/three", only_first=True)
        assert (set(told.pods), set(told.absent), told.silent) == ({"a/two"}, {"a/one"}, "")
        assert kubelet.asked == ["a/one", "a/two"], "a List would make a kubelet forget devices in flight"
        told = await kubelet.known("a/one", "a/two", "a/three")
        assert (set(told.pods), set(told.absent)) == ({"a/two", "a/three"}, {"a/one"})


async def test_a_kubelet_that_is_too_busy_is_asked_again(tmp_path: Path) -> None:
    async with Kubelet(tmp_path, "a/p").serving() as kubelet:
        kubelet.errors = [RpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by the limiter")] * 3
        assert set((await kubelet.known("a/p")).pods) == {"a/p"}


@pytest.mark.parametrize(
    "error",
    [
        RpcError(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled"),
        RpcError(grpc.StatusCode.UNIMPLEMENTED, "unknown method Get"),
    ],
)
async def test_a_kubelet_that_answers_for_no_single_pod_is_asked_for_all_but_not_while_it_admits(
    tmp_path: Path, error: RpcError
) -> None:
    async with Kubelet(tmp_path, "a/p").serving() as kubelet:
        kubelet.errors = [error]
        told = await kubelet.known("a/p", "a/q")
        assert (set(told.pods), set(told.absent)) == ({"a/p"}, {"a/q"})
        kubelet.errors, kubelet.asked = [error], []
        told = await kubelet.known("a/p", only_first=True)
        assert not told.pods
        assert told.silent
        assert kubelet.asked == ["a/p"]


async def test_a_kubelet_that_is_not_there_or_fails_lists_no_pod(tmp_path: Path) -> None:
    kubelet = Kubelet(tmp_path, "a/p")
    assert "no such file" in (await kubelet.known("a/p")).silent
    async with kubelet.serving():
        kubelet.errors = [RpcError(grpc.StatusCode.INTERNAL, "boom")]
        told = await kubelet.known("a/p")
        assert (told.pods, told.absent) == ({}, frozenset())
        assert "boom" in told.silent
