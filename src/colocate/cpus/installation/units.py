"""The systemd unit of the CRI proxy.

Only one of it and the NRI plugin, whose unit is in examples/, runs on a node. The lock on their state sees to that,
and not systemd: who starts the plugin must not stop the proxy, and cut the kubelet off from its runtime.
"""

import re
from pathlib import Path

CRI_UNIT = "colocate-cri-proxy.service"
_WORD = re.compile(r"[A-Za-z0-9_./:@%+=,-]+")


def cri_proxy_unit(program: str, runtime: str, listen: str, config: Path | None = None) -> str:
    """The proxy: up before the kubelet is, and up again whatever happens to it."""
    command = [program, "cri-proxy", "--runtime", runtime, "--listen", listen]
    start = " ".join(map(_quoted, [*command, *(("--config", str(config)) if config else ())]))
    return "\n".join(
        [
            "[Unit]",
            "Description=Colocate CRI proxy: places containers on CPUs, between the kubelet and its runtime",
            "After=containerd.service crio.service",
            # The kubelet finds the socket when it starts; units of Type=notify are up once they say so.
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
    """A word of a command as systemd reads it."""
    escaped = word.replace("%", "%%").replace("$", "$$")
    if _WORD.fullmatch(word):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'
