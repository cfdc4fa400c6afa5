"""A replay places every pod, the same way for the same seed, through the code that schedules."""

import io
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from colocate.errors import UserError
from colocate.replay.load_contenders import DEFAULT, contenders
from colocate.replay.load_plot import plot
from colocate.replay.load_quality import PlacementQuality, quality
from colocate.replay.load_replay import replay, summaries
from colocate.replay.load_run import LoadRun
from colocate.replay.load_trace import read_trace
from colocate.replay.load_workload import Requests, WorkloadSettings, workload_of
from tests.replay.traces import SMALL, public, small, twin


def hot(policy: str, seed: int = 1, tie_break: int = 0) -> PlacementQuality:
    (contender,) = contenders(policy)
    workload = small(seed)
    ran = LoadRun(workload, contender, seed, tie_break).run()
    return quality(workload, ran.used, ran.pods, policy, seed, tie_break, ran.crowded)


def test_a_workload_uses_and_requests_what_was_asked_for() -> None:
    workload = small()
    total, asked = np.zeros((2, workload.minutes)), np.zeros((2, workload.minutes))
    for pod in workload.pods:
        total[:, pod.begin : pod.end] += pod.use
        asked[:, pod.begin : pod.end] += pod.request[:, None]
    room = workload.size.sum(1)
    assert total[:, workload.warm_up :].mean(1) / room == pytest.approx([0.6, 0.6], rel=0.01)
    assert asked[:, workload.warm_up :].mean(1) / room == pytest.approx([0.75, 0.75], rel=0.1)


def test_the_same_seed_makes_the_same_workload_and_another_does_not() -> None:
    again, other = workload_of(twin(), 1, SMALL), small(2)
    assert [pod.facts for pod in again.pods] == [pod.facts for pod in small().pods]
    assert all(np.array_equal(a.use, b.use) for a, b in zip(again.pods, small().pods, strict=True))
    assert [pod.at for pod in other.pods] != [pod.at for pod in small().pods]


def test_requests_that_know_nothing_follow_what_was_provisioned() -> None:
    blind = workload_of(twin(), 1, msgspec.structs.replace(SMALL, requests=Requests.BLIND))
    assert [pod.facts.shape for pod in blind.pods] != [pod.facts.shape for pod in small().pods]
    assert len(blind.pods) == len(small().pods)


@pytest.mark.parametrize("policy", ["stock", "balanced", "taints", "load-aware:filter"])
def test_the_same_seed_gives_the_same_figures(policy: str) -> None:
    assert hot(policy) == hot(policy)


def test_another_tie_break_is_another_run_of_the_same_workload() -> None:
    first, second = hot("stock"), hot("stock", tie_break=1)
    assert first.p95 != second.p95
    assert first.spread == pytest.approx(second.spread, rel=0.2)


@pytest.mark.parametrize("policy", ["balanced", "load-aware:filter:points=1", "taints", "default"])
def test_policies_that_look_at_the_load_leave_fewer_hot_nodes_than_stock(policy: str) -> None:
    seeds = (1, 2)
    assert sum(hot(policy, seed).hot for seed in seeds) < sum(hot("stock", seed).hot for seed in seeds)


def test_the_oracle_is_the_best_and_no_ledger_is_a_herd() -> None:
    seeds = (1, 2)
    assert sum(hot("oracle", seed).hot for seed in seeds) < sum(hot("default", seed).hot for seed in seeds)
    assert hot("balanced:noledger").hot > hot("balanced").hot


def test_every_pod_is_on_one_node_for_all_of_its_life() -> None:
    workload = small()
    ran = LoadRun(workload, contenders("balanced")[0], 1).run()
    assert (ran.placed >= 0).all()
    alive = np.zeros(workload.minutes)
    for pod in workload.pods:
        alive[pod.begin : pod.end] += 1
    assert np.array_equal(ran.pods.sum(0), alive)


def test_a_contender_that_is_written_wrongly_is_told_how() -> None:
    for text in ("best", "balanced:fast", "stock:filter", "balanced:points=0", "balanced,balanced"):
        with pytest.raises(UserError):
            contenders(text)
    mixed = contenders("balanced=3+oversell=1:filter:points=20")[0]
    assert [part.weight for part in mixed.mix] == [3, 1]
    assert mixed.settings.filter.enabled
    assert mixed.points == 20
    assert len(contenders(DEFAULT)) > 8


def test_what_is_no_trace_is_told_so(tmp_path: Path) -> None:
    garbage, other = tmp_path / "garbage.npz", tmp_path / "other.npz"
    garbage.write_bytes(b"\0" * 100)
    np.savez(other, x=np.zeros(3))
    for path in (garbage, other, tmp_path / "missing.npz"):
        with pytest.raises(UserError):
            read_trace(path)


SOUND = {
    "cpu_used_mhz": np.full((4, 600), 500.0),
    "memory_used_mib": np.full((4, 600), 500.0),
    "cpu_capacity_mhz": np.full(4, 2600.0),
    "memory_provisioned_mib": np.full(4, 1024.0),
}


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self._file,)


def test_a_strangers_trace_runs_nothing(tmp_path: Path) -> None:
    path, victim = tmp_path / "trace.npz", tmp_path / "victim"
    np.savez(path, **SOUND | {"cpu_used_mhz": np.array([[Payload(victim)]], dtype=object)})
    with pytest.raises(UserError, match="holds no numbers"):
        read_trace(path)
    assert not victim.exists()


@pytest.mark.parametrize(
    "odd",
    [
        {"cpu_used_mhz": np.full((4, 600), np.inf)},
        {"cpu_used_mhz": np.full((4, 600), -1.0)},
        {"memory_used_mib": np.full((4, 600), np.nan)},
        {"memory_used_mib": np.full((4, 600), 1e300)},
        {"cpu_capacity_mhz": np.full(2, 1.0), "memory_provisioned_mib": np.full(2, 1024.0)},
        {"cpu_capacity_mhz": np.float64(1), "memory_provisioned_mib": np.float64(1)},
        {"cpu_used_mhz": np.full((4, 600), np.datetime64("2020"))},
        {"cpu_used_mhz": np.zeros((4, 600), [("x", "f8")])},
        {"cpu_used_mhz": np.full((4, 600), "x")},
        {"cpu_used_mhz": np.full((4, 600), 1j)},
    ],
)
def test_a_strangers_trace_of_odd_values_or_shapes_is_told_in_a_sentence(
    odd: dict[str, np.ndarray], tmp_path: Path
) -> None:
    path = tmp_path / "trace.npz"
    np.savez(path, **SOUND | odd)
    with pytest.raises(UserError):
        read_trace(path)


def test_a_strangers_trace_that_says_it_holds_billions_is_not_made_room_for(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    for shape in ("(10000, 1000000)", "(1000000000, 1000000000)"):
        text = f"{{'descr': '|i1', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
        lying = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        with zipfile.ZipFile(path, "w") as container:
            for name in SOUND:
                container.writestr(f"{name}.npy", lying)
        with pytest.raises(UserError, match="holds more than"):
            read_trace(path)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_strangers_trace_with_any_bytes_changed_is_read_or_told_in_a_sentence(
    changes: list[tuple[int, int]],
) -> None:
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **SOUND)
    data = bytearray(packed.getvalue())
    for place, byte in changes:
        data[place % len(data)] = byte
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.npz")
        path.write_bytes(data)
        with suppress(UserError):
            read_trace(path)


def test_a_trace_is_read_with_its_gaps_mended(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    chance = np.random.default_rng(0)
    cpu = chance.uniform(200, 900, (5, 700))
    cpu[0, 10:20] = np.nan
    cpu[1, :400] = np.nan
    memory = chance.uniform(400, 800, (5, 700))
    np.savez(
        path,
        cpu_used_mhz=cpu,
        memory_used_mib=memory,
        cpu_capacity_mhz=np.full(5, 2600.0),
        memory_provisioned_mib=np.full(5, 1024.0),
    )
    read = read_trace(path)
    assert read.machines == 4
    assert not np.isnan(read.cpu).any()
    assert read.cpu[0, 10] == pytest.approx(cpu[0, 9] / 2.6)


def test_all_rows_have_their_ratio_and_the_plot_shows_each_policy() -> None:
    result = replay(lambda seed: small(seed), contenders("balanced,oracle"), [1, 2])
    assert [row.policy for row in result.rows] == ["balanced", "oracle"] * 2
    assert all(row.ratio_to_stock is not None for row in result.rows)
    found = summaries(result.rows)
    assert found[0].policy == "oracle"
    assert found[0].ratio is not None
    assert found[0].lowest is not None
    assert found[0].lowest <= found[0].ratio
    drawn = plot(result.series, "a <title>")
    assert drawn.startswith("<svg")
    assert "a &lt;title&gt;" in drawn
    assert drawn.count("<polyline") == 4


def test_the_public_trace_gives_the_yardsticks_figures() -> None:
    """With seed 1: 5.06 % of the node-hours hot by kube-scheduler alone, 0.02 of that by the oracle."""
    workload = workload_of(public(), 1, WorkloadSettings())
    assert len(workload.pods) == 11_910
    result = replay(lambda seed: workload, contenders("stock,oracle"), [1])
    stock, oracle = result.rows
    assert stock.hot == pytest.approx(5.06, abs=0.01)
    assert stock.p99 == pytest.approx(93.2, abs=0.1)
    assert oracle.ratio_to_stock == pytest.approx(0.02, abs=0.005)
