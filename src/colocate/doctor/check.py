"""How a function becomes a check, and what it may look at."""

import enum
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from colocate.clock import Clock
from colocate.cluster.client import Client
from colocate.cpus.placer.section import DEFAULT_CPUS_SOCKET, DEFAULT_NRI_SOCKET, DEFAULT_STATE_FOLDER
from colocate.doctor.report import CheckResult
from colocate.kubelet import KubeletPaths
from colocate.scheduler.kube.extender import KubeScheduler
from colocate.scheduler.settings import SchedulerConfig


class DoctorSection(enum.StrEnum):
    """What a check is about; printed in this order."""

    MACHINE = "this machine"
    KUBELET = "its kubelet"
    CLUSTER = "the cluster"
    LOAD = "scheduling by load"
    USER = "this user"


class Scheduling(msgspec.Struct, frozen=True):
    """What was said of `colocate scheduler`."""

    config: SchedulerConfig
    kube_scheduler: KubeScheduler | None = None
    """What kube-scheduler's own configuration says; None where it was not given."""


class Patient(msgspec.Struct, frozen=True):
    """What the checks look at."""

    paths: KubeletPaths
    control_socket: Path
    node: str
    """The name that this machine should have in the cluster."""
    clock: Clock
    cluster: Client | str
    """The way to the cluster, or why there is none; its checks are not made then."""
    placement_socket: Path = DEFAULT_CPUS_SOCKET
    placement_state: Path = DEFAULT_STATE_FOLDER
    nri_socket: Path = DEFAULT_NRI_SOCKET
    nvidia_runtime: Path = Path("/etc/nvidia-container-runtime/config.toml")
    """The configuration of NVIDIA's container runtime."""
    scheduling: Scheduling | None = None
    """How pods are scheduled by load; where nothing is said of it, nothing of it is looked at."""

    @property
    def client(self) -> Client:
        """The way to the cluster, for the checks of it."""
        assert isinstance(self.cluster, Client)
        return self.cluster


def is_there(path: Path) -> bool:
    """Whether something has this name; PermissionError, which the doctor tells once, where this user cannot see."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


Look = Callable[[Patient], AsyncIterator[CheckResult]]
L = TypeVar("L", bound=Look)


class Check(msgspec.Struct, frozen=True):
    section: DoctorSection
    name: str
    look: Look


CHECKS: list[Check] = []
"""Every check that was declared; of one section in the order of their declaration."""


def check(section: DoctorSection, name: str) -> Callable[[L], L]:
    """Make a function a check of this doctor."""

    def add(look: L) -> L:
        CHECKS.append(Check(section, name, look))
        return look

    return add
