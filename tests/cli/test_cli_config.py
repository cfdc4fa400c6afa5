"""`colocate config`."""

from pathlib import Path

import pytest
from tests.cli.running import Ended, colocate

EXAMPLES = Path(__file__).parents[2] / "examples"


async def test_the_example_is_printed_and_passes_its_own_check() -> None:
    printed = await colocate("config", "example")
    assert printed == Ended(0, (EXAMPLES / "agent.yaml").read_text(), "")
    checked = await colocate("config", "check", "/dev/stdin", stdin=printed.out)
    assert checked == Ended(
        0, "/dev/stdin: valid; mock/gpu (8 mock devices), example.com/licence (2 mock devices)\n", ""
    )


@pytest.mark.parametrize("command", [("config", "check"), ("config", "show"), ("agent", "--config")])
async def test_a_bad_file_is_one_sentence_and_exit_code_2(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("version: 1\nmock:\n  resources:\n    - name: mock/gpu\n      count: -1\n")
    ended = await colocate(*command, file)
    assert ended == Ended(
        2,
        "",
        f"colocate: {file}: mock.resources[0].count: -1 is below 0; set the number of devices\n",
    )


async def test_a_missing_file_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    ended = await colocate("config", "check", tmp_path / "none.yaml")
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert "no such file or directory" in ended.err


async def test_show_tells_where_overridden_values_come_from(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("version: 1\nlog: {level: error, format: text}\n")
    ended = await colocate(
        "config", "show", file, "--log-level", "debug", COLOCATE_LOG_LEVEL="info", COLOCATE_KUBELET_ROOT="/k"
    )
    assert ended.code == 0
    assert "  root: /k  # from COLOCATE_KUBELET_ROOT\n" in ended.out
    assert "  level: debug  # from --log-level\n" in ended.out
    assert "  format: text\n" in ended.out


async def test_a_variable_that_nobody_reads_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("version: 1\n")
    ended = await colocate("config", "check", file, COLOCATE_KUBELET_ROT="/k")
    assert ended.code == 0
    assert ended.out == f"{file}: valid; nothing is switched on, so the agent would be idle\n"
    assert ended.err.startswith(
        "warning: COLOCATE_KUBELET_ROT: there is no such variable; did you mean 'COLOCATE_KUBELET_ROOT'?"
    )


async def test_memory_alone_is_told(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("version: 1\nmemory:\n  enabled: true\n")
    ended = await colocate("config", "check", file)
    assert ended == Ended(0, f"{file}: valid; colocate.dev/colocation-memory (idle memory)\n", "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "version: 1\ncpus: {nri: {enabled: true}}\n",
            "placement of containers (policy topology, by NRI)",
        ),
        (
            "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 750m\n",
            "policy topology for 'colocate cri-proxy' and 'colocate nri'",
        ),
    ],
)
async def test_placement_alone_is_told(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "fallback.cfg"
    file.write_text(text)
    assert await colocate("config", "check", file) == Ended(0, f"{file}: valid; {told}\n", "")


async def test_the_configuration_of_the_other_process_is_recognised() -> None:
    theirs = EXAMPLES / "scheduler" / "scheduler.yaml"
    ended = await colocate("config", "check", theirs)
    assert ended.code == 2
    assert "the configuration of 'colocate scheduler'; check it with 'colocate scheduler config" in ended.err
    ended = await colocate("scheduler", "config", "check", EXAMPLES / "agent.yaml")
    assert ended.code == 2
    assert "the configuration of 'colocate agent'; check it with 'colocate config check'" in ended.err


@pytest.mark.parametrize("group", [("config",), ("scheduler", "config")])
async def test_a_kubernetes_object_is_recognised(group: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_text("apiVersion: v1\nkind: ConfigMap\n")
    ended = await colocate(*group, "check", file)
    assert ended == Ended(
        2, "", f"colocate: {file}: this is a Kubernetes object; give the file that it holds\n"
    )


async def test_the_schedulers_example_is_printed_and_passes_its_own_check() -> None:
    printed = await colocate("scheduler", "config", "example")
    assert printed == Ended(0, (EXAMPLES / "scheduler" / "scheduler.yaml").read_text(), "")
    checked = await colocate("scheduler", "config", "check", "/dev/stdin", stdin=printed.out)
    assert checked.code == 0
    assert checked.out.startswith("/dev/stdin: valid; acts by extender; policy ")
    assert checked.out.endswith("; samples from Prometheus\n")


async def test_the_schedulers_example_shows_defaults(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("version: 1\n")
    bare = await colocate("scheduler", "config", "show", empty)
    shown = await colocate("scheduler", "config", "show", EXAMPLES / "scheduler" / "scheduler.yaml")
    assert shown.out.replace("    url: http://127.0.0.1:9090\n", "    url: ''\n") == bare.out


async def test_show_of_the_scheduler_tells_where_overridden_values_come_from(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("version: 1\n")
    ended = await colocate("scheduler", "config", "show", file, "--set", "load.policy=load-aware")
    assert "  policy: load-aware  # from --set load.policy\n" in ended.out
    assert (await colocate("scheduler", "config", "check", file)).out.endswith(
        "no samples: add usage.prometheus.url\n"
    )
