"""Reads a container's CPU request from the facts that CRI or NRI give. Pure.

Neither CRI nor NRI has a pod's QoS class or a container's request: the class is in the name of the pod's control
group, the request in its CPU shares, the limit in its quota. Of the fields that tenants write, only the documented
annotations count, never environment or labels.
"""

import re

import msgspec

from colocate.cpus import ANNOTATION, CpuRequest, MilliCpu, wishes_of
from colocate.cpus.placer.section import CpuDefaults
from colocate.model.container import RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.model.pod import QosClass

_SHARES = 1024
"""CPU shares of a whole CPU."""
_FEWEST_SHARES = 2
"""CPU shares that a kubelet writes for a request of 0."""
_MOST_SHARES = 262144
"""The kernel's maximum: CPU shares of 256 CPUs."""
_USUAL_PERIOD = 100_000
_WORD = re.compile(r"[/.-]")


def request_of(
    sandbox: RuntimeSandbox,
    container: RuntimeContainer,
    defaults: CpuDefaults | None = None,
    beside: tuple[int, ...] = (),
) -> CpuRequest:
    """A container's request. Its pod is the sandbox: CPUs are kept as long as the sandbox lives."""
    resources = container.resources
    limit = limit_of(resources)
    qos = qos_of(sandbox.cgroup_parent, resources)
    wishes, warnings = wishes_of(sandbox.annotations, container.name)
    if (
        defaults is not None
        and not {ANNOTATION, f"{ANNOTATION}.{container.name}"} & sandbox.annotations.keys()
    ):
        wishes = defaults.wishes(sandbox.namespace, qos)
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
    """The request with other resources; `resources` is complete, not only what changed."""
    return msgspec.structs.replace(
        request,
        cpu=cpu_of(resources, request.qos),
        limit=limit_of(resources),
        memory=max(0, resources.memory_limit),
    )


def merged(old: RuntimeResources, new: RuntimeResources) -> RuntimeResources:
    """Apply an update, which has only what changes. The cpuset stays as first requested: Colocate writes it."""
    told = {name: value for name in new.__struct_fields__ if (value := getattr(new, name))}
    return msgspec.structs.replace(
        old, **{**told, "cpuset_cpus": old.cpuset_cpus, "cpuset_mems": old.cpuset_mems}
    )


def qos_of(cgroup_parent: str, resources: RuntimeResources) -> QosClass:
    """The QoS class by the name of the pod's control group, or by the resources if no kubelet made the group."""
    words = [word for word in _WORD.split(cgroup_parent) if word]
    # The pod's own part comes last; the class, if there is one, comes right before it.
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
    """The request by its shares; by the limit for a guaranteed container beyond the maximum of shares."""
    if qos is QosClass.BEST_EFFORT:
        return 0
    limit = limit_of(resources)
    if qos is QosClass.GUARANTEED and limit is not None and resources.cpu_shares >= _MOST_SHARES:
        return limit
    return _shares_cpu(resources)


def shares_of(cpu: MilliCpu) -> int:
    """CPU shares as a kubelet writes them for a request."""
    return min(_MOST_SHARES, max(_FEWEST_SHARES, cpu * _SHARES // 1000))


def limit_of(resources: RuntimeResources) -> MilliCpu | None:
    """The CPU limit by quota and period; None if there is none."""
    if resources.cpu_quota <= 0:
        return None
    period = resources.cpu_period if resources.cpu_period > 0 else _USUAL_PERIOD
    return max(1, resources.cpu_quota * 1000 // period)


def _shares_cpu(resources: RuntimeResources) -> MilliCpu:
    shares = min(resources.cpu_shares, _MOST_SHARES)
    # A kubelet rounds shares down (100m are 102 shares): rounding up gives the original request.
    return 0 if shares <= _FEWEST_SHARES else -(-shares * 1000 // _SHARES)
