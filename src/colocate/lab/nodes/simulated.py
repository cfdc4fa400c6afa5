"""Simulated nodes: any number, without processes. Their pods run as soon as they are bound."""

from colocate.clock import Clock
from colocate.lab.api.changes import Stored
from colocate.lab.api.deletion import DeleteOptions, Preconditions, delete
from colocate.lab.api.objects import Object, at, is_terminating, rfc3339, uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.api.status import StatusError
from colocate.lab.nodes.followed_pods import FollowedPods
from colocate.lab.nodes.heartbeat import renew, synced
from colocate.lab.nodes.shape import KUBELET, KUBELET_STATUS, LabNodeShape, conditions, node_object

RUNTIME = "simulated://0"
STATUS_SYNC = 10.0
HEARTBEAT = 300.0
"""Seconds between two heartbeats. A real kubelet also writes an unchanged status only every five minutes."""


class SimulatedNodes:
    """All simulated nodes, in one task."""

    def __init__(self, registry: ObjectRegistry, clock: Clock, shapes: list[LabNodeShape]) -> None:
        self._registry = registry
        self._clock = clock
        self._shapes = {shape.name: shape for shape in shapes}
        self._addresses = {shape.name: f"10.64.{n // 250}.{n % 250 + 1}" for n, shape in enumerate(shapes)}
        self._pods = registry.store.count(PODS.storage)

    def register(self) -> None:
        """Create missing nodes, and adopt those of an earlier run."""
        now = rfc3339(self._clock.time())
        for name, shape in self._shapes.items():
            if self._registry.find(NODES, "", name) is None:
                body = node_object(shape, now, address=self._addresses[name], runtime=RUNTIME)
                self._registry.create(NODES, "", body, writer=KUBELET)
        for stored in self._registry.store.items(NODES.storage):
            if at(stored.body, "status", "nodeInfo", "containerRuntimeVersion") == RUNTIME:
                addresses = at(stored.body, "status", "addresses") or [{}]
                self._addresses.setdefault(stored.key.name, addresses[0].get("address", "10.64.255.1"))
        for name in self._addresses:
            renew(self._registry, name, now)

    def __contains__(self, name: object) -> bool:
        return name in self._addresses

    async def run(self) -> None:
        """Run the pods of these nodes."""
        pods = FollowedPods(
            self._registry.store,
            self._addresses.__contains__,
            lambda: list(self._addresses),
            self._seen,
            lambda _: None,
        )
        await pods.run()

    async def beat(self) -> None:
        """Do what their kubelets would: update allocatable from capacity, and write heartbeats."""
        beaten = self._clock.monotonic()
        while True:
            await self._clock.sleep(STATUS_SYNC)
            due = self._clock.monotonic() - beaten >= HEARTBEAT
            if due:
                beaten = self._clock.monotonic()
            for name in self._addresses:
                if due:
                    renew(self._registry, name, rfc3339(self._clock.time()))
                if (node := self._registry.find(NODES, "", name)) is not None:
                    self._sync(node, heartbeat=due)

    def _sync(self, node: Stored, *, heartbeat: bool) -> None:
        status = node.body.get("status") or {}
        capacity, allocatable = synced(status.get("capacity") or {}, {}, {})
        fresh: Object = {}
        if status.get("allocatable") != allocatable:
            fresh |= {"capacity": capacity, "allocatable": allocatable}
        if heartbeat:
            now = rfc3339(self._clock.time())
            held = status.get("conditions") or [{}]
            fresh["conditions"] = conditions(now, held[0].get("lastTransitionTime", now))
        if fresh:
            self._registry.force(NODES, node, lambda body: body["status"].update(fresh), KUBELET_STATUS)

    def _seen(self, stored: Stored) -> None:
        _, namespace, name = stored.key
        pod, uid = stored.body, uid_of(stored.body)
        try:
            if is_terminating(pod):
                options = DeleteOptions(gracePeriodSeconds=0, preconditions=Preconditions(uid=uid))
                delete(self._registry, PODS, namespace, name, options)
            elif at(pod, "status", "phase") in (None, "Pending"):
                self._pods += 1
                address = f"10.128.{self._pods // 250 % 250}.{self._pods % 250 + 1}"
                host = self._addresses[at(pod, "spec", "nodeName")]
                now = rfc3339(self._clock.time())

                def run(body: Object) -> None:
                    if uid_of(body) == uid:  # Otherwise it is another pod of that name.
                        _running(body, now, host, address)

                self._registry.modify(PODS, namespace, name, run, "status")
        except StatusError:
            pass  # It was changed or deleted meanwhile; that change is handled next.


def _running(pod: Object, now: str, host: str, address: str) -> None:
    status = pod.setdefault("status", {})
    status |= {
        "phase": "Running",
        "startTime": now,
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "containerStatuses": [_container(one, now) for one in pod["spec"]["containers"]],
    }
    held = [one for one in status.get("conditions") or [] if one["type"] == "PodScheduled"]
    status["conditions"] = [
        {"type": type, "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
        for type in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    ] + held
    if inits := pod["spec"].get("initContainers"):
        status["initContainerStatuses"] = [_container(one, now, done=True) for one in inits]


def _container(container: Object, now: str, *, done: bool = False) -> Object:
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    return {
        "name": container["name"],
        "state": {"terminated": ended} if done else {"running": {"startedAt": now}},
        "lastState": {},
        "ready": True,
        "restartCount": 0,
        "image": container.get("image", ""),
        "imageID": "",
        "started": not done,
    }
