"""`colocate scheduler` as a person uses it."""

from pathlib import Path

import yaml
from tests.cli.running import colocate, on_terminal

from colocate.lab.scheduler import configuration

SEED = Path(__file__).parents[1] / "data" / "seeds" / "001-scheduler.yaml"


async def test_kube_config_prints_what_a_kube_scheduler_reads() -> None:
    flags = [
        "--url",
        "http://extender:8890",
        "--scheduler-name",
        "a",
        "--scheduler-name",
        "b",
        "--points",
        "20",
    ]
    ended = await colocate("scheduler", "kube-config", *flags)
    assert ended.code == 0
    read = configuration.read(ended.out)
    assert [profile.scheduler_name for profile in read.profiles] == ["a", "b"]
    assert (read.extenders[0].url_prefix, read.extenders[0].weight) == ("http://extender:8890", 7)


async def test_on_a_terminal_the_reasons_beside_the_lines_of_kube_config_fit() -> None:
    words = ("scheduler", "kube-config", "--filter", "--url", "https://extender:8890")
    narrow, piped = (await on_terminal(*words)).out, (await colocate(*words)).out
    assert max(map(len, narrow.splitlines())) <= 80
    assert yaml.safe_load(narrow) == yaml.safe_load(piped)
    assert len(narrow.splitlines()) > len(piped.splitlines())


async def test_kube_config_takes_the_seeds_own_file_over() -> None:
    ended = await colocate("scheduler", "kube-config", "--from", SEED)
    assert ended.code == 0
    assert ended.out.startswith(
        "# For the configuration of 'colocate scheduler':\n"
        "#   Prometheus http://10.96.0.102:9090, asked every 10 s, for at most 10 s\n"
        "#   policy mem-real-usage for pods of mem-real-usage-scheduler\n"
    )
    assert configuration.read(ended.out).profiles[0].scheduler_name == "mem-real-usage-scheduler"
    assert ended.err.startswith(f"warning: {SEED}: profiles[0].plugins.score switches")


async def test_a_slip_in_the_seeds_own_file_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "seed.yaml"
    file.write_text(SEED.read_text().replace("- name: MemRealUsage", "- MemRealUsage", 1))
    for command in ("kube-config", "serve"):
        ended = await colocate("scheduler", command, "--from", file)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == (
            f"colocate: {file}: profiles[0].plugins.score.enabled[0]: 'MemRealUsage' is not a mapping; write "
            f"'field: value' lines, with fields of name, weight\n"
        )


async def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    for flags, said in (
        (["--url", "extender"], "write http:// or https://"),
        (["--from", str(tmp_path / "none")], "--from: "),
        (["--from", str(SEED), "--scheduler-name", "x"], "leave one out"),
    ):
        ended = await colocate("scheduler", "kube-config", *flags)
        assert ended.code == 2
        assert said in ended.err
        assert ended.err.count("\n") == 1
