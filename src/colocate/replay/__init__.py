"""Replays: places a cluster's pods again by any policy, through the code that schedules.

`load_*` replays pods that use CPU and memory: a workload from a public trace or from a recording of a cluster,
kube-scheduler's own scores, samples as they arrive, and the table, ledger, policies and heat of `load`, unchanged.
`gpu_*` replays pods that request GPUs, `cpu_*` containers that come to one node and go. `load_*` (except
`load_contenders`) and `gpu_*` need numpy; `cpu_*` does not.
"""
