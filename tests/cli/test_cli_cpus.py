"""`colocate topology` and `colocate cpus` as commands: pictures, JSON, exit codes, and one sentence for bad input."""

import json
from pathlib import Path

import pytest
from tests.cli.running import colocate, on_terminal
from tests.support import dumps, sysfs

from colocate.model.cpu_shapes import CpuShape, machine


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.tar.gz"
    path.write_bytes(sysfs.archive(sysfs.files(machine(CpuShape(ccx_cores=(2, 2)))), "gz"))
    return path


async def test_show_draws_a_dump_with_what_is_taken(small: Path) -> None:
    shown = await colocate("topology", "show", "--dump", small, "--taken", "0,4-5")
    assert shown.code == 0, shown.err
    assert shown.out.splitlines() == [
        "1 socket, 1 NUMA node, 2 CCXs, 4 cores, 8 CPUs",
        "",
        "socket 0",
        "└─ NUMA node 0  64.0 GiB",
        "   CCX 0  ■■ □■   0-1,4-5",
        "   CCX 1  □□ □□   2-3,6-7",
        "",
        "□ free   ■ taken   □□ a core",
    ]


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("shape", ["hygon", "epyc", "xeon", "arm", "hybrid", "xeon-snc"])
async def test_the_picture_fits_the_terminal(columns: int, shape: str) -> None:
    shown = await on_terminal("topology", "show", "--shape", shape, columns=columns, NO_COLOR="1")
    assert shown.code == 0, shown.err
    assert max(map(len, shown.out.splitlines())) <= columns
    assert "\x1b" not in shown.out


async def test_a_terminal_has_colours_unless_no_color_is_set(small: Path) -> None:
    assert "\x1b[" in (await on_terminal("topology", "show", "--dump", small)).out
    assert "\x1b[" not in (await on_terminal("topology", "show", "--dump", small, NO_COLOR="1")).out


async def test_show_as_json(small: Path) -> None:
    shown = json.loads((await colocate("topology", "show", "--dump", small, "-o", "json")).out)
    assert shown["online"] == "0-7"
    assert shown["ccxs"][1] == {"name": "ccx 1", "cpus": "2-3,6-7", "node": 0}
    assert shown["nodes"][0]["memory"] == 64 << 30
    assert shown["cores"][0] == "0,4"


async def test_lint_takes_a_shape_for_its_host() -> None:
    sound = await colocate("topology", "lint", "--shape", "hygon", "--host", "hygon")
    assert sound.code == 0, sound.err
    wrong = await colocate("topology", "lint", "--shape", "hygon", "--host", "nowhere")
    assert wrong.code == 2
    assert "--host: there is no dump 'nowhere', and 'nowhere' is no shape; write hygon" in wrong.err


async def test_lint_exits_with_1_and_prints_the_lines_to_add() -> None:
    sound = await colocate("topology", "lint", "--shape", "hygon")
    assert (sound.code, sound.out.partition(":")[0]) == (0, "Nothing found")
    blind = await colocate("topology", "lint", "--shape", "arm")
    assert blind.code == 1
    assert "! no-l3:" in blind.out
    assert "<cache mode='passthrough'/>" in blind.out
    assert (
        json.loads((await colocate("topology", "lint", "--shape", "arm", "-o", "json")).out)[0]["code"]
        == "no-l3"
    )


async def test_plan_draws_and_explains() -> None:
    shown = await colocate("cpus", "plan", "--shape", "hygon", "--request", "8,24,48", "--taken", "0,64,20")
    assert shown.code == 0, shown.err
    assert "CCX 0   ■■ □□ □□ □□   0-3,64-67" in shown.out
    assert "A   8      CCX 1: 4-7,68-71                  0" in shown.out
    assert "B   24     NUMA node 1 + CCX 4: 8-19,72-83   1,2" in shown.out
    assert "C   48     socket 1: 32-63,96-127            4,5,6,7" in shown.out
    assert "requests of the size of a CCX fit now" in shown.out


async def test_plan_as_json_and_with_cpus_of_their_own() -> None:
    asked = ("cpus", "plan", "--shape", "hygon", "--request", "8,20", "--exclusive", "-o", "json")
    plan = json.loads((await colocate(*asked)).out)
    assert [(each["mode"], each["cpus"]) for each in plan["containers"]] == [
        ("exclusive", "0-3,64-67"),
        ("exclusive", "4-13,68-77"),
    ]
    assert len(plan["fragmentation"]["whole"]) == 12


async def test_plan_tells_which_moves_would_help() -> None:
    shown = await colocate("cpus", "plan", "--shape", "1x1x3x2x2", "--request", "2,2,2", "--wish", "spread")
    assert "With these moves 1 would:" in shown.out
    assert "move A from 0-1,6-7" in shown.out


async def test_explain_says_why() -> None:
    shown = await colocate("cpus", "explain", "--shape", "hygon", "--request", "16.5")
    assert shown.code == 0, shown.err
    assert "No NUMA node has that much free (at most 16), so it gets a NUMA node and a CCX." in shown.out
    refused = await colocate("cpus", "explain", "--shape", "hygon", "--request", "9", "--wish", "strict")
    assert refused.code == 1
    assert "no CCX has them free" in refused.out
    burst = await colocate("cpus", "explain", "--shape", "hygon", "--request", "6", "--limit", "80")
    assert "Its limit is 80 CPUs, and it can run on 8 only" in burst.out
    devices = await colocate(
        "cpus", "explain", "--shape", "hygon", "--request", "6", "--beside", "5", "--exclusive"
    )
    assert "They are beside its devices." in devices.out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--request", "0"], "0 CPUs cannot be placed"),
        (["--request", "-1"], "must be greater than 0"),
        (["--request", "10000"], "more than the 128 that this machine has online"),
        (["--request", "1e300"], "more than the 128"),
        (["--request", "8,,2"], "is not a quantity"),
        (["--request", "8", "--wish", "exclusive,shared"], "contradict each other"),
        (["--request", "8", "--wish", "fast"], "is no wish for CPUs"),
        (["--request", "8", "--taken", "0-999"], "128-999 are not online"),
        (["--request", "8", "--taken", "x"], "is not a list of CPUs"),
        (["--request", "8", "--taken", "0", "--reserved", "0-1"], "both name CPUs 0"),
        (["--request", "8", "--reserved", "0-127"], "leave at least one"),
        (["--request", "8", "--taken", "0-127"], "leaves no CPU for containers"),
        (["--request", "8", "--taken", "1-127", "--reserved", "0"], "leaves no CPU for containers"),
        (["--request", "8", "--limit", "4"], "less than a request"),
        (["--request", "8", "--memory", "lots"], "is not a quantity"),
        (["--request", "8", "--beside", "9"], "there is no NUMA node 9"),
        (["--request", ",".join(["1"] * 600)], "at most 500"),
    ],
)
async def test_bad_input_is_one_sentence(flags: list[str], said: str) -> None:
    refused = await colocate("cpus", "plan", "--shape", "hygon", *flags)
    assert refused.code == 2
    assert said in refused.err
    assert refused.out == ""
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize("shape", ["potato", "0x1x1x1x1", "9999x9999x1x1x1", "2000x1x1x1x1"])
async def test_a_shape_that_cannot_be_is_one_sentence(shape: str) -> None:
    refused = await colocate("topology", "show", "--shape", shape)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)


async def test_a_dump_that_cannot_be_read_is_one_sentence(small: Path, tmp_path: Path) -> None:
    contents = sysfs.files(machine(CpuShape()))
    del contents[f"{sysfs.CPU}/online"]
    without = sysfs.write(tmp_path / "without", contents)
    garbage = sysfs.write(tmp_path / "garbage", {**contents, f"{sysfs.CPU}/online": "all of them"})
    for path, said in [
        (without, "there is no devices/system/cpu/online"),
        (garbage, "'all of them' is not a list of CPUs"),
        (tmp_path / "absent", "no such file"),
    ]:
        refused = await colocate("topology", "show", "--dump", path)
        assert (refused.code, refused.out) == (2, "")
        assert said in refused.err
        assert len(refused.err.splitlines()) == 1


async def test_the_real_dump_is_planned_on() -> None:
    shown = await colocate("cpus", "plan", "--dump", dumps.dump(dumps.HYGON), "--request", "8,24,48")
    assert shown.code == 0, shown.err
    assert "B   24     NUMA node 1 + CCX 1" in shown.out or "B   24     NUMA node" in shown.out
