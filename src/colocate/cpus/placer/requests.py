"""What a container asks for, read from what a runtime is told of it. Pure.

Neither CRI nor NRI says a pod's QoS class or a container's request: the class is in the name of the pod's control
group, the request in its CPU shares, the limit in its quota. Of what tenants write, annotations alone count, as
documented; environment and labels never do.
"""

import re
from collections.abc import Mapping

import msgspec

from colocate.cpus import ANNOTATION, CpuRequest, CpuWishes, MilliCpu, wishes_of
from colocate.model.container import RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.model.pod import QosClass

_SHARES = 1024
"""Of a whole CPU."""
_FEWEST_SHARES = 2
"""What a kubelet writes for a request of nothing."""
_MOST_SHARES = 262144
"""Of 256 CPUs: more cannot be said by shares."""
_USUAL_PERIOD = 100_000
_WORD = re.compile(r"[/.-]")


class WishDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What pods that wish for nothing get, by their namespace and else by their QoS class."""

    namespaces: Mapping[str, CpuWishes] = {}
    classes: Mapping[QosClass, CpuWishes] = {}


def request_of(
    sandbox: RuntimeSandbox,
    container: RuntimeContainer,
    defaults: WishDefaults | None = None,
    beside: tuple[int, ...] = (),
) -> CpuRequest:
    """A container's request; its pod is its sandbox, which lives as long as what the container has is kept."""
    resources = container.resources
    limit = limit_of(resources)
    qos = qos_of(sandbox.cgroup_parent, resources)
    wishes, warnings = wishes_of(sandbox.annotations, container.name)
    if not warnings and wishes == CpuWishes() and defaults is not None:
        wishes = _default(sandbox, container.name, qos, defaults)
    return CpuRequest(
        pod=sandbox.id,
        container=container.name,
        namespace=sandbox.namespace,
        cpu=cpu_of(resources, qos),
        limit=limit,
        memory=max(0, resources.memory_limit),
        qos=qos,
        wishes=wishes,
        beside=beside,
        warnings=warnings,
    )


def resized(request: CpuRequest, resources: RuntimeResources) -> CpuRequest:
    """The same container with other resources; all of them are given."""
    return msgspec.structs.replace(
        request,
        cpu=cpu_of(resources, request.qos),
        limit=limit_of(resources),
        memory=max(0, resources.memory_limit),
    )


def merged(old: RuntimeResources, new: RuntimeResources) -> RuntimeResources:
    """An update says only what changes. The cpuset of a container that is there is ours: it stays as it was asked."""
    told = {name: value for name in new.__struct_fields__ if (value := getattr(new, name))}
    return msgspec.structs.replace(
        old, **{**told, "cpuset_cpus": old.cpuset_cpus, "cpuset_mems": old.cpuset_mems}
    )


def qos_of(cgroup_parent: str, resources: RuntimeResources) -> QosClass:
    """By the group that the kubelet makes for the pod; by its figures where no kubelet made one."""
    words = [word for word in _WORD.split(cgroup_parent) if word]
    # The pod's own part comes last, and the class right before it or nowhere.
    if "kubepods" in words:
        words = words[len(words) - words[::-1].index("kubepods") :]
        if "besteffort" in words:
            return QosClass.BEST_EFFORT
        return QosClass.BURSTABLE if "burstable" in words else QosClass.GUARANTEED
    if "besteffort" in words:
        return QosClass.BEST_EFFORT
    if "burstable" in words:
        return QosClass.BURSTABLE
    asked = _shares_cpu(resources)
    if asked and asked == limit_of(resources) and resources.memory_limit > 0:
        return QosClass.GUARANTEED
    return QosClass.BURSTABLE if asked else QosClass.BEST_EFFORT


def cpu_of(resources: RuntimeResources, qos: QosClass) -> MilliCpu:
    """The request: its shares, or of a guaranteed container its limit where shares cannot say as much."""
    if qos is QosClass.BEST_EFFORT:
        return 0
    limit = limit_of(resources)
    if qos is QosClass.GUARANTEED and limit is not None and resources.cpu_shares >= _MOST_SHARES:
        return limit
    return _shares_cpu(resources)


def shares_of(cpu: MilliCpu) -> int:
    """As a kubelet writes a request."""
    return min(_MOST_SHARES, max(_FEWEST_SHARES, cpu * _SHARES // 1000))


def limit_of(resources: RuntimeResources) -> MilliCpu | None:
    """None where there is none."""
    if resources.cpu_quota <= 0:
        return None
    period = resources.cpu_period if resources.cpu_period > 0 else _USUAL_PERIOD
    return max(1, resources.cpu_quota * 1000 // period)


def _shares_cpu(resources: RuntimeResources) -> MilliCpu:
    shares = min(resources.cpu_shares, _MOST_SHARES)
    # A kubelet rounds down: 100m are 102 shares. Rounded up, each number comes back as it was.
    return 0 if shares <= _FEWEST_SHARES else -(-shares * 1000 // _SHARES)


def _default(sandbox: RuntimeSandbox, name: str, qos: QosClass, defaults: WishDefaults) -> CpuWishes:
    if ANNOTATION in sandbox.annotations or f"{ANNOTATION}.{name}" in sandbox.annotations:
        return CpuWishes()
    return defaults.namespaces.get(sandbox.namespace) or defaults.classes.get(qos) or CpuWishes()
