"""Who holds which devices: asked of podresources, or read from the checkpoint where that does not answer."""

import asyncio

import grpc

from colocate import telemetry
from colocate.errors import ColocateError
from colocate.kubelet import checkpoint
from colocate.kubelet.paths import KubeletPaths
from colocate.telemetry import Event
from colocate.wire import methods
from colocate.wire import podresources_pb2 as pr
from colocate.wire.rpc import call, connect

TIMEOUT = 5.0


async def list_pods(paths: KubeletPaths, *, timeout: float = TIMEOUT) -> pr.ListPodResourcesResponse:
    """The kubelet's own answer to who holds what."""
    async with connect(paths.pod_resources_socket, receive_limit=-1) as channel:
        return await call(channel, methods.LIST_PODS, pr.ListPodResourcesRequest(), timeout=timeout)


def held_in(pods: pr.ListPodResourcesResponse, resource: str) -> frozenset[str]:
    """The ids of a resource that any container of any pod holds."""
    return frozenset(
        id
        for pod in pods.pod_resources
        for container in pod.containers
        for devices in container.devices
        if devices.resource_name == resource
        for id in devices.device_ids
    )


class Holders:
    """Answers which ids of a resource are held; None where neither source can be read."""

    def __init__(self, paths: KubeletPaths) -> None:
        self._paths = paths
        self._told = False

    async def held(self, resource: str) -> frozenset[str] | None:
        if self._paths.pod_resources_socket.exists():
            try:
                answer = await list_pods(self._paths)
            except grpc.RpcError as error:
                reason = f"podresources: {error.details() or error.code()}"
            else:
                self._told = False
                return held_in(answer, resource)
        else:
            reason = f"there is no {self._paths.pod_resources_socket}"
            if not self._paths.checkpoint.exists():
                return frozenset()  # No kubelet has ever run here, so nobody holds anything.
        try:
            blob = await asyncio.to_thread(self._paths.checkpoint.read_bytes)
            return checkpoint.parse(blob).checkpoint.held(resource)
        except (OSError, ColocateError) as error:
            self._tell_once(f"{reason}; checkpoint: {error}")
            return None

    def _tell_once(self, reason: str) -> None:
        if not self._told:
            telemetry.logger().warning(Event.HOLDERS_UNKNOWN, reason=reason, effect="no id is dropped")
        self._told = True
