"""Whether a GPU is fit for new pods: from errors that the driver tells of, and from whether it answers.

A fault makes it unfit. It is fit again once it answers and nothing has been wrong for a while: many errors pass, with
a reset or by themselves, and a node that never takes its GPU back is repaired by hand for nothing.
"""

import msgspec

IGNORED_XIDS = frozenset((13, 31, 43, 45, 68, 109))
"""Errors of programs, not of GPUs: the list of NVIDIA's device plugin."""


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a GPU is fit."""

    recovery: float = 300.0
    """Seconds without a fault after which a GPU that answers is fit again."""
    ignored_xids: frozenset[int] = IGNORED_XIDS
    """Errors that say nothing about the GPU."""


class GpuHealth(msgspec.Struct, frozen=True):
    """The health of one GPU."""

    trouble: str = ""
    """Why it is unfit; empty where it is fit."""
    fault_at: float = 0.0
    """When something was last wrong; means nothing where it is fit."""

    @property
    def is_fit(self) -> bool:
        return not self.trouble


FIT = GpuHealth()


def after_xid(health: GpuHealth, code: int, now: float, settings: HealthSettings) -> GpuHealth:
    """The health after the driver has told of an error."""
    return health if code in settings.ignored_xids else GpuHealth(f"XID {code}", now)


def after_look(health: GpuHealth, problem: str, now: float, settings: HealthSettings) -> GpuHealth:
    """The health after the GPU was asked; `problem` is why it did not answer, empty where it did."""
    if problem:
        return GpuHealth(problem, now)
    if health.is_fit or now - health.fault_at >= settings.recovery:
        return FIT
    return health


def recovers_in(health: GpuHealth, now: float, settings: HealthSettings) -> float:
    """Seconds until the GPU is fit, if all goes well."""
    return 0.0 if health.is_fit else max(0.0, health.fault_at + settings.recovery - now)
