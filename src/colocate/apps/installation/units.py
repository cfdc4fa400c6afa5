"""The systemd units of those who place containers: one for each way in.

Only one of them runs on a node. The lock on their state sees to that, and not systemd: who starts the plugin must not
stop the proxy, and cut the kubelet off from its runtime.
"""

import re
from pathlib import Path

CRI_UNIT = "colocate-cri-proxy.service"
NRI_UNIT = "colocate-nri.service"
_WORD = re.compile(r"[A-Za-z0-9_./:@%+=,-]+")


def cri_proxy_unit(program: str, runtime: str, listen: str, config: Path | None = None) -> str:
    """The proxy: up before the kubelet is, and up again whatever happens to it."""
    command = [program, "cri-proxy", "--runtime", runtime, "--listen", listen]
    return _unit(
        "Colocate CRI proxy: places containers on CPUs, between the kubelet and its runtime",
        [*command, *(("--config", str(config)) if config else ())],
        # The kubelet finds the socket when it starts; units of Type=notify are up once they say so.
        relations=("After=containerd.service crio.service", "Before=kubelet.service"),
        kind="notify",
    )


def nri_unit(program: str, config: Path | None = None) -> str:
    """The NRI plugin: beside the runtime, which goes on without it."""
    return _unit(
        "Colocate NRI plugin: places containers on CPUs",
        [program, "nri", *(("--config", str(config)) if config else ())],
        relations=("After=containerd.service crio.service",),
        kind="exec",
    )


def _unit(about: str, command: list[str], relations: tuple[str, ...], kind: str) -> str:
    start = " ".join(map(_quoted, command))
    return "\n".join(
        [
            "[Unit]",
            f"Description={about}",
            *relations,
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            f"Type={kind}",
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
    """A word of a command as systemd reads it."""
    escaped = word.replace("%", "%%").replace("$", "$$")
    if _WORD.fullmatch(word):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'
