"""Asks the kubelet's podresources service which pod holds which devices."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

import grpc
import grpc.aio
import msgspec

from colocate.aio import deadline
from colocate.clock import Clock
from colocate.errors import Unavailable, system_reason
from colocate.kubelet.paths import KubeletPaths
from colocate.model.records import ListedPod
from colocate.wire import methods
from colocate.wire import podresources_pb2 as pr
from colocate.wire.rpc import Method, call, connect

TIMEOUT = 5.0
_PAUSE = 0.02
"""Seconds before a rate-limited question is repeated: the kubelet answers 100 in a second."""

Request = TypeVar("Request")
Response = TypeVar("Response")


async def list_pods(paths: KubeletPaths, clock: Clock) -> pr.ListPodResourcesResponse:
    """The kubelet's list of pods and their devices; Unavailable where it does not answer."""
    return await _ask(paths, clock, methods.LIST_PODS, pr.ListPodResourcesRequest())


async def listed_pods(paths: KubeletPaths, clock: Clock) -> tuple[ListedPod, ...]:
    """The kubelet's list of pods and their devices, as facts; Unavailable where it does not answer."""
    return as_facts(await list_pods(paths, clock))


def as_facts(answer: pr.ListPodResourcesResponse) -> tuple[ListedPod, ...]:
    return tuple(map(_listed, answer.pod_resources))


async def healthy_devices(paths: KubeletPaths, clock: Clock) -> Mapping[str, frozenset[str]]:
    """The healthy devices of every resource, held or not."""
    answer = await _ask(paths, clock, methods.ALLOCATABLE, pr.AllocatableResourcesRequest())
    return _by_resource(answer.devices)


class KubeletPods(msgspec.Struct, frozen=True):
    """Which of the requested pods the kubelet has, admitted or being admitted."""

    pods: Mapping[str, ListedPod] = {}
    """The pods that it has, by namespace/name."""
    absent: frozenset[str] = frozenset()
    """The names of pods that it does not have."""
    silent: str = ""
    """Why it did not answer for all requested pods; empty where it did."""


async def known_pods(
    paths: KubeletPaths,
    clock: Clock,
    keys: Iterable[str],
    *,
    only_first: bool = False,
    timeout: float = TIMEOUT,
) -> KubeletPods:
    """Ask for pods by namespace/name, one by one; with `only_first`, stop at the first that it has.

    One by one, because a List makes the kubelet (1.34 to 1.37) recount what is allocated without the devices of an
    Allocate in flight: it could give these out twice. Kubelets before 1.34 do not answer for single pods by
    default; they are asked for the list where all pods are wanted.
    """
    pods: dict[str, ListedPod] = {}
    absent: set[str] = set()
    asked = list(keys)
    socket = paths.pod_resources_socket
    silent = ""
    try:
        if asked:
            socket.stat()
        async with deadline(clock, timeout), connect(socket, receive_limit=-1) as channel:
            for key in asked:
                found = await _pod(channel, clock, key)
                if found is None:
                    absent.add(key)
                    continue
                pods[key] = found
                if only_first:
                    break
    except TimeoutError:
        silent = f"podresources did not answer within {timeout:g} s"
    except OSError as error:
        silent = f"{socket}: {system_reason(error)}"
    except _OnlyLists:
        if not only_first:
            return await _among_all(paths, clock, asked, timeout)
        silent = "podresources does not answer for single pods"
    except grpc.RpcError as error:
        silent = f"podresources: {error.details() or error.code()}"
    return KubeletPods(pods, frozenset(absent), silent)


class _OnlyLists(Exception):
    """The kubelet does not answer for single pods."""


async def _pod(channel: grpc.aio.Channel, clock: Clock, key: str) -> ListedPod | None:
    namespace, _, name = key.partition("/")
    asked = pr.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
    while True:
        try:
            return _listed((await call(channel, methods.GET_POD, asked)).pod_resources)
        except grpc.RpcError as error:
            code, words = error.code(), error.details() or ""
            if code is grpc.StatusCode.UNKNOWN and words.endswith("not found"):
                return None
            if code is grpc.StatusCode.UNIMPLEMENTED or words.endswith("disabled"):
                raise _OnlyLists from None
            if code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        await clock.sleep(_PAUSE)


async def _among_all(paths: KubeletPaths, clock: Clock, keys: Iterable[str], timeout: float) -> KubeletPods:
    try:
        answer = await _ask(paths, clock, methods.LIST_PODS, pr.ListPodResourcesRequest(), timeout)
    except Unavailable as error:
        return KubeletPods(silent=str(error))
    listed = {pod.key: pod for pod in as_facts(answer)}
    return KubeletPods(
        {key: listed[key] for key in keys if key in listed},
        frozenset(key for key in keys if key not in listed),
    )


async def nodes_of_devices(
    paths: KubeletPaths, clock: Clock, namespace: str, pod: str, container: str, timeout: float
) -> tuple[int, ...]:
    """The NUMA nodes of the devices that a container got from device plugins, lowest first; Unavailable where
    unknown."""
    asked = pr.GetPodResourcesRequest(pod_name=pod, pod_namespace=namespace)
    try:
        found = (await _ask(paths, clock, methods.GET_POD, asked, timeout)).pod_resources
    except Unavailable:
        # Kubelets before 1.34 do not answer this by default.
        listed = await _ask(paths, clock, methods.LIST_PODS, pr.ListPodResourcesRequest(), timeout)
        same = (each for each in listed.pod_resources if (each.namespace, each.name) == (namespace, pod))
        found = next(same, pr.PodResources())
    nodes = {
        node.ID
        for each in found.containers
        if each.name == container
        for device in each.devices
        for node in device.topology.nodes
    }
    return tuple(sorted(nodes))


async def _ask(
    paths: KubeletPaths,
    clock: Clock,
    method: Method[Request, Response],
    request: Request,
    timeout: float = TIMEOUT,
) -> Response:
    socket = paths.pod_resources_socket
    try:
        socket.stat()
        async with deadline(clock, timeout), connect(socket, receive_limit=-1) as channel:
            return await call(channel, method, request)
    except TimeoutError as error:
        raise Unavailable(f"podresources did not answer within {timeout:g} s") from error
    except OSError as error:
        raise Unavailable(f"{socket}: {system_reason(error)}") from error
    except grpc.RpcError as error:
        raise Unavailable(f"podresources: {error.details() or error.code()}") from error


def _listed(pod: pr.PodResources) -> ListedPod:
    containers = {container.name: _by_resource(container.devices) for container in pod.containers}
    return ListedPod(pod.namespace, pod.name, containers)


def _by_resource(devices: Iterable[pr.ContainerDevices]) -> Mapping[str, frozenset[str]]:
    ids: dict[str, set[str]] = defaultdict(set)
    for one in devices:
        ids[one.resource_name].update(one.device_ids)
    return {resource: frozenset(some) for resource, some in ids.items()}
