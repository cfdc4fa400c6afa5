"""Every RPC of the kubelet's services that this project calls or answers."""

from colocate.wire import deviceplugin_pb2 as dp
from colocate.wire import pluginregistration_pb2 as reg
from colocate.wire import podresources_pb2 as pr
from colocate.wire.rpc import proto

REGISTER = proto("/v1beta1.Registration/Register", dp.RegisterRequest, dp.Empty)

OPTIONS = proto("/v1beta1.DevicePlugin/GetDevicePluginOptions", dp.Empty, dp.DevicePluginOptions)
LIST_AND_WATCH = proto("/v1beta1.DevicePlugin/ListAndWatch", dp.Empty, dp.ListAndWatchResponse)
PREFER = proto(
    "/v1beta1.DevicePlugin/GetPreferredAllocation",
    dp.PreferredAllocationRequest,
    dp.PreferredAllocationResponse,
)
ALLOCATE = proto("/v1beta1.DevicePlugin/Allocate", dp.AllocateRequest, dp.AllocateResponse)
PRE_START = proto(
    "/v1beta1.DevicePlugin/PreStartContainer", dp.PreStartContainerRequest, dp.PreStartContainerResponse
)

LIST_PODS = proto("/v1.PodResourcesLister/List", pr.ListPodResourcesRequest, pr.ListPodResourcesResponse)
GET_POD = proto("/v1.PodResourcesLister/Get", pr.GetPodResourcesRequest, pr.GetPodResourcesResponse)
ALLOCATABLE = proto(
    "/v1.PodResourcesLister/GetAllocatableResources",
    pr.AllocatableResourcesRequest,
    pr.AllocatableResourcesResponse,
)

GET_INFO = proto("/pluginregistration.Registration/GetInfo", reg.InfoRequest, reg.PluginInfo)
NOTIFY = proto(
    "/pluginregistration.Registration/NotifyRegistrationStatus",
    reg.RegistrationStatus,
    reg.RegistrationStatusResponse,
)
