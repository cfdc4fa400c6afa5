"""Real components that tests run against: which file stands for each, where it may be, and what if it is missing."""

import os
import shutil
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".components"
"""Where tools/install-components unpacks packages that clash with others."""

PROGRAMS = {
    **{name: name for name in ("kubectl", "prometheus", "promtool", "protoc", "strace", "zsh", "fish")},
    "node-exporter": "prometheus-node-exporter",
    **{name: name for name in ("qemu-img", "numactl", "containerd", "ctr", "runc")},
    **{name: str(FOLDER / name / "usr/bin/containerd") for name in ("containerd-1.7", "containerd-2.1")},
    **{name: str(FOLDER / name / "usr/bin/kubectl") for name in ("kubectl-1.20", "kubectl-1.36")},
    "busybox": str(FOLDER / "bin/busybox"),  # no other: it must need no libraries
    "qemu": "qemu-system-x86_64",
    "kmod": "modprobe",
    "e2fsprogs": "mkfs.ext4",
}
"""By component, the program; tools/install-components knows the packages. `kernel` is no program, but a file."""

_PLACES = [
    Path(sys.executable).parent,
    *(FOLDER / place for place in ("usr/bin", "usr/sbin", "bin", "kubectl-1.36/usr/bin")),
    *(Path(place) for place in ("/usr/sbin", "/sbin")),
]


def find(name: str) -> str | None:
    """A component: on the PATH, in this virtual environment, or unpacked here."""
    if name == "kernel":
        return _newest_kernel()
    program = PROGRAMS[name]
    return shutil.which(program) or next((str(p / program) for p in _PLACES if (p / program).exists()), None)


def missing(*names: str) -> str:
    """The first of the components that this machine lacks, or nothing."""
    return next((name for name in names if find(name) is None), "")


def require(*names: str) -> None:
    """Without one of these the test that runs is skipped; under CI=true it fails."""
    import pytest  # not wanted by programs in VMs that only look for a component

    lacking = missing(*names)
    if lacking and os.environ.get("CI") == "true":
        pytest.fail(f"CI must have {lacking}: tools/install-components installs it", pytrace=False)
    if lacking:
        pytest.skip(f"{lacking} is not here: run tools/install-components as root on Debian")


def _newest_kernel() -> str | None:
    """Debian's: vmlinuz in a boot folder whose modules are in the lib folder beside it."""
    for root in (FOLDER, Path("/")):
        kernels = [path for path in root.glob("boot/vmlinuz-*-amd64") if os.access(path, os.R_OK)]
        if kernels:
            return str(
                max(
                    kernels,
                    key=lambda path: [int(n) for n in path.name.replace("-", ".").split(".") if n.isdigit()],
                )
            )
    return None
