"""What pods request, counted as the scheduler counts it, from the pods' specs alone.

The structs have the API's shape of a pod and only the fields that are read, so that a list of all pods of a cluster
can be decoded directly into them.
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
    """What one container requests."""

    resources: Resources = Resources()
    restart_policy: str | None = None

    @property
    def is_sidecar(self) -> bool:
        return self.restart_policy == "Always"

    def counts(self) -> Counter[str]:
        """Amounts by extended resource. A limit without a request counts as a request."""
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
    """A pod, with the fields that say what it holds."""

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

    Init containers run one after another and pass on what they held, so only the largest request counts; a sidecar
    among them keeps running beside the containers after it.
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
