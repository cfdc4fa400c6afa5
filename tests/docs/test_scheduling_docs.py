"""docs/scheduling.md and the manifests beside it say what the program does."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml

from colocate.cluster.usage import Preset, rules
from colocate.config.file import build_document
from colocate.scheduler.kube import configuration as kube_config
from colocate.scheduler.kube.configuration import WantedConfiguration
from colocate.scheduler.loop.taints import keys
from colocate.scheduler.settings import SCHEDULER, Act, SchedulerConfig

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs" / "scheduling.md").read_text()
EXAMPLES = REPO / "examples" / "scheduler"


def manifests(name: str) -> dict[str, dict[str, object]]:
    return {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / name).read_text())}


def test_the_configuration_that_is_shown_is_the_default_with_an_address() -> None:
    text = PAGE.split("```yaml\nversion: 1")[1].split("```")[0]
    config = build_document(SCHEDULER, f"version: 1{text}".encode(), "the page").config
    prometheus = msgspec.structs.replace(config.usage.prometheus, url="")
    usage = msgspec.structs.replace(config.usage, prometheus=prometheus)
    assert msgspec.structs.replace(config, usage=usage) == SchedulerConfig()


def test_the_tolerations_are_those_of_all_taints() -> None:
    text = PAGE.split("```yaml\ntolerations:")[1].split("```")[0]
    assert tuple(one["key"] for one in yaml.safe_load(f"tolerations:{text}")["tolerations"]) == keys(4)


@pytest.mark.parametrize("way", Act)
def test_both_ways_to_act_are_explained(way: Act) -> None:
    assert f"`act: [{way}]`" in PAGE


def test_the_manifest_of_colocate_holds_a_configuration_that_can_be_used() -> None:
    data = manifests("colocate.yaml")["ConfigMap"]["data"]
    assert isinstance(data, dict)
    config = build_document(SCHEDULER, data["scheduler.yaml"].encode(), "colocate.yaml").config
    assert config.usage.prometheus.url
    assert config.load.policies == {"mem-real-usage-scheduler": "mem-real-usage"}


def test_the_manifest_of_colocate_lets_in_only_who_shows_the_token_that_it_mounts() -> None:
    found = manifests("colocate.yaml")
    data: Any = found["ConfigMap"]["data"]
    config = build_document(SCHEDULER, data["scheduler.yaml"].encode(), "colocate.yaml").config
    spec = cast("Any", found["Deployment"]["spec"])["template"]["spec"]
    mounted = {one["name"]: Path(one["mountPath"]) for one in spec["containers"][0]["volumeMounts"]}
    secrets = [mounted[one["name"]] / "token" for one in spec["volumes"] if "secret" in one]
    assert secrets == [config.server.callers.token_file]


def test_the_manifest_of_kube_scheduler_holds_what_kube_config_prints() -> None:
    data = manifests("kube-scheduler.yaml")["Secret"]["stringData"]
    assert isinstance(data, dict)
    assert data["scheduler.yaml"] == kube_config.render(
        WantedConfiguration(url="http://scheduler:TOKEN@colocate-scheduler.kube-system:8890")
    )


def test_the_rules_are_those_that_the_preset_asks_for() -> None:
    assert (EXAMPLES / "prometheus-rules.yaml").read_text().endswith(rules(Preset.REAL_USAGE))


def test_every_container_of_colocate_in_the_examples_has_a_memory_limit() -> None:
    found = {}
    for file in sorted((REPO / "examples").rglob("*.yaml")):
        for one in yaml.safe_load_all(file.read_text()):
            if isinstance(one, dict) and one.get("kind") in ("Deployment", "DaemonSet"):
                for container in one["spec"]["template"]["spec"].get("containers", []):
                    if str(container.get("image", "")).startswith("colocate"):
                        found[f"{file.parent.name}/{file.name}"] = container["resources"]["limits"]["memory"]
    assert {"scheduler/colocate.yaml", "gpus/daemonset.yaml", "memory/daemonset.yaml"} <= found.keys()
