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
        0, "/dev/stdin: valid; mock resources: mock/gpu (8 devices), example.com/licence (2 devices)\n", ""
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
    assert ended.out == f"{file}: valid; mock resources: none\n"
    assert ended.err.startswith(
        "warning: COLOCATE_KUBELET_ROT: there is no such variable; did you mean 'COLOCATE_KUBELET_ROOT'?"
    )
