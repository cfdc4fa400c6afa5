"""`colocate cpus replay`: containers that come and go, and what they cross beside the kubelet's."""

import gzip
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from colocate.cli.main import main
from colocate.cpus import PoolTree
from colocate.errors import UserError
from colocate.replay import cpu_histories
from colocate.replay.cpu_histories import read_histories
from colocate.replay.cpu_replay import OURS, Crossings, added, place, replay

RECORDED = Path(__file__).parents[1] / "data" / "conformance" / "cpu_churn.json.gz"

MACHINE = {
    "name": "small",
    "cpus": [
        {"cpu": cpu, "core": cpu, "l3": cpu // 4, "numa": cpu // 8, "socket": cpu // 8} for cpu in range(16)
    ],
}
"""Two sockets of two L3s of four CPUs each."""
OPS: list[list[str | int]] = [["+", 1, 3], ["+", 2, 3], ["-", 1], ["+", 3, 4], ["+", 4, 8]]


def file_of(folder: Path, **changed: Any) -> Path:
    history: dict[str, Any] = {"topology": "small", "dist": "mix", "load": 0.9, "ops": OPS}
    path = folder / "histories.json"
    path.write_text(json.dumps({"topologies": [MACHINE], "histories": [{**history, **changed}]}))
    return path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["cpus", "replay", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_fewer_crossings_than_the_kubelet_on_every_recorded_machine() -> None:
    machines, histories = read_histories(RECORDED)
    busy = [history for history in histories if history.load > 0.9 and history.kind == "mix"]
    assert {history.machine for history in busy} == set(machines)
    replays = [replay(machines[history.machine], history) for history in busy]
    for one in replays:
        ours, theirs = one.needless[OURS], one.needless["kubelet_uncore"]
        assert ours.sockets < theirs.sockets * 0.5, one.machine
        assert ours.nodes < theirs.nodes * 0.5, one.machine
        assert ours.l3s < theirs.l3s * 0.75, one.machine
    ours, theirs = added(replays)[OURS], added(replays)["kubelet_uncore"]
    assert theirs == Crossings(749, 1376, 1551)
    assert ours.sockets <= theirs.sockets * 0.32
    assert ours.nodes <= theirs.nodes * 0.36
    assert ours.l3s <= theirs.l3s * 0.42


def test_containers_get_as_many_cpus_as_they_ask_for_and_share_none(tmp_path: Path) -> None:
    machines, (history,) = read_histories(file_of(tmp_path))
    given = place(PoolTree(machines["small"]), history.steps)
    assert {container: len(cpus) for container, cpus in given.items()} == {1: 3, 2: 3, 3: 4, 4: 8}
    assert given[2].isdisjoint(given[3])
    assert given[4].isdisjoint(given[2] | given[3])


def test_needless_is_what_an_empty_machine_would_not_have_needed(tmp_path: Path) -> None:
    # The first is in one L3, as it could be; the second in two of two sockets; the third needs two anyway.
    given = {"1": "0-2", "2": "3,8-9", "3": "4-7,10-13"}
    ops = [["+", 1, 3], ["+", 2, 3], ["+", 3, 8]]
    machines, (history,) = read_histories(file_of(tmp_path, ops=ops, kubelet_packed=given))
    found = replay(machines["small"], history)
    assert found.containers == 3
    assert found.needless == {OURS: Crossings(), "kubelet_packed": Crossings(2, 2, 2)}


def test_text_tells_of_a_hundred_containers_and_of_each_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"1": "0-2", "2": "3,8-9", "3": "4-7", "4": "1-2,10-15"}
    assert run("--histories", str(file_of(tmp_path, kubelet_uncore=given))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "4 containers in 1 history" in lines[0]
    rows = {line[:30].strip(): line[30:].split() for line in lines[2:6]}
    assert rows["kubelet, L3 aligned"] == ["50.0", "50.0", "50.0"]
    assert rows["ours"] == ["0.0", "0.0", "0.0"]
    assert lines[-1].split() == ["small", "4", "0", "/", "2", "0", "/", "2", "0", "/", "2"]


def test_a_file_without_recorded_answers_shows_ours_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--histories", str(file_of(tmp_path)), "-o", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["needless"] == {"ours": {"sockets": 0, "nodes": 0, "l3s": 0}}
    assert (found["machine"], found["kind"], found["load"], found["containers"]) == ("small", "mix", 0.9, 4)
    assert run("--histories", str(file_of(tmp_path))) == 0
    assert "kubelet" not in capsys.readouterr().out


def test_the_plot_has_a_bar_and_a_figure_for_each_allocator(tmp_path: Path) -> None:
    given = {"1": "0-2", "2": "3,8-9", "3": "4-7", "4": "1-2,10-15"}
    picture = tmp_path / "crossings.svg"
    path = file_of(tmp_path, kubelet_uncore=given, kubelet_packed=given)
    assert run("--histories", str(path), "--plot", str(picture)) == 0
    drawn = ElementTree.parse(picture).getroot()
    texts = ["".join(each.itertext()) for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"sockets", "NUMA nodes", "L3 caches", "ours", "kubelet", "small", "all"} <= set(texts)
    # Three levels of two groups, for three allocators.
    assert len([text for text in texts if text in ("0.0", "50.0")]) == 18


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"topology": "large"}, "history 1 is of machine 'large'"),
        ({"ops": [["+", 1, 3], ["+", 1, 3]]}, "step 2: container 1 comes a second time"),
        ({"ops": [["-", 1]]}, "step 1: container 1 goes and is not there"),
        ({"ops": [["+", 1, 17]]}, "asks for 17 CPUs, and 16 are free"),
        ({"ops": [["+", 1, 0]]}, "history 1, step 1 is ['+', 1, 0]; write"),
        ({"ops": [["?", 1]]}, "history 1, step 1 is"),
        ({"ops": [["+", 1, 3]], "kubelet_packed": {"2": "0"}}, "no CPUs for container 1"),
        ({"ops": [["+", 1, 3]], "kubelet_packed": {"1": "x"}}, "kubelet_packed, container 1"),
        ({"ops": "none"}, "no histories of CPU requests"),
    ],
)
def test_a_history_that_makes_no_sense_is_named(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        read_histories(file_of(tmp_path, **changed))
    assert words in str(error.value)


def test_a_file_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="name a file that can be read"):
        read_histories(tmp_path / "missing.json")
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(b"{}" * 1000)[:20])
    with pytest.raises(UserError, match="not a whole gzip file"):
        read_histories(cut)
    large = tmp_path / "large.json.gz"
    large.write_bytes(gzip.compress(b" " * 5000))
    monkeypatch.setattr(cpu_histories, "_MOST_BYTES", 4000)
    with pytest.raises(UserError, match="give fewer histories"):
        read_histories(large)
    empty = tmp_path / "empty.json"
    empty.write_text('{"topologies": [], "histories": []}')
    with pytest.raises(UserError, match="no history in it"):
        read_histories(empty)
    assert run("--histories", str(file_of(tmp_path)), "--plot", str(tmp_path / "no" / "where.svg")) == 2
