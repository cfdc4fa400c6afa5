"""The patient whom the doctor's tests examine, and what was found of it."""

from pathlib import Path
from typing import Any

from tests.support.rights import bind_role, user

from colocate.clock import Clock, SystemClock
from colocate.cluster.client import Client
from colocate.doctor.check import Patient
from colocate.doctor.examination import chosen, examine
from colocate.doctor.report import CheckResult
from colocate.kubelet import KubeletPaths
from colocate.lab.api.server import ApiServer

NOWHERE = "no cluster here"


def patient(root: Path, cluster: Client | str = NOWHERE, clock: Clock | None = None) -> Patient:
    """All whose places are below `root`."""
    return Patient(
        KubeletPaths(root),
        root / "agent.sock",
        "worker",
        clock or SystemClock(),
        cluster,
        placement_socket=root / "cpus.sock",
        placement_state=root / "placement",
        nri_socket=root / "nri.sock",
        nvidia_runtime=root / "nvidia.toml",
    )


async def found(who: Patient, *names: str) -> dict[str, tuple[CheckResult, ...]]:
    return {e.check: e.results async for e in examine(who, chosen(names))}


async def only(who: Patient, name: str) -> CheckResult:
    [result] = (await found(who, name))[name]
    return result


def grant(server: ApiServer, name: str, *rules: dict[str, Any]) -> None:
    bind_role(server.registry, name, rules, user(name))
