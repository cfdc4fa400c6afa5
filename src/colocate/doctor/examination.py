"""Runs all checks at once; a check that fails or hangs is a finding and stops no other."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from colocate.aio import deadline
from colocate.doctor import (
    cluster_checks,
    cpu_checks,
    device_checks,
    extender_checks,
    gpu_checks,
    kubelet_checks,
    load_checks,
    memory_checks,
    permissions,
    taint_checks,
)
from colocate.doctor.check import CHECKS, Check, DoctorSection, Patient
from colocate.doctor.report import CheckResult, Examined, bad, no_right, warn
from colocate.errors import ColocateError

_DECLARING = (
    kubelet_checks,
    memory_checks,
    cpu_checks,
    cluster_checks,
    device_checks,
    gpu_checks,
    load_checks,
    extender_checks,
    taint_checks,
    permissions,
)
"""The modules with checks; within a section, checks run and are printed in this order."""

PATIENCE = 30.0
"""Seconds for one check."""


def chosen(patterns: Sequence[str] = ()) -> list[Check]:
    """The checks whose names match any of the patterns, or all; section by section."""
    made = [check for check in CHECKS if not patterns or any(fnmatch(check.name, p) for p in patterns)]
    sections = list(DoctorSection)
    modules = {module.__name__: place for place, module in enumerate(_DECLARING)}
    return sorted(
        made, key=lambda c: (sections.index(c.section), modules.get(c.look.__module__, len(modules)))
    )


async def examine(patient: Patient, checks: Sequence[Check]) -> AsyncIterator[Examined]:
    """The results of each check, in order, as soon as they are known.

    If a whole section cannot be checked, that is reported once, and its checks are skipped.
    """
    absent = _absent(patient)
    unseen: list[str] = []
    if patient.scheduling is None:
        checks = [check for check in checks if check.section is not DoctorSection.LOAD]
    async with asyncio.TaskGroup() as group:
        tasks = [
            (check, group.create_task(_make(check, patient)))
            for check in checks
            if check.section not in absent
        ]
        for section in DoctorSection:
            if section in absent and any(check.section is section for check in checks):
                if absent[section].needs_root:
                    unseen.append(f"all of {section}")
                else:
                    yield Examined(section, "presence", (absent[section],))
            for check, task in tasks:
                if check.section is section:
                    results = await task
                    seen = tuple(result for result in results if not result.needs_root)
                    if len(seen) < len(results):
                        unseen.append(check.name)
                    if seen:
                        yield Examined(section, check.name, seen)
    if unseen:
        names = ", ".join(unseen)
        yield Examined(
            DoctorSection.USER,
            "needs root",
            (warn(f"not checked, or only in part: {names}", "run this as root"),),
        )


def _absent(patient: Patient) -> dict[DoctorSection, CheckResult]:
    absent = {}
    if fault := _fault_of(patient.paths.root):
        absent[DoctorSection.KUBELET] = fault
    if isinstance(patient.cluster, str):
        absent[DoctorSection.CLUSTER] = bad(patient.cluster, "or check only this machine, with --no-cluster")
    return absent


def _fault_of(root: Path) -> CheckResult | None:
    try:
        if root.is_dir():
            return None
    except PermissionError as error:
        return _not_permitted(error)
    return bad(
        f"{root} does not exist",
        "run this on a node, or give the kubelet's folder with --kubelet-root; in a pod, mount it there",
    )


def _not_permitted(error: PermissionError) -> CheckResult:
    return no_right(f"this user may not read {error.filename}")


async def _make(check: Check, patient: Patient) -> tuple[CheckResult, ...]:
    found: list[CheckResult] = []
    try:
        async with deadline(patient.clock, PATIENCE):
            async for result in check.look(patient):
                found.append(result)
    except TimeoutError:
        found.append(bad(f"no answer within {PATIENCE:g} s", "find out why the answer is so slow"))
    except PermissionError as error:
        found.append(_not_permitted(error))
    except ColocateError as error:
        found.append(bad(str(error), "repair that, then run this again"))
    except Exception as error:  # noqa: BLE001 -- a fault of one check is its result; the others go on
        found.append(
            bad(f"the check itself failed: {type(error).__name__}: {error}", "please report this as a bug")
        )
    return tuple(found)
