"""Steps of an installation (files to write or remove, commands to run), shown or carried out in order."""

import difflib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from colocate.crashpoints import reached
from colocate.errors import UserError, system_reason, visible
from colocate.host.files import sync_folder, write_atomically
from colocate.kubelet.configuration import text_of

_COMMAND_SECONDS = 120
BOOTED = Path("/run/systemd/system")
"""Exists if systemd runs the machine, see sd_booted(3)."""


class WriteFile(msgspec.Struct, frozen=True):
    """Write a file. An existing one keeps its mode and owner."""

    path: Path
    text: str
    mode: int = 0o644


class RemoveFile(msgspec.Struct, frozen=True):
    """Remove a file, if it exists."""

    path: Path


class RunCommand(msgspec.Struct, frozen=True):
    """Run a command, which must succeed."""

    command: tuple[str, ...]
    remedy: str = ""
    """What to do if it fails."""


Step = WriteFile | RemoveFile | RunCommand


def show(steps: Sequence[Step]) -> Iterator[str]:
    """The steps in lines of text; a changed file as a diff."""
    for step in steps:
        match step:
            case WriteFile():
                before = text_of(step.path)
                if before == step.text:
                    yield f"keep {step.path}"
                    continue
                yield f"write {step.path}:" if before is None else f"change {step.path}:"
                for line in _difference(before, step.text):
                    yield f"  {visible(line)}"
            case RemoveFile():
                yield f"remove {step.path}"
            case RunCommand():
                yield f"run {' '.join(step.command)}"


def has_systemd(booted: Path = BOOTED) -> bool:
    """Whether systemd runs this machine's services."""
    return booted.is_dir() and shutil.which("systemctl") is not None


def carry_out(steps: Sequence[Step], booted: Path = BOOTED) -> None:
    """Carry the steps out; UserError at the first that fails. A second run does what is left.

    If systemd is needed and does not run, no step is carried out.
    """
    services = [step for step in steps if isinstance(step, RunCommand) and step.command[0] == "systemctl"]
    if services and not has_systemd(booted):
        raise UserError(
            f"'{' '.join(services[0].command)}' needs systemd, which does not run this machine, and nothing is "
            "changed; run 'colocate cri-proxy' before the kubelet by your own init, and set the kubelet's "
            "--container-runtime-endpoint yourself (docs/placement.md)"
        )
    for step in steps:
        reached("install.step")
        match step:
            case WriteFile():
                _write(step)
            case RemoveFile():
                _remove(step.path)
            case RunCommand():
                _run(step)


def _difference(before: str | None, after: str) -> Iterator[str]:
    if before is None:
        yield from after.splitlines()
        return
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            yield line


def _write(step: WriteFile) -> None:
    mode, owner = step.mode, None
    try:
        if step.path.exists():
            found = step.path.stat()
            mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
        step.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(step.path, step.text.encode(), mode, owner)
    except OSError as error:
        raise UserError(
            f"{step.path}: cannot be written ({system_reason(error)}); run this as root"
        ) from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        if path.parent.exists():
            sync_folder(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be removed ({system_reason(error)}); run this as root") from error


def _run(step: RunCommand) -> None:
    shown = " ".join(step.command)
    remedy = step.remedy or "mend that, and try again"
    try:
        done = subprocess.run(
            step.command,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"'{shown}' could not be run ({error}); {remedy}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise UserError(
            f"'{shown}' failed ({said[-1] if said else f'exit code {done.returncode}'}); {remedy}"
        )
