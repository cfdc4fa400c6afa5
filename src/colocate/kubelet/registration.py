"""Registers a plugin with the kubelet: by calling Register, or by answering the kubelet's plugin watcher."""

from pathlib import Path

from colocate import telemetry
from colocate.aio import deadline
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.kubelet.paths import KubeletPaths
from colocate.telemetry import Event
from colocate.wire import deviceplugin_pb2 as dp
from colocate.wire import methods
from colocate.wire import pluginregistration_pb2 as reg
from colocate.wire.rpc import Service, call, connect

API_VERSION = "v1beta1"

TIMEOUT = 15.0
"""Seconds for Register: the kubelet tries to dial back for up to 10 before it answers."""


async def register(
    paths: KubeletPaths, socket: Path, resource: str, options: dp.DevicePluginOptions, clock: Clock
) -> None:
    """Call Register on kubelet.sock; returns when the kubelet has dialled back and accepted."""
    request = dp.RegisterRequest(
        version=API_VERSION, endpoint=socket.name, resource_name=resource, options=options
    )
    async with connect(paths.kubelet_socket) as channel:
        reached("register.call")
        async with deadline(clock, TIMEOUT):
            await call(channel, methods.REGISTER, request)
        reached("register.answered")


def watcher_service(socket: Path, resource: str) -> Service:
    """The service of a socket in plugins_registry."""

    async def get_info(_: reg.InfoRequest) -> reg.PluginInfo:
        reached("watcher.info")
        return reg.PluginInfo(
            type="DevicePlugin", name=resource, endpoint=str(socket), supported_versions=[API_VERSION]
        )

    async def notify(status: reg.RegistrationStatus) -> reg.RegistrationStatusResponse:
        # A kubelet that refuses tries again by itself while the socket exists.
        outcome = "ok" if status.plugin_registered else "refused"
        telemetry.PLUGIN_REGISTRATIONS.labels(resource, outcome).inc()
        if status.plugin_registered:
            telemetry.logger().info(Event.PLUGIN_REGISTERED, resource=resource, way="watcher")
        else:
            telemetry.logger().warning(
                Event.PLUGIN_NOT_REGISTERED, resource=resource, way="watcher", reason=status.error
            )
        return reg.RegistrationStatusResponse()

    return Service({methods.GET_INFO: get_info, methods.NOTIFY: notify})
