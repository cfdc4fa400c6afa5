"""Keeps pods that wish for strict CPUs off nodes where no CCX has room: they would fail to start there, for ever.

Nodes tell by an annotation what they have. One that tells nothing, or garbage, is not judged.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import msgspec

from colocate.cpus import FreeCcxs, MilliCpu, announced_ccxs, why_not_strict, wishes_of
from colocate.model import quantity
from colocate.model.quantity import Quantities


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Resources(_Read, frozen=True):
    requests: Quantities = {}
    limits: Quantities = {}


class _Container(_Read, frozen=True):
    name: str = ""
    resources: _Resources = _Resources()
    restart_policy: str = ""


class _Metadata(_Read, frozen=True):
    namespace: str = ""
    annotations: Mapping[str, str] = {}


class _Spec(_Read, frozen=True):
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()


class StrictPod(_Read, frozen=True):
    """As much of a pod as its wishes are about."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


class StrictDemand(msgspec.Struct, frozen=True):
    """What the strict containers of a pod ask for, by name."""

    namespace: str
    together: Mapping[str, MilliCpu]
    alone: Mapping[str, MilliCpu]
    """Init containers: one after the other."""


def strict_demand(pod: StrictPod) -> StrictDemand | None:
    """None where no container of it is strict."""
    together: dict[str, MilliCpu] = {}
    alone: dict[str, MilliCpu] = {}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        wishes, _ = wishes_of(pod.metadata.annotations, container.name)
        cpu = _cpu(container) if wishes.strict else 0
        if not cpu:
            continue
        before = container in pod.spec.init_containers and container.restart_policy != "Always"
        (alone if before else together)[container.name] = cpu
    if not together and not alone:
        return None
    return StrictDemand(pod.metadata.namespace, together, alone)


def strict_refusals(
    demand: StrictDemand, names: Sequence[str], told_by: Callable[[str], str]
) -> dict[str, str]:
    """The nodes that have no room, each with a reason; `told_by` is what a node's annotation says."""
    refused = {}
    for name in names:
        ccxs = _announced(told_by(name))
        if ccxs is not None and demand.namespace in ccxs.namespaces:
            why = why_not_strict(ccxs, demand.together, demand.alone)
            if why:
                refused[name] = why
    return refused


@lru_cache(maxsize=8192)
def _announced(text: str) -> FreeCcxs | None:
    if not text:
        return None
    try:
        return announced_ccxs(text)
    except ValueError:
        return None


def _cpu(container: _Container) -> MilliCpu:
    asked = container.resources.requests.get("cpu", container.resources.limits.get("cpu"))
    try:
        return 0 if asked is None else max(0, quantity.milli(str(asked)))
    except ValueError:
        return 0
