"""The embedded kubelet's podresources service, which answers like a recorded kubelet."""

from collections.abc import Callable, Iterable

import grpc
import grpc.aio

from colocate.kubelet.paths import KubeletPaths
from colocate.lab.device_table import DeviceTable
from colocate.lab.faults import KubeletFaults
from colocate.lab.pod_worker import PodRecord
from colocate.model.checkpoint import NO_TOPOLOGY
from colocate.wire import methods
from colocate.wire import podresources_pb2 as pr
from colocate.wire.rpc import RpcError, Service, serve, stop_server


class PodResources:
    """Answers List, Get and GetAllocatableResources."""

    def __init__(
        self, table: DeviceTable, records: Callable[[], Iterable[PodRecord]], faults: KubeletFaults
    ) -> None:
        self._table = table
        self._records = records
        self._faults = faults
        self._server: grpc.aio.Server | None = None

    async def start(self, paths: KubeletPaths) -> None:
        socket = paths.pod_resources_socket
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        service = Service(
            {
                methods.LIST_PODS: self._list,
                methods.GET_POD: self._get,
                methods.ALLOCATABLE: self._allocatable,
            }
        )
        self._server = await serve(socket, service)

    async def stop(self) -> None:
        if self._server:
            await stop_server(self._server)

    async def _list(self, _: pr.ListPodResourcesRequest) -> pr.ListPodResourcesResponse:
        self._maybe_refuse()
        return self.listing()

    async def _get(self, request: pr.GetPodResourcesRequest) -> pr.GetPodResourcesResponse:
        self._maybe_refuse()
        for pod in self.listing().pod_resources:
            if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace):
                return pr.GetPodResourcesResponse(pod_resources=pod)
        raise RpcError(
            grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        )

    async def _allocatable(self, _: pr.AllocatableResourcesRequest) -> pr.AllocatableResourcesResponse:
        self._maybe_refuse()
        return self.allocatable()

    def listing(self) -> pr.ListPodResourcesResponse:
        """Every pod that is being or was admitted and has not finished; init containers only until they are done.

        A kubelet adds each pod just before its admission, one by one (podManager.AddPod in HandlePodAdditions, 1.30
        to 1.37): so the pod of an Allocate is listed, and the pods behind it are not.
        """
        answer = pr.ListPodResourcesResponse()
        for record in self._records():
            if record.finished or not record.taken_in:
                continue
            pod = answer.pod_resources.add(
                name=record.pod.metadata.name, namespace=record.pod.metadata.namespace
            )
            for container in record.pod.containers:
                status = record.container(container.name)
                is_init = container in record.pod.spec.init_containers
                if is_init and status is not None and status.state.terminated:
                    continue
                self._describe(pod.containers.add(name=container.name), record.pod.uid)
        return answer

    def _describe(self, container: pr.ContainerResources, pod_uid: str) -> None:
        for held in self._table.of_container(pod_uid, container.name):
            for node, ids in held.by_numa.items():
                for id in ids:
                    _add(container.devices.add(resource_name=held.resource, device_ids=[id]), [node])

    def allocatable(self) -> pr.AllocatableResourcesResponse:
        """Every healthy device, held or not."""
        answer = pr.AllocatableResourcesResponse()
        for resource, devices in self._table.devices.items():
            for id in self._table.healthy(resource):
                _add(answer.devices.add(resource_name=resource, device_ids=[id]), devices[id].numa)
        return answer

    def _maybe_refuse(self) -> None:
        if self._faults.podresources_refusal:
            raise RpcError(grpc.StatusCode.UNAVAILABLE, self._faults.podresources_refusal)


def _add(entry: pr.ContainerDevices, nodes: Iterable[int]) -> None:
    for node in nodes:
        if node != NO_TOPOLOGY:
            entry.topology.nodes.add(ID=node)
