"""Records the scheduler's events in kube-scheduler's form; repetitions are counted in one event."""

from collections import OrderedDict

from colocate import telemetry
from colocate.lab.api.objects import Object, metadata, rfc3339_micro
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import EVENTS
from colocate.lab.api.status import StatusError
from colocate.telemetry import Event

_REMEMBERED = 8192


class Recorder:
    """Writes events about pods under the scheduler name of the pod."""

    def __init__(self, registry: ObjectRegistry, host: str) -> None:
        self._registry = registry
        self._host = host
        self._newest = 0
        self._told: OrderedDict[tuple[str, ...], str] = OrderedDict()

    def record(
        self,
        pod: Object,
        reason: str,
        action: str,
        message: str,
        warning: bool = False,
        related: Object | None = None,
        reporter: str = "",
    ) -> None:
        """Record an event about a pod. A failure to write it is ignored."""
        about = _reference(pod)
        same = (about["uid"], reason, message)
        try:
            if not self._repeat(about["namespace"], same):
                name = f"{about['name']}.{self._moment():x}"
                scheduler = reporter or pod["spec"]["schedulerName"]
                body: Object = {
                    "metadata": {"name": name},
                    "involvedObject": about,
                    "reason": reason,
                    "message": message,
                    "source": {},
                    "firstTimestamp": None,
                    "lastTimestamp": None,
                    "type": "Warning" if warning else "Normal",
                    "eventTime": rfc3339_micro(self._registry.clock.time()),
                    "action": action,
                    **({"related": _reference(related)} if related else {}),
                    "reportingComponent": scheduler,
                    "reportingInstance": f"{scheduler}-{self._host}",
                }
                self._registry.create(EVENTS, about["namespace"], body)
                self._remember(same, name)
        except StatusError as error:
            telemetry.logger().warning(
                Event.LAB_EVENT_NOT_RECORDED, pod=about["name"], reason=reason, error=str(error)
            )

    def _repeat(self, namespace: str, same: tuple[str, ...]) -> bool:
        name = self._told.get(same)
        if name is None or self._registry.find(EVENTS, namespace, name) is None:
            return False
        now = rfc3339_micro(self._registry.clock.time())

        def again(event: Object) -> None:
            count = (event.get("series") or {}).get("count") or 1
            event["series"] = {"count": count + 1, "lastObservedTime": now}

        self._registry.modify(EVENTS, namespace, name, again)
        self._told.move_to_end(same)
        return True

    def _remember(self, same: tuple[str, ...], name: str) -> None:
        self._told[same] = name
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)

    def _moment(self) -> int:
        """A unique time in nanoseconds for the event's name."""
        self._newest = max(self._newest + 1, int(self._registry.clock.time() * 1e9))
        return self._newest


def _reference(pod: Object) -> Object:
    marks = metadata(pod)
    return {
        "kind": "Pod",
        "namespace": marks["namespace"],
        "name": marks["name"],
        "uid": marks["uid"],
        "apiVersion": "v1",
        "resourceVersion": marks["resourceVersion"],
    }
