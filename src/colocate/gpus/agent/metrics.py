"""What Prometheus is told of GPUs and the pods that share them."""

from collections import Counter

from colocate.gpus import GpuRecordSource
from colocate.gpus.agent.report import GpuReport
from colocate.telemetry import (
    GPU_CORES,
    GPU_HEALTHY,
    GPU_MEMORY,
    GPU_MISMATCHES,
    GPU_POD_CORES,
    GPU_POD_MEMORY,
)

_MIB = 1 << 20
_OF_GPUS = (GPU_HEALTHY, GPU_MEMORY, GPU_CORES, GPU_POD_MEMORY, GPU_POD_CORES)


def tell(report: GpuReport) -> None:
    """All of a report, and nothing of GPUs and pods that are not in it any more."""
    for metric in _OF_GPUS:
        metric.clear()
    mismatches = Counter(each.source for each in report.mismatches)
    for source in GpuRecordSource:
        GPU_MISMATCHES.labels(source).set(mismatches[source])
    for gpu in report.gpus:
        GPU_HEALTHY.labels(gpu.uuid).set(gpu.healthy and not gpu.mig)
        GPU_MEMORY.labels(gpu.uuid, "total").set(gpu.memory * _MIB)
        GPU_MEMORY.labels(gpu.uuid, "booked").set(gpu.booked * _MIB)
        GPU_CORES.labels(gpu.uuid).set(gpu.booked_cores)
        if gpu.used is not None:
            GPU_MEMORY.labels(gpu.uuid, "used").set(gpu.used)
        for share in gpu.shares:
            namespace, _, name = share.pod.rpartition("/")
            GPU_POD_MEMORY.labels(gpu.uuid, namespace, name, "booked").set(share.memory * _MIB)
            GPU_POD_CORES.labels(gpu.uuid, namespace, name).set(share.cores)
            if share.used is not None:
                GPU_POD_MEMORY.labels(gpu.uuid, namespace, name, "used").set(share.used)
