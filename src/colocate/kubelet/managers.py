"""Checks whether the kubelet assigns CPUs or memory nodes itself: then Colocate must not, or both write the same
cpusets."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from colocate.errors import UserError
from colocate.kubelet.configuration import (
    CONFIG_FILE,
    CPU_MANAGER,
    FLAG_FILES,
    MEMORY_MANAGER,
    KubeletSetting,
    find,
    text_of,
)
from colocate.kubelet.paths import KubeletPaths

_MANAGERS = {
    "CPU manager": (CPU_MANAGER, "cpu_manager_state"),
    "memory manager": (MEMORY_MANAGER, "memory_manager_state"),
}


class _ManagerState(msgspec.Struct, rename="camel"):
    policy_name: str = ""


def static_managers(
    paths: KubeletPaths | None = None,
    flag_files: Sequence[Path] = FLAG_FILES,
    config_file: Path = CONFIG_FILE,
) -> dict[str, str]:
    """The managers whose policy is static, each with the file that says so; state files of an earlier run count as
    well."""
    root = (paths or KubeletPaths()).root
    found = {}
    for name, (setting, state_file) in _MANAGERS.items():
        if file := _static(setting, root / state_file, flag_files, config_file):
            found[name] = str(file)
    return found


def check_managers(
    paths: KubeletPaths | None = None,
    flag_files: Sequence[Path] = FLAG_FILES,
    config_file: Path = CONFIG_FILE,
) -> None:
    """UserError where the kubelet has a static manager."""
    for name, file in static_managers(paths, flag_files, config_file).items():
        raise UserError(
            f"{file}: the kubelet's {name} is static, and both would write the same cpusets; "
            f"set its policy to none, remove {name.split()[0].lower()}_manager_state and restart the kubelet, "
            f"or leave the placement to the kubelet"
        )


def _static(
    setting: KubeletSetting, state_file: Path, flag_files: Sequence[Path], config_file: Path
) -> Path | None:
    text = text_of(state_file)
    if text is not None:
        try:
            if msgspec.json.decode(text, type=_ManagerState).policy_name.lower() == "static":
                return state_file
        except msgspec.DecodeError:
            pass  # The kubelet itself refuses to start with such a file, and says so.
    place = find(setting, flag_files, config_file)
    return place.file if place is not None and place.value.lower() == "static" else None
