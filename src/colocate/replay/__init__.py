"""What would have been: a cluster's pods placed once more, by any policy, through the code that schedules.

Needs numpy (the extra `replay`), except `cpu_*`. `load_*` replays pods that use CPU and memory: a workload (of a
public trace, or of a recording of one's own cluster), kube-scheduler's own scores, samples as they arrive, and the
load room's table, ledger, policies and heat, which do not know that they are replayed.
`gpu_*` replays pods that ask for GPUs, `cpu_*` containers with CPUs of their own that come to one node and go.
"""
