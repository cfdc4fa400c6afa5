"""The edge to the kubelet, and the device-plugin SDK: what plugin authors import. No decisions here.

Importing it registers no metric, sets no environment variable, configures no log and does not load gRPC. The
exports are the SDK, explained in docs/sdk.md; `checkpoint`, `podresources` and `holders` are public modules beside
it.
"""

from colocate.clock import Clock
from colocate.errors import ColocateError, UserError
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.plugin import DeviceList, DevicePlugin, Devices, Refused, plugin
from colocate.kubelet.process import LogStyle, Plugins, run, serve
from colocate.kubelet.settings import MESSAGE_LIMIT, OnStop, Registration, Settings
from colocate.model.device import Allocation, Device, DeviceNode, Health, Mount

__all__ = [
    "MESSAGE_LIMIT",
    "Allocation",
    "Clock",
    "ColocateError",
    "Device",
    "DeviceList",
    "DeviceNode",
    "DevicePlugin",
    "Devices",
    "Health",
    "KubeletPaths",
    "LogStyle",
    "Mount",
    "OnStop",
    "Plugins",
    "Refused",
    "Registration",
    "Settings",
    "UserError",
    "plugin",
    "run",
    "serve",
]
