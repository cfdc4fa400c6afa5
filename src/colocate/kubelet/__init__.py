"""The edge to the kubelet, and the device-plugin SDK: what plugin authors import. No decisions here."""

from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.plugin import DevicePlugin, Refused, plugin
from colocate.kubelet.process import Plugins, run, serve
from colocate.kubelet.settings import OnStop, Registration, Settings
from colocate.model.device import Allocation, Device, DeviceNode, Health, Mount

__all__ = [
    "Allocation",
    "Device",
    "DeviceNode",
    "DevicePlugin",
    "Health",
    "KubeletPaths",
    "Mount",
    "OnStop",
    "Plugins",
    "Refused",
    "Registration",
    "Settings",
    "plugin",
    "run",
    "serve",
]
