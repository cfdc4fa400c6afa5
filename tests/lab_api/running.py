"""Stands in for scheduler and kubelets in these tests: pods are bound and run at once, and stop at once."""

from colocate.lab.api import pods
from colocate.lab.api.changes import Stored
from colocate.lab.api.deletion import DeleteOptions, delete
from colocate.lab.api.objects import Object, at, is_terminating, rfc3339
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import NODES, PODS


class Runner:
    """Runs every pod of a cluster on its nodes, in turn."""

    def __init__(self, registry: ObjectRegistry) -> None:
        self._registry = registry
        self._turn = 0

    async def run(self) -> None:
        store = self._registry.store
        seen = -1
        while True:
            seen = store.changed.count if seen < 0 else await store.changed.beyond(seen)
            for stored in store.items(PODS.storage):
                self.step(stored)

    def step(self, stored: Stored) -> None:
        """Bring one pod one step on."""
        pod, (_, namespace, name) = stored.body, stored.key
        if is_terminating(pod):
            delete(self._registry, PODS, namespace, name, DeleteOptions(gracePeriodSeconds=0))
            return
        nodes = [one for one in self._registry.store.items(NODES.storage) if self._takes_pods(one.body)]
        if not at(pod, "spec", "nodeName"):
            if nodes:
                self._turn += 1
                target = {"name": nodes[self._turn % len(nodes)].key.name}
                pods.bind(self._registry, namespace, name, {"target": target}, dry_run=False)
        elif at(pod, "status", "phase") == "Pending":
            now = rfc3339(self._registry.clock.time())
            self._registry.modify(PODS, namespace, name, lambda body: _run(body, now), "status")

    @staticmethod
    def _takes_pods(node: Object) -> bool:
        return not at(node, "spec", "unschedulable")


def _run(pod: Object, now: str) -> None:
    pod["status"]["phase"] = "Running"
    pod["status"]["startTime"] = now
    pod["status"]["podIP"] = "10.0.0.1"
    for type in ("Initialized", "Ready", "ContainersReady", "PodScheduled"):
        pods.set_condition(pod, type, "True", now)
    pod["status"]["containerStatuses"] = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
            "lastState": {},
        }
        for container in pod["spec"]["containers"]
    ]
