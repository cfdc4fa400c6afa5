"""Plans the steps that put the CRI proxy between a kubelet and its runtime, and those that remove it.

The kubelet's endpoint is changed where the kubelet has it: in its flags (kubeadm-flags.env, /etc/default/kubelet) or
in its configuration (containerRuntimeEndpoint). A copy of the original file is kept beside it. Uninstalling restores
the copy if the file was not changed since, else only the endpoint.

Either the proxy or the NRI plugin, whose unit is in examples/, runs on a node. The lock on their state ensures that,
not systemd: starting the plugin must not stop the proxy, which would cut the kubelet off from its runtime.
"""

import re
from pathlib import Path

import msgspec

from colocate.cpus.installation.steps import RemoveFile, RunCommand, Step, WriteFile
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

CRI_UNIT = "colocate-cri-proxy.service"
DEFAULT_RUNTIME = "unix:///run/containerd/containerd.sock"
DEFAULT_LISTEN = "unix:///run/colocate/cri.sock"
_BACKUP = ".before-colocate"
_WORD = re.compile(r"[A-Za-z0-9_./:@%+=,-]+")
_LISTEN = re.compile(r"^ExecStart=.* --listen \"?(?P<endpoint>[^\s\"]+)", re.MULTILINE)


class NodeFiles(msgspec.Struct, frozen=True):
    """Paths of a node's files; below another root for an image that is not running."""

    unit: Path
    flag_files: tuple[Path, ...]
    config_file: Path
    live: bool
    """Whether this is the running system: then its services are restarted."""
    kubelet: Path = DEFAULT_ROOT
    """The kubelet's folder."""

    @classmethod
    def below(cls, root: Path) -> "NodeFiles":
        """The files below a root; UserError if links of the image form a circle."""

        def at(path: Path) -> Path:
            # A link stays a link: its target is changed, and copied beside the target. Links of an image are
            # resolved within the image.
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
    """The arguments of the proxy."""

    program: str
    listen: str = DEFAULT_LISTEN
    runtime: str = ""
    """The runtime's endpoint; empty: the endpoint that the kubelet has now."""
    config: Path | None = None


def install_steps(files: NodeFiles, wanted: WantedProxy) -> list[Step]:
    """The steps that install the proxy; if the kubelet already uses it, only its unit and both restarts."""
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
    """The steps that remove the proxy; none if it is not installed."""
    unit = text_of(files.unit)
    listed = _LISTEN.search(unit or "")
    listen = listed["endpoint"] if listed else DEFAULT_LISTEN
    steps: list[Step] = []
    place = find(RUNTIME_ENDPOINT, files.flag_files, files.config_file)
    if place is not None and place.value == listen:
        steps.append(WriteFile(place.file, _as_before(files, place)))
    if (steps or unit is not None) and files.live:
        # Even if the file is already restored: an earlier run may have been interrupted right here.
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
    """The text of the kubelet's file without the proxy."""
    text = text_of(place.file) or ""
    kept = _kept(place.file)
    if kept is None:
        return _with_endpoint(files, place.file, text, DEFAULT_RUNTIME)
    if _with_endpoint(files, place.file, kept, place.value) == text:
        return kept
    return _with_endpoint(files, place.file, text, _endpoint(files, place.file, kept))


def _backed_up(files: NodeFiles) -> str:
    """The endpoint that the kubelet had before; empty if unknown."""
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
    """The original text of a file; None if there is no copy."""
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


def cri_proxy_unit(program: str, runtime: str, listen: str, config: Path | None = None) -> str:
    """The systemd unit of the proxy: it starts before the kubelet, and restarts whenever it ends."""
    command = [program, "cri-proxy", "--runtime", runtime, "--listen", listen]
    start = " ".join(map(_quoted, [*command, *(("--config", str(config)) if config else ())]))
    return "\n".join(
        [
            "[Unit]",
            "Description=Colocate CRI proxy: places containers on CPUs, between the kubelet and its runtime",
            "After=containerd.service crio.service",
            # The kubelet must find the socket when it starts; a unit of Type=notify is up once it says so.
            "Before=kubelet.service",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=notify",
            f"ExecStart={start}",
            "ExecReload=/bin/kill -HUP $MAINPID",
            "Restart=always",
            "RestartSec=1",
            "StateDirectory=colocate",
            "RuntimeDirectory=colocate",
            "RuntimeDirectoryMode=0711",
            "RuntimeDirectoryPreserve=yes",
            "OOMScoreAdjust=-999",
            "LimitNOFILE=65536",
            "NoNewPrivileges=yes",
            "ProtectHome=yes",
            "ProtectSystem=full",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def _quoted(word: str) -> str:
    """A word of a command, quoted for systemd."""
    escaped = word.replace("%", "%%").replace("$", "$$")
    if _WORD.fullmatch(word):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'
