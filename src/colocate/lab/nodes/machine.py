"""This machine as a node of the embedded cluster: keeps an embedded kubelet and the API server in step."""

from collections.abc import Callable

import msgspec

from colocate.clock import Clock
from colocate.errors import ColocateError
from colocate.host.identity import this_machine
from colocate.lab.api.changes import Stored
from colocate.lab.api.deletion import DeleteOptions, Preconditions, delete
from colocate.lab.api.objects import Object, at, is_terminating, rfc3339
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import EVENTS, NODES, PODS
from colocate.lab.api.status import StatusError
from colocate.lab.kubelet import EmbeddedKubelet, KubeletEvent
from colocate.lab.nodes.followed_pods import FollowedPods
from colocate.lab.nodes.heartbeat import renew, synced, zeroed
from colocate.lab.nodes.pod_status import status_object
from colocate.lab.nodes.shape import KUBELET, KUBELET_STATUS, LabNodeShape, conditions, node_object
from colocate.lab.pod_worker import PodRecord
from colocate.model.pod import Phase, Pod

RUNTIME = "colocate-lab://0"
HEARTBEAT = 300.0
LEASE_RENEWAL = 10.0
_FINISHED = (Phase.SUCCEEDED, Phase.FAILED)
_MIRROR = "kubernetes.io/config.mirror"
"""The annotation of mirror pods, which show a static pod in the API."""


class MachineNode:
    """The bridge between an embedded kubelet and the API server."""

    def __init__(
        self,
        registry: ObjectRegistry,
        clock: Clock,
        kubelet: EmbeddedKubelet,
        shape: LabNodeShape,
        *,
        address: str = "127.0.0.1",
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._kubelet = kubelet
        self._shape = shape
        self._address = address
        self._beaten: float | None = None
        self._renewed = clock.monotonic()
        kubelet.listener = self

    # --- the node --------------------------------------------------------------------------------

    def started(self, fresh: bool) -> None:
        """Create the Node, or adopt an existing one."""
        self._beaten = None  # The first sync after a start always writes the status.
        identity = msgspec.structs.replace(this_machine(), boot_id=self._kubelet.boot_id)
        major, minor = self._kubelet.version
        body = node_object(
            self._shape,
            self._now(),
            address=self._address,
            runtime=RUNTIME,
            identity=identity,
            version=f"v{major}.{minor}.0+colocate-lab",
        )
        if self._registry.find(NODES, "", self._shape.name) is None:
            self._registry.create(NODES, "", body, writer=KUBELET)
            renew(self._registry, self._shape.name, self._now())
            return

        def take_over(status: Object) -> None:
            status["nodeInfo"] = body["status"]["nodeInfo"]
            if fresh:
                status["capacity"] = zeroed(status.get("capacity") or {})

        self._write(take_over)

    def synced(self, capacity: dict[str, int], allocatable: dict[str, int]) -> None:
        """Write the status if it has changed, and periodically as a heartbeat."""
        node = self._registry.find(NODES, "", self._shape.name)
        if node is None:
            return
        status = node.body.get("status") or {}
        new, usable = synced(status.get("capacity") or {}, capacity, allocatable)
        same = (status.get("capacity"), status.get("allocatable")) == (new, usable)
        moment = self._clock.monotonic()
        if moment - self._renewed >= LEASE_RENEWAL:
            self._renewed = moment
            renew(self._registry, self._shape.name, self._now())
        if same and self._beaten is not None and moment - self._beaten < HEARTBEAT:
            return
        self._beaten = moment
        now = self._now()
        well = [one for one in status.get("conditions") or [] if one.get("type") == "Ready"]
        since = well[0].get("lastTransitionTime", now) if well else now
        fresh = {"capacity": new, "allocatable": usable, "conditions": conditions(now, since)}
        self._write(lambda body: body.update(fresh))

    def _write(self, update: Callable[[Object], None]) -> None:
        node = self._registry.find(NODES, "", self._shape.name)
        if node is None:
            return  # Deleted by an administrator: as with a real kubelet, it returns when the kubelet restarts.

        def change(body: Object) -> None:
            update(body.setdefault("status", {}))

        self._registry.force(NODES, node, change, KUBELET_STATUS)

    # --- pods ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the pods that are bound to this node."""
        name = self._shape.name
        pods = FollowedPods(
            self._registry.store, lambda node: node == name, lambda: [name], self._seen, self._gone
        )
        await pods.run()

    def _seen(self, stored: Stored) -> None:
        uid = stored.body["metadata"]["uid"]
        record = self._kubelet.records.get(uid)
        if is_terminating(stored.body):
            if record is None:
                self._delete(stored.key.namespace, stored.key.name, uid)
            else:
                record.grace = stored.body["metadata"].get("deletionGracePeriodSeconds")
                record.deleting.set()
        elif _MIRROR in (stored.body["metadata"].get("annotations") or {}):
            pass  # Kubelets do not run mirror pods. A real one also deletes those without a static pod.
        elif record is None and at(stored.body, "status", "phase") not in _FINISHED:
            try:
                self._kubelet.add_pod(msgspec.convert(stored.body, Pod))
            except (ColocateError, msgspec.ValidationError) as error:
                self._tell(stored.key.namespace, stored.body, "Warning", "FailedCreatePod", str(error))

    def _gone(self, stored: Stored) -> None:
        record = self._kubelet.records.get(stored.body["metadata"]["uid"])
        if record is not None:
            record.deleting.set()

    # --- what the kubelet tells ------------------------------------------------------------------

    def pod_changed(self, record: PodRecord) -> None:
        pod = record.pod

        def change(body: Object) -> None:
            before = body.get("status") or {}
            body["status"] = status_object(
                pod, record.status, self._now(), host=self._address, address=self._address, before=before
            )

        stored = self._registry.find(PODS, pod.metadata.namespace, pod.metadata.name)
        if stored is not None and stored.body["metadata"]["uid"] == pod.uid:
            self._registry.modify(PODS, pod.metadata.namespace, pod.metadata.name, change, "status")

    def pod_gone(self, record: PodRecord) -> None:
        self._delete(record.pod.metadata.namespace, record.pod.metadata.name, record.pod.uid)

    def event(self, pod: Pod, event: KubeletEvent) -> None:
        about = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": pod.uid},
        }
        self._tell(pod.metadata.namespace, about, event.type, event.reason, event.message)

    def _delete(self, namespace: str, name: str, uid: str) -> None:
        options = DeleteOptions(gracePeriodSeconds=0, preconditions=Preconditions(uid=uid))
        try:
            delete(self._registry, PODS, namespace, name, options)
        except StatusError:
            pass  # Already deleted, or another pod has its name now.

    def _tell(self, namespace: str, about: Object, kind: str, reason: str, message: str) -> None:
        now, marks = self._now(), about["metadata"]
        body: Object = {
            "metadata": {"generateName": f"{marks['name']}."},
            "involvedObject": {
                "kind": "Pod",
                "apiVersion": "v1",
                "namespace": namespace,
                "name": marks["name"],
                "uid": marks["uid"],
            },
            "reason": reason,
            "message": message,
            "source": {"component": "kubelet", "host": self._shape.name},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": kind,
            "reportingComponent": "kubelet",
            "reportingInstance": self._shape.name,
        }
        try:
            self._registry.create(EVENTS, namespace, body)
        except StatusError:
            pass  # The namespace is being deleted, so the event is not needed.

    def _now(self) -> str:
        return rfc3339(self._clock.time())
