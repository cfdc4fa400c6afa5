"""Refuses nodes without a free CCX for pods with strict CPUs: such a pod would never start there.

Nodes tell by an annotation what they have, and whose pods are strict without a wish of their own. One that tells
nothing, or garbage, is not judged.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import msgspec

from colocate.cpus import (
    ANNOTATION,
    FreeCcxs,
    MilliCpu,
    announced_ccxs,
    why_not_strict,
    wishes_of,
)
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
    """The part of a pod that states its CPU wishes."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


class StrictDemand(msgspec.Struct, frozen=True):
    """What the strict containers of a pod ask for, by name."""

    together: Mapping[str, MilliCpu]
    alone: Mapping[str, MilliCpu]
    """Init containers: one after the other."""


class StrictByDefault:
    """The namespaces whose pods are strict unless they say otherwise, on any node. Most clusters have none."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, ...]] = {}
        self._nodes: Counter[str] = Counter()

    def __contains__(self, namespace: str) -> bool:
        return self._nodes[namespace] > 0

    def tell(self, node: str, text: str) -> None:
        """What a node's annotation says now; nothing where it has none, or the node is gone."""
        ccxs = _announced(text)
        said = () if ccxs is None else tuple(set(ccxs.default))
        self._nodes.subtract(self._told.pop(node, ()))
        if said:
            self._told[node] = said
            self._nodes.update(said)
        self._nodes = +self._nodes


def _demand(pod: StrictPod, *, by_default: bool) -> StrictDemand | None:
    """None where no container of it is strict; `by_default`, those are that have no word of their own."""
    together: dict[str, MilliCpu] = {}
    alone: dict[str, MilliCpu] = {}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        annotations = pod.metadata.annotations
        wishes, _ = wishes_of(annotations, container.name)
        silent = ANNOTATION not in annotations and f"{ANNOTATION}.{container.name}" not in annotations
        cpu = _cpu(container) if wishes.strict or (by_default and silent) else 0
        if not cpu:
            continue
        before = container in pod.spec.init_containers and container.restart_policy != "Always"
        (alone if before else together)[container.name] = cpu
    if not together and not alone:
        return None
    return StrictDemand(together, alone)


def strict_refusals(pod: StrictPod, names: Sequence[str], told_by: Callable[[str], str]) -> dict[str, str]:
    """The nodes without a free CCX, each with a reason; `told_by` returns a node's annotation."""
    stated, by_default = _demand(pod, by_default=False), _demand(pod, by_default=True)
    refused: dict[str, str] = {}
    if by_default is None:
        return refused
    namespace = pod.metadata.namespace
    for name in names:
        ccxs = _announced(told_by(name))
        if ccxs is None or namespace not in ccxs.namespaces:
            continue
        demand = by_default if namespace in ccxs.default else stated
        why = why_not_strict(ccxs, demand.together, demand.alone) if demand is not None else ""
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
