"""Asks the kubelet's podresources service who holds what: one question, one answer, or why there is none."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

import grpc

from colocate.aio import deadline
from colocate.clock import Clock
from colocate.errors import Unavailable, system_reason
from colocate.kubelet.paths import KubeletPaths
from colocate.model.records import ListedPod
from colocate.wire import methods
from colocate.wire import podresources_pb2 as pr
from colocate.wire.rpc import Method, call, connect

TIMEOUT = 5.0

Request = TypeVar("Request")
Response = TypeVar("Response")


async def list_pods(paths: KubeletPaths, clock: Clock) -> pr.ListPodResourcesResponse:
    """The kubelet's own answer to who holds what; Unavailable says why there is none."""
    return await _ask(paths, clock, methods.LIST_PODS, pr.ListPodResourcesRequest())


async def listed_pods(paths: KubeletPaths, clock: Clock) -> tuple[ListedPod, ...]:
    """The same, as facts."""
    return as_facts(await list_pods(paths, clock))


def as_facts(answer: pr.ListPodResourcesResponse) -> tuple[ListedPod, ...]:
    return tuple(map(_listed, answer.pod_resources))


async def healthy_devices(paths: KubeletPaths, clock: Clock) -> Mapping[str, frozenset[str]]:
    """The healthy devices of every resource, held or not."""
    answer = await _ask(paths, clock, methods.ALLOCATABLE, pr.AllocatableResourcesRequest())
    return _by_resource(answer.devices)


async def nodes_of_devices(
    paths: KubeletPaths, clock: Clock, namespace: str, pod: str, container: str, timeout: float
) -> tuple[int, ...]:
    """The NUMA nodes of what device plugins gave a container, lowest first; Unavailable says why nobody can tell."""
    asked = pr.GetPodResourcesRequest(pod_name=pod, pod_namespace=namespace)
    try:
        found = (await _ask(paths, clock, methods.GET_POD, asked, timeout)).pod_resources
    except Unavailable:
        # Kubelets before 1.34 answer no such question unless told to.
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
