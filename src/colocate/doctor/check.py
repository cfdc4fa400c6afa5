"""Declares checks, and what they can read."""

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
    """The configuration of `colocate scheduler` that the user gave."""

    config: SchedulerConfig
    kube_scheduler: KubeScheduler | None = None
    """kube-scheduler's own configuration; None if not given."""


class Patient(msgspec.Struct, frozen=True):
    """What the checks read."""

    paths: KubeletPaths
    control_socket: Path
    node: str
    """The expected name of this machine's node."""
    clock: Clock
    cluster: Client | str
    """The API client, or why there is none; then the checks of the cluster are skipped."""
    placement_socket: Path = DEFAULT_CPUS_SOCKET
    placement_state: Path = DEFAULT_STATE_FOLDER
    nri_socket: Path = DEFAULT_NRI_SOCKET
    nvidia_runtime: Path = Path("/etc/nvidia-container-runtime/config.toml")
    """The configuration of NVIDIA's container runtime."""
    scheduling: Scheduling | None = None
    """The configuration of scheduling by load; None if not given, then its checks are skipped."""

    @property
    def client(self) -> Client:
        """The API client, for checks of the cluster."""
        assert isinstance(self.cluster, Client)
        return self.cluster


def is_there(path: Path) -> bool:
    """Whether a file exists; PermissionError, which the doctor reports once, if this user cannot see it."""
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
"""Every declared check; within a section in the order of declaration."""


def check(section: DoctorSection, name: str) -> Callable[[L], L]:
    """Declare a function as a check."""

    def add(look: L) -> L:
        CHECKS.append(Check(section, name, look))
        return look

    return add
