"""`colocate gpu replay`: lists in, unallocated GPUs out, by the code that schedules."""

import gzip
import json
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from xml.etree import ElementTree

import pytest

from colocate.cli.main import main
from colocate.gpus.packing import PackingPolicy
from colocate.replay.gpu_replay import replay
from colocate.replay.gpu_trace import read_nodes, read_pods

TRACES = Path(__file__).parents[3] / "shared" / "traces" / "openb"

NODES = "sn,cpu_milli,memory_mib,gpu,model"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"

_SHAPES = [(96_000, 393_216, 8, "G2", 14), (104_000, 524_288, 2, "T4", 10), (16_000, 122_880, 2, "P100", 3)]
_KINDS = [
    (3152, 5600, 1, 810, 13),
    (11_300, 49_152, 1, 1000, 17),
    (3152, 5600, 1, 1000, 6),
    (11_908, 47_104, 1, 470, 5),
    (12_500, 57_344, 0, 0, 4),
    (8000, 30_517, 1, 470, 5),
    (32_000, 49_152, 0, 0, 3),
    (18_708, 64_512, 1, 1000, 3),
    (11_908, 47_104, 1, 650, 3),
    (4000, 22_888, 1, 320, 5),
    (4000, 15_258, 1, 160, 2),
    (88_000, 300_000, 8, 1000, 1),
]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["gpu", "replay", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def twin(tmp_path: Path) -> tuple[Path, Path]:
    """A small cluster and pods in the proportions of the public trace."""
    nodes = [
        f"n,{cpu},{memory},{gpus},{model}"
        for cpu, memory, gpus, model, count in _SHAPES
        for _ in range(count)
    ]
    pods = [
        f"p,{cpu},{memory},{gpus},{part}" for cpu, memory, gpus, part, count in _KINDS for _ in range(count)
    ]
    random.Random(1).shuffle(pods)
    (tmp_path / "nodes.csv").write_text("\n".join([NODES, *nodes]) + "\n")
    with gzip.open(tmp_path / "pods.csv.gz", "wt") as file:
        file.write("\n".join([PODS, *pods]) + "\n")
    return tmp_path / "nodes.csv", tmp_path / "pods.csv.gz"


def test_ours_leaves_fewer_gpus_than_best_fit_and_fgd(
    twin: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, pods = twin
    assert run("--nodes", str(nodes), "--pods", str(pods), "--seeds", "4", "--json") == 0
    results = json.loads(capsys.readouterr().out)
    left = dict.fromkeys(("best-fit", "fgd", "ours"), 0.0)
    for one in results:
        assert list(one) == [
            "policy",
            "seed",
            "gpus_total",
            "gpus_requested",
            "gpus_allocated",
            "gpus_unallocated",
        ]
        assert one["gpus_total"] == 138
        assert one["gpus_requested"] >= 1.3 * 138
        assert one["gpus_allocated"] + one["gpus_unallocated"] == pytest.approx(138)
        left[one["policy"]] += one["gpus_unallocated"]
    assert left["ours"] < min(left["fgd"], left["best-fit"])


def test_equal_seeds_give_equal_figures(twin: tuple[Path, Path]) -> None:
    nodes, pods = read_nodes(twin[0]), read_pods(twin[1])
    first, again = (replay(nodes, pods, PackingPolicy.OURS, 7) for _ in range(2))
    assert first == again
    assert replay(nodes, pods, PackingPolicy.OURS, 8) != first


def test_what_is_expected_may_be_learned_from_what_has_come(twin: tuple[Path, Path]) -> None:
    nodes, pods = read_nodes(twin[0]), read_pods(twin[1])
    told, _ = replay(nodes, pods, PackingPolicy.OURS, 1)
    learned, _ = replay(nodes, pods, PackingPolicy.OURS, 1, learned=True)
    stock, _ = replay(nodes, pods, PackingPolicy.BEST_FIT, 1)
    assert learned.gpus_requested == told.gpus_requested
    assert learned.gpus_unallocated < stock.gpus_unallocated


def test_a_table_for_people_says_who_is_best(
    twin: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, pods = twin
    assert run("--nodes", str(nodes), "--pods", str(pods), "--seeds", "2", "--policy", "spread,ours") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "GPUs unallocated, of 138, after pods have asked for 130 %:"
    assert lines[2].split() == ["SEED", "SPREAD", "OURS"]
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "mean"]
    assert lines[-1].startswith("ours leaves ")
    assert lines[-1].endswith("the fewest in 2 of 2 replays.")


def test_the_plot_has_a_line_a_band_and_a_name_for_each_policy(
    twin: tuple[Path, Path], tmp_path: Path
) -> None:
    plot = tmp_path / "plot.svg"
    assert run("--nodes", str(twin[0]), "--pods", str(twin[1]), "--seeds", "2", "--plot", str(plot)) == 0
    drawn = ElementTree.fromstring(plot.read_text())
    kinds = [element.tag.rpartition("}")[2] for element in drawn]
    assert kinds.count("polyline") == kinds.count("polygon") == kinds.count("circle") == 3
    texts = {element.text for element in drawn if element.tag.endswith("text")}
    assert {"best-fit", "fgd", "ours", "GPUs that stay unallocated"} <= texts


@pytest.mark.parametrize(
    ("nodes", "pods", "said"),
    [
        (f"{NODES}\n", f"{PODS}\np,1,1,1,1000\n", "no rows"),
        (f"{NODES}\nn,1000,1000,0,T4\n", f"{PODS}\np,1,1,1,1000\n", "no node has a GPU"),
        (f"{NODES}\nn,1000,1000,1,T4\n", f"{PODS}\np,1,1,0,0\n", "no pod asks for a GPU"),
        ("sn,cpu_milli,gpu\nn,1,1\n", f"{PODS}\np,1,1,1,1000\n", "no column memory_mib"),
        (f"{NODES}\nn,1000,1000,1,T4\n", f"{PODS}\np,1,1,1,1001\n", "line 2: gpu_milli is '1001'"),
        (f"{NODES}\nn,1000,1000,1,T4\n", f"{PODS}\np,1,1,1,0\n", "line 2: gpu_milli is 0"),
        (f"{NODES}\nn,many,1000,1,T4\n", f"{PODS}\np,1,1,1,1000\n", "line 2: cpu_milli is 'many'"),
        (f"{NODES}\nn,nan,1000,1,T4\n", f"{PODS}\np,1,1,1,1000\n", "line 2: cpu_milli is 'nan'"),
    ],
)
def test_a_list_that_is_none_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: str, pods: str, said: str
) -> None:
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "pods.csv").write_text(pods)
    assert run("--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--policy", "best"), "no policy 'best'"),
        (("--seeds", "0"), "--seeds: 0"),
        (("--plot", "/nowhere/p.svg"), "--plot: /nowhere/p.svg"),
        (("--nodes", "/nowhere.csv"), "/nowhere.csv: "),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused(
    twin: tuple[Path, Path], capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert run("--nodes", str(twin[0]), "--pods", str(twin[1]), *flags) == 2
    assert said in capsys.readouterr().err


def test_half_a_gzip_file_is_told_apart(
    twin: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "half.csv.gz").write_bytes(twin[1].read_bytes()[:-20])
    assert run("--nodes", str(twin[0]), "--pods", str(tmp_path / "half.csv.gz")) == 2
    assert "not a whole gzip file" in capsys.readouterr().err


def test_a_strangers_list_of_one_endless_line_is_read_no_further_than_any_row_goes(
    twin: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with gzip.open(tmp_path / "bomb.csv.gz", "wb") as file:
        file.write(b"a" * (64 << 20))
    tracemalloc.start()
    try:
        assert run("--nodes", str(twin[0]), "--pods", str(tmp_path / "bomb.csv.gz")) == 2
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert "a line has more than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            "|".join(f"m{i}" for i in range(10_000)),
            "line 2: gpu_spec has 58889 characters; write at most 512",
        ),
        ("|".join(f"m{i}" for i in range(20)), "line 2: gpu_spec names 20 models; name at most 16"),
        ("", "line 2002: gpu_spec has more than 2000 different texts"),
    ],
)
def test_models_without_end_in_a_strangers_list_are_refused_at_their_line(
    twin: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str, said: str
) -> None:
    rows = [f"1,1,1,1000,{spec or f'model-{number}'}\n" for number in range(4000)]
    with gzip.open(tmp_path / "bomb.csv.gz", "wt") as file:
        file.write("cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(rows))
    tracemalloc.start()
    try:
        assert run("--nodes", str(twin[0]), "--pods", str(tmp_path / "bomb.csv.gz")) == 2
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert said in capsys.readouterr().err


def test_without_numpy_the_command_says_what_to_install(twin: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('not here')")
    ended = subprocess.run(
        [sys.executable, "-m", "colocate.cli.main", "gpu", "replay", "--nodes", twin[0], "--pods", twin[1]],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "install numpy, or the extra 'packing' of kube-colocate" in ended.stderr


@pytest.mark.parametrize("name", ["default", "gpushare40"])
def test_the_public_trace_can_be_read_and_fgd_and_ours_keep_their_order(name: str) -> None:
    """A quarter of the nodes: seconds instead of a minute. The whole is measured by `make bench`."""
    if not TRACES.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have the public traces in ../shared/traces", pytrace=False)
        pytest.skip("the public traces are not in ../shared/traces")
    nodes = read_nodes(TRACES / "openb_node_list_gpu_node.csv.gz")
    pods = read_pods(TRACES / f"openb_pod_list_{name}.csv.gz")
    assert len(nodes) == 1213
    assert sum(len(node.gpus) for node in nodes) == 6212
    assert len(pods) == 8152
    some = nodes[::4]
    left = {
        policy: replay(some, pods, policy, 1)[0].gpus_unallocated
        for policy in (PackingPolicy.BEST_FIT, PackingPolicy.FGD, PackingPolicy.OURS)
    }
    assert left[PackingPolicy.OURS] < left[PackingPolicy.FGD] < left[PackingPolicy.BEST_FIT]
