"""Every RPC of the container runtime interface, v1, that this project calls, answers or knows to be unary."""

from colocate.wire import cri_pb2 as cri
from colocate.wire.rpc import proto

RUNTIME = "/runtime.v1.RuntimeService/"
IMAGE = "/runtime.v1.ImageService/"

VERSION = proto(f"{RUNTIME}Version", cri.VersionRequest, cri.VersionResponse)
RUN_SANDBOX = proto(f"{RUNTIME}RunPodSandbox", cri.RunPodSandboxRequest, cri.RunPodSandboxResponse)
STOP_SANDBOX = proto(f"{RUNTIME}StopPodSandbox", cri.StopPodSandboxRequest, cri.StopPodSandboxResponse)
REMOVE_SANDBOX = proto(
    f"{RUNTIME}RemovePodSandbox", cri.RemovePodSandboxRequest, cri.RemovePodSandboxResponse
)
LIST_SANDBOXES = proto(f"{RUNTIME}ListPodSandbox", cri.ListPodSandboxRequest, cri.ListPodSandboxResponse)
SANDBOX_STATUS = proto(
    f"{RUNTIME}PodSandboxStatus", cri.PodSandboxStatusRequest, cri.PodSandboxStatusResponse
)
CREATE_CONTAINER = proto(f"{RUNTIME}CreateContainer", cri.CreateContainerRequest, cri.CreateContainerResponse)
START_CONTAINER = proto(f"{RUNTIME}StartContainer", cri.StartContainerRequest, cri.StartContainerResponse)
STOP_CONTAINER = proto(f"{RUNTIME}StopContainer", cri.StopContainerRequest, cri.StopContainerResponse)
REMOVE_CONTAINER = proto(f"{RUNTIME}RemoveContainer", cri.RemoveContainerRequest, cri.RemoveContainerResponse)
UPDATE_RESOURCES = proto(
    f"{RUNTIME}UpdateContainerResources",
    cri.UpdateContainerResourcesRequest,
    cri.UpdateContainerResourcesResponse,
)
LIST_CONTAINERS = proto(f"{RUNTIME}ListContainers", cri.ListContainersRequest, cri.ListContainersResponse)
CONTAINER_STATUS = proto(f"{RUNTIME}ContainerStatus", cri.ContainerStatusRequest, cri.ContainerStatusResponse)
EXEC_SYNC = proto(f"{RUNTIME}ExecSync", cri.ExecSyncRequest, cri.ExecSyncResponse)

CONTAINER_EVENTS = f"{RUNTIME}GetContainerEvents"
"""A stream of ContainerEventResponse."""
STREAM_CONTAINERS = f"{RUNTIME}StreamContainers"
"""A stream whose messages decode as ListContainersResponse."""

UNARY = frozenset(
    {
        *(
            method.path
            for method in (
                *(VERSION, RUN_SANDBOX, STOP_SANDBOX, REMOVE_SANDBOX, LIST_SANDBOXES, SANDBOX_STATUS),
                *(CREATE_CONTAINER, START_CONTAINER, STOP_CONTAINER, REMOVE_CONTAINER, UPDATE_RESOURCES),
                *(LIST_CONTAINERS, CONTAINER_STATUS, EXEC_SYNC),
            )
        ),
        *(
            f"{RUNTIME}{name}"
            for name in (
                *("Status", "RuntimeConfig", "UpdateRuntimeConfig", "UpdatePodSandboxResources"),
                *("Exec", "Attach", "PortForward", "ReopenContainerLog", "CheckpointContainer"),
                *("ContainerStats", "ListContainerStats", "PodSandboxStats", "ListPodSandboxStats"),
                *("ListMetricDescriptors", "ListPodSandboxMetrics"),
            )
        ),
        *(
            f"{IMAGE}{name}"
            for name in ("ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo")
        ),
    }
)
"""Paths of methods with one request and one answer. Any other method is treated as a stream, which serves unary
calls too."""
