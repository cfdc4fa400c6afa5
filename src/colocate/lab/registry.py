"""The embedded kubelet's plugin registration: Register on kubelet.sock, and sockets in plugins_registry."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from colocate.aio import deadline
from colocate.clock import Clock
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.watch import FolderWatch, identity
from colocate.lab.device_manager import DeviceManager
from colocate.lab.faults import KubeletFaults
from colocate.model.resource_name import why_not_allowed
from colocate.wire import deviceplugin_pb2 as dp
from colocate.wire import methods
from colocate.wire import pluginregistration_pb2 as reg
from colocate.wire.rpc import RpcError, Service, call, connect, serve, stop_server

SUPPORTED_VERSIONS = ["v1beta1"]
ASK_TIMEOUT = 1.0

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class PluginRegistry:
    """Serves Registration and asks the sockets of plugins_registry."""

    def __init__(
        self,
        paths: KubeletPaths,
        devices: DeviceManager,
        faults: KubeletFaults,
        clock: Clock,
        spawn: Spawn,
        *,
        refuse_same_socket: bool,
    ) -> None:
        self._paths = paths
        self._devices = devices
        self._faults = faults
        self._clock = clock
        self._spawn = spawn
        self._refuse_same_socket = refuse_same_socket
        self._server: grpc.aio.Server | None = None

    async def start(self, generation: int) -> None:
        """Delete old sockets, then serve on a new kubelet.sock.

        gRPC removes its socket when it stops; a real kubelet leaves kubelet.sock behind. So it is served under
        another name and hard-linked to kubelet.sock.
        """
        for folder in (self._paths.device_plugins, self._paths.plugins_registry):
            folder.mkdir(parents=True, exist_ok=True)
        for path in self._paths.device_plugins.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)  # Its plugin may be removing it just now.
        hidden = self._paths.root / f".registration-{generation}.sock"
        hidden.unlink(missing_ok=True)
        self._server = await serve(hidden, Service({methods.REGISTER: self._register}))
        os.link(hidden, self._paths.kubelet_socket)
        hidden.unlink()
        self._spawn(self._watch_registry())

    async def stop(self) -> None:
        if self._server:
            await stop_server(self._server)

    async def _register(self, request: dp.RegisterRequest) -> dp.Empty:
        if self._faults.register_delay:
            await self._clock.sleep(self._faults.register_delay)
        if self._faults.register_refusal:
            raise RpcError(grpc.StatusCode.UNKNOWN, self._faults.register_refusal)
        if request.version not in SUPPORTED_VERSIONS:
            raise RpcError(
                grpc.StatusCode.UNKNOWN,
                f"requested API version {request.version!r} is not supported by kubelet. "
                f"Supported versions are {SUPPORTED_VERSIONS}",
            )
        await self._connect(request.resource_name, self._paths.device_plugins / request.endpoint)
        return dp.Empty()

    async def _connect(self, resource: str, socket: Path) -> None:
        if why_not_allowed(resource):
            raise RpcError(grpc.StatusCode.UNKNOWN, f"the ResourceName {resource!r} is invalid")
        if self._refuse_same_socket and self._devices.socket_of(resource) == socket:
            raise RpcError(grpc.StatusCode.UNKNOWN, f"{socket} is connected already")
        try:
            client = await self._devices.connect(resource, socket)
        except (grpc.RpcError, TimeoutError) as error:
            raise RpcError(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error}") from error
        self._spawn(self._devices.follow(client))

    async def _watch_registry(self) -> None:
        """Ask every socket that appears in plugins_registry once, and again if it was refused."""
        folder = self._paths.plugins_registry
        known: dict[Path, tuple[int, int]] = {}
        watch = FolderWatch(folder, self._clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch.run())
            while True:
                seen = watch.events.count
                present = {path: identity(path) for path in folder.iterdir() if _is_plugin(path)}
                for path, current in present.items():
                    if current is not None and known.get(path) != current and await self._ask(path):
                        known[path] = current
                for path in known.keys() - present.keys():
                    del known[path]
                    await self._devices.forget(path)
                await watch.events.beyond(seen)

    async def _ask(self, socket: Path) -> bool:
        async with connect(socket) as channel:
            try:
                async with deadline(self._clock, ASK_TIMEOUT):
                    info = await call(channel, methods.GET_INFO, reg.InfoRequest())
            except (grpc.RpcError, TimeoutError):
                return False
            status = reg.RegistrationStatus(plugin_registered=True)
            try:
                if info.type != "DevicePlugin" or not set(info.supported_versions) & set(SUPPORTED_VERSIONS):
                    raise RpcError(grpc.StatusCode.UNKNOWN, f"unsupported plugin {info.type} {info.name}")
                await self._connect(info.name, Path(info.endpoint or socket))
            except RpcError as error:
                status = reg.RegistrationStatus(plugin_registered=False, error=str(error))
            try:
                async with deadline(self._clock, ASK_TIMEOUT):
                    await call(channel, methods.NOTIFY, status)
            except (grpc.RpcError, TimeoutError):
                return False
            return status.plugin_registered


def _is_plugin(path: Path) -> bool:
    return path.is_socket() and not path.name.startswith(".")
