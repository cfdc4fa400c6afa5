"""Objects for these tests, and what became of them."""

import json
from pathlib import Path
from typing import Any

import msgspec

from colocate.clock import ManualClock
from colocate.lab.api import bootstrap
from colocate.lab.api.deletion import DeleteOptions, delete
from colocate.lab.api.objects import Object, at, condition, rfc3339
from colocate.lab.api.registry import Identities, ObjectRegistry
from colocate.lab.api.resources import EVENTS, NODES, PODS, PRIORITY_CLASSES
from colocate.lab.api.store import ObjectStore
from colocate.lab.scheduler.configuration import Configuration, Profile
from colocate.lab.scheduler.facts import SchedulableNode, SchedulablePod, read_node, read_pod
from colocate.lab.scheduler.requests import Account

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings" / "api"
GPU = "mock.com/gpu"


def pod(name: str = "p", requests: Object | None = None, **spec: Any) -> Object:
    """A pod with one container."""
    requests = requests or {}
    limits = {key: value for key, value in requests.items() if "/" in key}
    resources = {"requests": requests, **({"limits": limits} if limits else {})}
    container = {"name": "main", "image": "busybox", "resources": resources}
    return {
        "metadata": {"name": name, "labels": {"app": name.partition("-")[0]}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def node(
    name: str = "n", labels: dict[str, str] | None = None, taints: Any = (), **allocatable: Any
) -> Object:
    """A node; allocatable as keywords, with `gpu` for the extended resource."""
    offered = {"cpu": "4", "memory": "16Gi", "pods": "110", **allocatable}
    if "gpu" in offered:
        offered[GPU] = offered.pop("gpu")
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints)} if taints else {},
        "status": {"allocatable": offered, "capacity": offered},
    }


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> Object:
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def named(*scheduler_names: str) -> Configuration:
    """A configuration with a plain profile for each name."""
    return Configuration(tuple(Profile(name) for name in scheduler_names))


def pod_facts(body: Object | None = None, **spec: Any) -> SchedulablePod:
    return read_pod(body or pod(**spec))


def node_facts(body: Object | None = None, **given: Any) -> SchedulableNode:
    return read_node(body or node(**given))


class Candidate(msgspec.Struct, eq=False):
    """A node to be scored."""

    node: SchedulableNode
    account: Account


def recorded(name: str) -> Any:
    return json.loads((RECORDINGS / name).read_text())


class Lab:
    """The objects of a cluster."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.store = ObjectStore()
        self.registry = ObjectRegistry(self.store, clock, Identities(seed=1))
        bootstrap.fill(self.registry)

    def add_node(self, name: str, **given: Any) -> None:
        self.registry.create(NODES, "", node(name, **given))

    def add_pod(self, name: str, requests: Object | None = None, **spec: Any) -> Object:
        return self.registry.create(PODS, "default", pod(name, requests, **spec)).body

    def add_priority(self, name: str, value: int, **more: Any) -> None:
        self.registry.create(PRIORITY_CLASSES, "", {"metadata": {"name": name}, "value": value, **more})

    def change_node(self, name: str, **spec: Any) -> None:
        self.registry.modify(NODES, "", name, lambda body: body["spec"].update(spec))

    def offer(self, name: str, **amounts: str) -> None:
        """Set what a node offers, as a device plugin's kubelet does."""
        new = {key.replace("gpu", GPU): value for key, value in amounts.items()}
        self.registry.modify(
            NODES, "", name, lambda body: body["status"]["allocatable"].update(new), "status"
        )

    def delete_node(self, name: str) -> None:
        delete(self.registry, NODES, "", name)

    def delete_pod(self, name: str) -> None:
        delete(self.registry, PODS, "default", name, DeleteOptions(gracePeriodSeconds=0))

    def run(self, name: str) -> None:
        """What a kubelet says of a pod that runs."""
        now = rfc3339(self.clock.time())

        def write(body: Object) -> None:
            body["status"]["phase"] = "Running"
            body["status"]["startTime"] = now
            body["status"].setdefault("conditions", []).append({"type": "Ready", "status": "True"})

        self.registry.modify(PODS, "default", name, write, "status")

    def pod(self, name: str) -> Object:
        return self.registry.get(PODS, "default", name).body

    def node_of(self, name: str) -> str | None:
        found: str | None = at(self.pod(name), "spec", "nodeName")
        return found

    def placed(self) -> dict[str, str]:
        """Nodes by the pods that have one."""
        bodies = [stored.body for stored in self.store.items(PODS.storage)]
        return {
            body["metadata"]["name"]: body["spec"]["nodeName"]
            for body in bodies
            if body["spec"].get("nodeName")
        }

    def why(self, name: str) -> str:
        """Why a pod has no node, as its condition says."""
        return str((condition(self.pod(name), "PodScheduled") or {}).get("message"))

    def events(self, reason: str = "") -> list[Object]:
        found = [stored.body for stored in self.store.items(EVENTS.storage)]
        return [event for event in found if reason in ("", event["reason"])]
