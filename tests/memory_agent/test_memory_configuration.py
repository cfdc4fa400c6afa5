"""A memory part is made from a configuration, or it is said what the configuration lacks, in an agent's own words."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from colocate.agent.configuration import build
from colocate.agent.device_bound import DeviceBound
from colocate.agent.memory_part import memory_part
from colocate.clock import ManualClock
from colocate.errors import UserError

INSECURE: dict[str, Any] = {"insecure-skip-tls-verify": True}


def kubeconfig(server: str = "https://far:6443", current: str = "one", **cluster: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "one", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "one", "user": {"token": "t0k3n"}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "current-context": current,
    }


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            kubeconfig(**INSECURE),
            "a file alone cannot enable it; set certificate-authority instead",
        ),
        (kubeconfig("http://far:80"), "would get the credential in clear text; use https"),
        (kubeconfig(current=""), "current-context is not set; set it (one)"),
        (None, "give a kubeconfig with memory.kubeconfig or KUBECONFIG, or run in a pod"),
    ],
    ids=["insecure", "in the clear", "no context", "nothing at all"],
)
def test_a_remedy_names_no_flag_that_an_agent_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: dict[str, Any] | None, words: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    memory = {"enabled": True, "node": "n", "stateFolder": str(tmp_path / "state")}
    if document is not None:
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
        memory["kubeconfig"] = str(tmp_path / "kubeconfig")
    config = build(yaml.safe_dump({"version": 1, "memory": memory}).encode(), "agent.yaml").config
    with pytest.raises(UserError) as raised:
        memory_part(config, ManualClock(), DeviceBound(config))
    assert words in str(raised.value)
    assert "--" not in str(raised.value).replace(str(tmp_path), "")
