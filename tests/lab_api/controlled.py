"""A cluster of the embedded API server's controllers alone, which a test lets work."""

from typing import Any

from colocate.clock import ManualClock
from colocate.lab.api.controllers import Controllers
from colocate.lab.api.deletion import DeleteOptions, delete
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import DEPLOYMENTS, NODES, PODS, ServedResource
from colocate.lab.api.server import ApiServer

from .running import Runner
from .samples import bare, node


class Cluster:
    """A server without its socket: objects, controllers, and pods that run when the test says so."""

    def __init__(self, server: ApiServer, clock: ManualClock) -> None:
        self.server = server
        self.clock = clock
        self.registry = server.registry
        self.store = server.store
        self.controllers = Controllers(server.registry)
        self.runner = Runner(server.registry)
        self.registry.create(NODES, "", bare(node("vm")))

    async def settle(self, run: bool = True) -> None:
        """Let the controllers work, and the pods run, until nothing changes any more."""
        seen = -1
        while seen != self.store.revision:
            seen = self.store.revision
            await self.controllers.settle()
            for stored in self.store.items(PODS.storage) if run else []:
                self.runner.step(stored)

    def create(self, resource: ServedResource, body: Object, namespace: str = "default") -> Object:
        return self.registry.create(resource, namespace, bare(body)).body

    def delete(self, resource: ServedResource, name: str, **options: Any) -> None:
        delete(self.registry, resource, "default", name, DeleteOptions(**options))

    def pods(self) -> list[Object]:
        return [stored.body for stored in self.store.items(PODS.storage)]

    def get(self, resource: ServedResource, name: str, namespace: str = "default") -> Object:
        return self.registry.get(resource, namespace, name).body

    def fail(self, name: str) -> None:
        def write(body: Object) -> None:
            body["status"]["phase"] = "Failed"

        self.registry.modify(PODS, "default", name, write, "status")

    def change(self, name: str, **spec: Any) -> None:
        self.registry.modify(DEPLOYMENTS, "default", name, lambda body: body["spec"].update(spec))
