"""What would have been: a cluster's pods placed once more, by any policy, through the code that schedules.

Needs numpy (the extra `replay`). `gpu_*` replays pods that ask for GPUs.
"""
