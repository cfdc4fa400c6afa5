"""What puts the proxy between a kubelet and its runtime, and what takes it out again, from what is on the node.

The kubelet's endpoint is changed where the kubelet has it: in its flags (kubeadm-flags.env, /etc/default/kubelet) or
in its configuration (containerRuntimeEndpoint). The file as it was is kept beside it. Who goes back gets that file if
nobody has changed it since, else the endpoint alone.
"""

import re
from pathlib import Path

import msgspec

from colocate.cpus.installation.steps import RemoveFile, RunCommand, Step, WriteFile
from colocate.cpus.installation.units import CRI_UNIT, cri_proxy_unit
from colocate.errors import UserError
from colocate.host.files import LeadsElsewhere, resolved_below
from colocate.kubelet.configuration import (
    CONFIG_FILE,
    FLAG_FILES,
    RUNTIME_ENDPOINT,
    SettingPlace,
    field,
    find,
    flag,
    text_of,
    with_field,
    with_flag,
)
from colocate.kubelet.paths import DEFAULT_ROOT

DEFAULT_RUNTIME = "unix:///run/containerd/containerd.sock"
DEFAULT_LISTEN = "unix:///run/colocate/cri.sock"
_BACKUP = ".before-colocate"
_LISTEN = re.compile(r"^ExecStart=.* --listen \"?(?P<endpoint>[^\s\"]+)", re.MULTILINE)


class NodeFiles(msgspec.Struct, frozen=True):
    """Where a node has what; below another root for an image that is not running."""

    unit: Path
    flag_files: tuple[Path, ...]
    config_file: Path
    live: bool
    """Whether this is the running system, whose services are to be started."""
    kubelet: Path = DEFAULT_ROOT
    """The kubelet's folder."""

    @classmethod
    def below(cls, root: Path) -> "NodeFiles":
        """UserError where links of the image lead round in a circle."""

        def at(path: Path) -> Path:
            # A file that is a link stays one: its target is changed, and kept beside that. An image's links lead to
            # places in the image, wherever it lies on this machine.
            try:
                return resolved_below(root, path)
            except LeadsElsewhere as error:
                raise UserError(f"--root {root}: {error}; mend the links of the image") from error

        return cls(
            at(Path("/etc/systemd/system") / CRI_UNIT),
            tuple(map(at, FLAG_FILES)),
            at(CONFIG_FILE),
            root.resolve() == Path("/"),
            at(DEFAULT_ROOT),
        )


class WantedProxy(msgspec.Struct, frozen=True):
    """How the proxy is to run."""

    program: str
    listen: str = DEFAULT_LISTEN
    runtime: str = ""
    """Nothing: the endpoint that the kubelet has now."""
    config: Path | None = None


def install_steps(files: NodeFiles, wanted: WantedProxy) -> list[Step]:
    """What puts the proxy in place; where the kubelet has it already, its unit, and both started again."""
    place = find(RUNTIME_ENDPOINT, files.flag_files, files.config_file)
    now = place.value if place else ""
    before = _backed_up(files) if now == wanted.listen else now
    runtime = wanted.runtime or before or DEFAULT_RUNTIME
    if runtime == wanted.listen:
        raise UserError(
            f"--listen: {wanted.listen} is the runtime's own socket; choose another path, or name the runtime's with "
            f"--runtime"
        )
    if "cri-resmgr" in runtime:
        raise UserError(
            f"{runtime} is cri-resource-manager's socket, and both would place containers; disable it, and name the "
            f"runtime's own with --runtime {DEFAULT_RUNTIME}"
        )
    unit = cri_proxy_unit(wanted.program, runtime, wanted.listen, wanted.config)
    steps: list[Step] = [WriteFile(files.unit, unit)]
    if files.live:
        steps += [
            RunCommand(("systemctl", "daemon-reload")),
            RunCommand(("systemctl", "enable", CRI_UNIT)),
            RunCommand(
                ("systemctl", "restart", CRI_UNIT),
                f"'journalctl -u {CRI_UNIT}' says why; the kubelet was not changed",
            ),
        ]
    if now != wanted.listen:
        file = place.file if place else _place_for_endpoint(files)
        text = text_of(file) or ""
        steps += [
            WriteFile(_backup(file), text, 0o600),
            WriteFile(file, _with_endpoint(files, file, text, wanted.listen)),
        ]
    if files.live:
        steps.append(
            RunCommand(
                ("systemctl", "restart", "kubelet"),
                "'journalctl -u kubelet' says why; 'colocate cri-proxy uninstall' goes back",
            )
        )
    return steps


def uninstall_steps(files: NodeFiles) -> list[Step]:
    """What takes the proxy out; nothing where it is not in place."""
    unit = text_of(files.unit)
    listed = _LISTEN.search(unit or "")
    listen = listed["endpoint"] if listed else DEFAULT_LISTEN
    steps: list[Step] = []
    place = find(RUNTIME_ENDPOINT, files.flag_files, files.config_file)
    if place is not None and place.value == listen:
        steps.append(WriteFile(place.file, _as_before(files, place)))
    if (steps or unit is not None) and files.live:
        # Also where its file is as it was: somebody may have been cut off right here.
        steps.append(RunCommand(("systemctl", "restart", "kubelet"), "'journalctl -u kubelet' says why"))
    if unit is not None:
        if files.live:
            steps.append(RunCommand(("systemctl", "disable", "--now", CRI_UNIT)))
        steps.append(RemoveFile(files.unit))
        if files.live:
            steps.append(RunCommand(("systemctl", "daemon-reload")))
    steps += [RemoveFile(_backup(file)) for file in _files(files) if _backup(file).exists()]
    return steps


def _as_before(files: NodeFiles, place: SettingPlace) -> str:
    """The kubelet's file without the proxy."""
    text = text_of(place.file) or ""
    kept = _kept(place.file)
    if kept is None:
        return _with_endpoint(files, place.file, text, DEFAULT_RUNTIME)
    if _with_endpoint(files, place.file, kept, place.value) == text:
        return kept
    return _with_endpoint(files, place.file, text, _endpoint(files, place.file, kept))


def _backed_up(files: NodeFiles) -> str:
    """The endpoint that the kubelet had before; nothing where nobody knows."""
    for file in _files(files):
        kept = _kept(file)
        if kept is not None and (value := _endpoint(files, file, kept)):
            return value
    return ""


def _place_for_endpoint(files: NodeFiles) -> Path:
    for file in (files.flag_files[0], files.config_file):
        if file.exists():
            return file
    raise UserError(
        f"neither {files.flag_files[0]} nor {files.config_file} is here: this kubelet is not kubeadm's; set its "
        f"--container-runtime-endpoint yourself, and run 'colocate cri-proxy' before it (docs/placement.md)"
    )


def _files(files: NodeFiles) -> tuple[Path, ...]:
    return (*files.flag_files, files.config_file)


def _backup(file: Path) -> Path:
    return file.with_name(file.name + _BACKUP)


def _kept(file: Path) -> str | None:
    """The file as it was before; None where it was not kept."""
    backup = _backup(file)
    if backup.is_symlink():
        raise UserError(f"{backup}: it is a link, and no copy of ours; move it away, and try again")
    return text_of(backup)


def _endpoint(files: NodeFiles, file: Path, text: str) -> str | None:
    if file == files.config_file:
        return field(text, RUNTIME_ENDPOINT.field)
    return flag(text, RUNTIME_ENDPOINT.flag)


def _with_endpoint(files: NodeFiles, file: Path, text: str, endpoint: str | None) -> str:
    if file == files.config_file:
        return with_field(text, RUNTIME_ENDPOINT.field, endpoint)
    return with_flag(text, RUNTIME_ENDPOINT.flag, endpoint)
