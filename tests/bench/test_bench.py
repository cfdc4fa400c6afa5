"""`make bench` around its measurements: what it finds, prints and writes, how it exits and pairs samples.

Nothing of Colocate is measured here: machines are noisy, and tests are not the place for that.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.__main__ import main
from bench.finding import find
from bench.measure import side_by_side
from bench.ratio import Figure, Ratio
from bench.table import table

_FAKE = """
from bench.ratio import Figure, Ratio

SLOW = Ratio("slowness", "something quick", 3.0)
SMALL = Ratio("size", "something small", 1.8)
RATIOS = (SLOW, SMALL)

def bench():
    return [{rows}]
"""

Fake = Callable[[str], str]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes a package with one bench, `pace`, that returns the given rows; returns the package's name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")

    def make(rows: str) -> str:
        package = tmp_path / f"benches_{tmp_path.name}".replace("-", "_")
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "helper.py").write_text("def bench(): raise AssertionError('not a bench')")
        (package / "pace.py").write_text(_FAKE.format(rows=rows))
        return package.name

    return make


def test_the_table_and_the_json_say_the_same(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = fake('SLOW.row(2.5, Figure("ours", 12.5, "ms")), SMALL.row(1.8)')
    file = tmp_path / "results.json"
    assert main(["--json", str(file)], package) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["bench", "measured", "compared", "with", "ratio", "at", "most"]
    assert lines[2].split() == ["pace", "slowness", "something", "quick", "2.50", "3.00", "✓"]
    assert lines[3].strip() == "ours 12.5 ms"
    assert lines[4].endswith("1.80     1.80  ✓")
    written = json.loads(file.read_text())
    assert written["machine"]["cores"] > 0
    assert written["rows"][0] == {
        "bench": "pace",
        "name": "slowness",
        "against": "something quick",
        "ratio": 2.5,
        "threshold": 3.0,
        "figures": [{"name": "ours", "value": 12.5, "unit": "ms"}],
        "within": True,
    }


@pytest.mark.parametrize("ratio", ["3.01", "float('inf')"])
def test_a_ratio_beyond_its_threshold_exits_1_after_all_was_written(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], ratio: str
) -> None:
    package = fake(f"SLOW.row({ratio}), SMALL.row(1.0)")
    file = tmp_path / "results.json"
    assert main(["pace", "--json", str(file)], package) == 1
    said = capsys.readouterr()
    assert "✗" in said.out
    assert "beyond the threshold: slowness" in said.err
    assert [row["within"] for row in json.loads(file.read_text())["rows"]] == [False, True]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("SLOW.row(1.0)", "returned slowness (≤ 3)"),
        ('SLOW.row(1.0), Ratio("size", "something small", 99.0).row(50.0)', "size (≤ 99)"),
        ("1 / 0", "failed with exit code 1"),
    ],
    ids=["a ratio is missing", "another threshold", "the bench fails"],
)
def test_a_bench_that_does_not_measure_what_it_declares_exits_1(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str, complaint: str
) -> None:
    assert main(["--json", str(tmp_path / "results.json")], fake(rows)) == 1
    assert complaint in capsys.readouterr().err


def test_an_unknown_name_exits_2_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pace"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(
        "bench: there is no bench 'pace'; there are agent_memory, api_server, checkpoints, cpu_churn, cpus, "
    )


def test_list_says_what_is_measured_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "device_update"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "device_update: one of 10 000 devices changes, against the same bytes raw over gRPC: at most 3"
    )


def test_the_required_ratios_have_their_thresholds() -> None:
    thresholds = {
        (bench.name, ratio.name): ratio.threshold for bench in find().values() for ratio in bench.ratios
    }
    assert thresholds["device_update", "one of 10 000 devices changes"] == 3
    assert thresholds["agent_memory", "memory of an idle agent"] == 1.8
    assert thresholds["many_plugins", "start of 20 plugins, per plugin"] == 1.5
    assert thresholds["checkpoints", "200 000 devices in a checkpoint verified"] == 12
    assert thresholds["checkpoints", "200 000 devices in a checkpoint shown"] == 12
    assert thresholds["extender", "prioritize at 500 names of 5000, p50"] == 2
    assert thresholds["extender", "prioritize at 500 names of 5000, CPU"] == 2
    assert thresholds["extender", "prioritize at 5000 names, p50"] is None
    assert thresholds["sdk_install", "unwanted packages beside the SDK"] == 0


def test_a_ratio_without_a_bar_is_shown_and_never_beyond(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Ratio("a", "b", None).row(50.0)
    assert row.within
    assert table({"pace": [row]}).splitlines()[-1].split() == ["pace", "a", "b", "50.00"]
    package = fake('SLOW.row(1.0), SMALL.row(1.0), Ratio("free", "all", None).row(50.0)')
    assert main(["--json", str(tmp_path / "results.json")], package) == 1
    assert "free (no bar)" in capsys.readouterr().err
    assert main(["--list", "extender"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [
        line
        for line in listed
        if line.endswith(", CPU, against an aiohttp handler that echoes the body: no bar")
    ]


def test_a_ratio_that_is_not_a_number_is_beyond() -> None:
    assert not Ratio("a", "b", 3.0).row(float("nan")).within


def test_figures_are_short() -> None:
    assert str(Figure("ours", 0.57795, "ms")) == "ours 0.578 ms"
    assert str(Figure("message", 300_070)) == "message 300070"
    assert str(Figure("rich", "not loaded")) == "rich not loaded"


async def test_samples_are_taken_in_turn_until_the_ratio_holds_still() -> None:
    taken: list[str] = []

    async def ours() -> float:
        taken.append("A")
        return 3.0

    async def theirs() -> float:
        taken.append("B")
        # Restless for the first ten rounds.
        return 1.0 if len(taken) > 20 else float(len(taken))

    measured = await side_by_side(ours, theirs, warm_up=0, at_least=4, now=lambda: 0.0)
    assert "".join(taken) == "AB" * measured.rounds
    assert (measured.still, measured.ratio) == (True, 3.0)
    assert measured.rounds > 20


async def test_a_machine_that_never_calms_down_ends_by_time() -> None:
    clock = iter(range(1000))
    values = iter([1.0, 100.0] * 1000)

    async def ours() -> float:
        return next(values)

    async def theirs() -> float:
        return 1.0

    measured = await side_by_side(
        ours, theirs, warm_up=0, at_least=3, seconds=10, now=lambda: float(next(clock))
    )
    assert (measured.still, measured.rounds) == (False, 12)
