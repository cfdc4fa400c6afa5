"""What pods ask for, counted as the scheduler counts it. Decided from the pod's own words alone.

The structs are the API's shape of a pod and name only what is read, so that a list of all pods of a cluster can
be decoded straight into them.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from colocate.model import quantity
from colocate.model.pod import Phase, Resources, peak
from colocate.model.resource_name import is_extended


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    pass


class RequestingContainer(_Object, frozen=True):
    """What one container asks for."""

    resources: Resources = Resources()
    restart_policy: str | None = None

    @property
    def is_sidecar(self) -> bool:
        return self.restart_policy == "Always"

    def counts(self) -> Counter[str]:
        """By extended resource. A limit alone is a request too, as the API server fills it in."""
        return _counts(self.resources.limits | self.resources.requests)


class Spec(_Object, frozen=True):
    node_name: str = ""
    containers: tuple[RequestingContainer, ...] = ()
    init_containers: tuple[RequestingContainer, ...] = ()
    overhead: dict[str, str | int | float] = {}


class Marks(_Object, frozen=True):
    name: str
    namespace: str = ""


class Status(_Object, frozen=True):
    phase: str = ""


class RequestingPod(_Object, frozen=True):
    """A pod, as much of it as says what it holds."""

    metadata: Marks
    spec: Spec = Spec()
    status: Status = Status()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def is_finished(self) -> bool:
        return self.status.phase in (Phase.SUCCEEDED, Phase.FAILED)


def requested(pod: RequestingPod) -> Mapping[str, int]:
    """How many of each extended resource a pod takes from its node.

    Init containers run one after another and hand on what they held, so only the greediest counts; a sidecar
    among them goes on beside all that come after it.
    """
    running = [container.counts() for container in pod.spec.containers]
    init = [(container.counts(), container.is_sidecar) for container in pod.spec.init_containers]
    total = _counts(pod.spec.overhead)
    for name in {name for counts in (*running, *(each for each, _ in init)) for name in counts}:
        total[name] += peak(
            (counts[name] for counts in running), ((counts[name], is_sidecar) for counts, is_sidecar in init)
        )
    return +total


def _counts(amounts: Mapping[str, str | int | float]) -> Counter[str]:
    return Counter({name: quantity.whole(count) for name, count in amounts.items() if is_extended(name)})
