"""Makes the checks, all at once; one that fails or hangs is a finding of its own and stops no other."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from fnmatch import fnmatch

from colocate.aio import deadline
from colocate.apps.doctor import (  # noqa: F401 -- they declare checks
    cluster_checks,
    device_checks,
    extender_checks,
    kubelet_checks,
    load_checks,
    permissions,
)
from colocate.apps.doctor.check import CHECKS, Check, Patient, Section
from colocate.apps.doctor.report import Examined, Result, bad
from colocate.errors import ColocateError

PATIENCE = 30.0
"""Seconds for one check."""


def chosen(patterns: Sequence[str] = ()) -> list[Check]:
    """The checks whose names match any of the patterns, or all; section by section."""
    made = [check for check in CHECKS if not patterns or any(fnmatch(check.name, p) for p in patterns)]
    return sorted(made, key=lambda check: list(Section).index(check.section))


async def examine(patient: Patient, checks: Sequence[Check]) -> AsyncIterator[Examined]:
    """What each check found, in their order, as soon as it is known.

    Where a whole section cannot be looked at, that is said once and its checks are not made.
    """
    absent = _absent(patient)
    if patient.scheduling is None:
        checks = [check for check in checks if check.section is not Section.LOAD]
    async with asyncio.TaskGroup() as group:
        tasks = [
            (check, group.create_task(_make(check, patient)))
            for check in checks
            if check.section not in absent
        ]
        for section in Section:
            if section in absent and any(check.section is section for check in checks):
                yield Examined(section, "presence", (absent[section],))
            for check, task in tasks:
                if check.section is section:
                    yield Examined(section, check.name, await task)


def _absent(patient: Patient) -> dict[Section, Result]:
    absent = {}
    root = patient.paths.root
    if not root.is_dir():
        absent[Section.KUBELET] = bad(
            f"there is no {root}",
            "run this on a node, or say where the kubelet's folder is with --kubelet-root; in a pod, mount it there",
        )
    if isinstance(patient.cluster, str):
        absent[Section.CLUSTER] = bad(patient.cluster, "or look at this machine only, with --no-cluster")
    return absent


async def _make(check: Check, patient: Patient) -> tuple[Result, ...]:
    found: list[Result] = []
    try:
        async with deadline(patient.clock, PATIENCE):
            async for result in check.look(patient):
                found.append(result)
    except TimeoutError:
        found.append(bad(f"no answer within {PATIENCE:g} s", "look why what was asked is so slow"))
    except ColocateError as error:
        found.append(bad(str(error), "mend that, then ask again"))
    except Exception as error:  # noqa: BLE001 -- a fault of one check is its finding; the others go on
        found.append(
            bad(f"the check itself failed: {type(error).__name__}: {error}", "please report this as a bug")
        )
    return tuple(found)
