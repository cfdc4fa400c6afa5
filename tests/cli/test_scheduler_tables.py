"""What is printed of decisions fits the terminal, and says no more than what counts."""

import re

import pytest
from tests.load.facts import NOW, load, pod, table

from colocate.cli import scheduler_tables
from colocate.load import compare, decide, explain_all, mix, top
from colocate.load.explanation import Explanation, NodeReason
from colocate.model.load import NodeLoad
from colocate.scheduler.loop.decision_log import Told
from colocate.scheduler.loop.refusal_log import RefusedPod

LOADS = {
    "worker-1.fra.example.com": load(10, 20),
    "worker-2.fra.example.com": load(31, 92.4),
    "gpu": NodeLoad(),
}


def explained() -> Explanation:
    made = table(LOADS)
    answer = decide(made, pod("nginx-mem-scheduler-zg52kgpmss-5r9cd"), list(LOADS), NOW, assume=False)
    return explain_all(answer.decision, made.settings, answer.candidates)


def test_reasons_are_wrapped_after_commas_to_the_width_of_the_terminal() -> None:
    lines = list(scheduler_tables.explanation(explained(), width=80))
    assert max(map(len, lines)) <= 80
    reasons = [line for line in lines if line.startswith(" ")]
    assert len(reasons) == 6
    assert all(line.endswith((",", "%")) for line in reasons)
    assert "peak memory 92.4 %" in "".join(reasons)


def test_in_a_pipe_every_node_has_one_line_of_reasons() -> None:
    lines = list(scheduler_tables.explanation(explained()))
    assert len([line for line in lines if line.startswith(" ")]) == 3


def test_parts_that_are_0_are_left_out() -> None:
    assert "unseen" not in "".join(list(scheduler_tables.explanation(explained()))[4:])


def test_of_a_node_whose_reasons_had_to_make_room_the_score_is_told() -> None:
    bare = Explanation("default/p", NOW, (), 2, 1, (NodeReason("n1", 17),))
    assert list(scheduler_tables.explanation(bare))[-1].split(maxsplit=2) == ["17", "n1", "no longer kept"]


def test_the_runner_up_goes_where_there_is_no_room_for_it() -> None:
    latest = [Told(explained(), shadow=False, node="gpu", bound_at=NOW, followed=False)]
    wide, narrow = (list(scheduler_tables.decisions(latest, width)) for width in (200, 110))
    assert "RUNNER-UP" in wide[0]
    assert "RUNNER-UP" not in narrow[0]
    assert max(map(len, narrow)) <= 110
    assert narrow[1].endswith("another: gpu")


REFUSED = Explanation("default/p", NOW, mix("balanced"), 2, 0, ())


def test_a_pod_that_was_refused_everywhere_is_told_with_each_reason() -> None:
    refused = (RefusedPod("n1", "hot"), RefusedPod("n2", "hotter"))
    told = Told(REFUSED, shadow=False, refused=refused, refused_count=2)
    assert list(scheduler_tables.told(told)) == [
        "default/p",
        "refused on all 2 candidates at 2023-11-14 22:13:20 UTC",
        "not bound yet, as far as is known",
        "",
        "refused n1: hot",
        "refused n2: hotter",
    ]
    listed = list(scheduler_tables.decisions([told]))[1]
    assert " ".join(listed.split()) == "11-14 22:13:20 default/p refused on all 2 not bound yet"


def test_a_pod_that_was_refused_everywhere_and_bound_all_the_same() -> None:
    told = Told(REFUSED, shadow=False, node="n1", bound_at=NOW)
    assert "bound to n1 at 2023-11-14 22:13:20 UTC: not by this answer" in scheduler_tables.told(told)


def test_that_every_candidate_was_too_hot_is_told() -> None:
    told = Told(explained(), shadow=False, hot=(RefusedPod("gpu", "its cpu"),), hot_count=3)
    lines = list(scheduler_tables.told(told))
    assert lines[3] == "every candidate was too hot; 3 passed anyway (load.filter.allHot)"
    assert lines[-3:] == ["", "too hot gpu: its cpu", "too hot … and 2 more"]
    assert "3, all hot" in list(scheduler_tables.decisions([told]))[1]


def test_nodes_show_their_heat_where_it_is_known() -> None:
    lines = list(scheduler_tables.top(top(table(LOADS), {"worker-2.fra.example.com": 4, "gpu": 0})))
    assert lines[0].split()[:3] == ["NODE", "HEAT", "PRESSURE"]
    cells = {line.split()[0]: line.split()[1] for line in lines[1:]}
    assert cells == {"worker-2.fra.example.com": "4", "gpu": "0", "worker-1.fra.example.com": "20"}


def test_nodes_by_load_fit_80_columns() -> None:
    lines = list(scheduler_tables.top(top(table(LOADS))))
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:7] == ["worker-2.fra.example.com", "92", "%", "31", "/", "0", "%"]


IN_A_CLOUD = {
    f"ip-10-0-12-{number:04}.eu-central-1.compute.internal": load(number, 50) for number in range(61, 65)
}


def test_nodes_with_long_names_fit_80_columns_with_what_is_used() -> None:
    nodes = top(table(IN_A_CLOUD), dict.fromkeys(IN_A_CLOUD, 2))
    lines = list(scheduler_tables.top(nodes, 80))
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["NODE", "HEAT", "PRESSURE", "CPU", "MEM"]
    assert list(scheduler_tables.top(nodes, 110)) == list(scheduler_tables.top(nodes))


@pytest.mark.parametrize("width", [30, 40, 60, 80])
@pytest.mark.parametrize("colours", [False, True])
def test_the_pressure_is_shown_however_narrow_the_terminal_is(width: int, colours: bool) -> None:
    nodes = top(table(IN_A_CLOUD))
    shown = [
        re.sub("\x1b\\[[0-9]*m", "", line) for line in scheduler_tables.top(nodes, width, colours=colours)
    ]
    assert max(map(len, shown)) <= width
    assert "PRESSURE" in shown[0]
    assert all(f"{node.pressure // 1:3.0f} %" in line for node, line in zip(nodes, shown[1:], strict=True))
    assert ("█" in "".join(shown) or "░" in "".join(shown)) == colours


def compared(loads: dict[str, NodeLoad], first: str, second: str, width: int = 0) -> list[str]:
    found = compare(table(loads), pod("new"), list(loads), mix(first), mix(second), NOW)
    return list(scheduler_tables.comparison(found, width))


def test_two_mixes_are_compared_within_80_columns() -> None:
    mixes = "balanced=3,oversell=1,load-aware=2", "mem-real-usage=2,low-risk-overcommitment=1"
    lines = compared(IN_A_CLOUD, *mixes, width=80)
    assert " and ".join(mixes) in lines[1]
    assert lines[3].split() == ["NODE", "FIRST", "SECOND", "DIFFERENCE"]
    assert max(map(len, lines[2:])) <= 80
    assert compared(IN_A_CLOUD, *mixes)[3].split()[1] == mixes[0].upper()


def test_a_policy_that_scores_all_nodes_alike_agrees_with_nobody() -> None:
    loads = {"a": load(10, 10), "b": load(10, 90)}
    assert compared(loads, "balanced", "mem-real-usage")[1] == (
        "balanced and mem-real-usage agree on a best node; both put 100 % of the pairs of nodes that either "
        "ranks in the same order"
    )
    for policies, which in (
        (("balanced", "cpu-real-usage"), "second"),
        (("cpu-real-usage", "balanced"), "first"),
    ):
        assert compared(loads, *policies)[1] == (
            f"of {' and '.join(policies)}, the {which} gives all nodes the same score, so it does not count"
        )
    assert compared({"a": load(10, 10), "b": load(10, 10)}, "balanced", "cpu-real-usage")[1] == (
        "balanced and cpu-real-usage each give all nodes the same score"
    )
    assert compared({}, "balanced", "oversell") == [
        "default/new",
        "there are not two nodes for balanced and oversell to choose from",
    ]


def test_a_name_as_deployments_make_them_leaves_room_for_where_the_pod_went() -> None:
    short = Explanation(explained().pod, NOW, (), 4, 1, (NodeReason("node-0002", 82),))
    lines = list(scheduler_tables.decisions([Told(short, shadow=False, node="node-0002", followed=True)], 80))
    assert lines[0].split() == ["TIME", "(UTC)", "POD", "BEST", "WENT", "TO"]
    assert max(map(len, lines)) <= 80


def test_a_node_just_below_a_step_of_heat_is_not_shown_at_it() -> None:
    lines = list(scheduler_tables.top(top(table({"n": load(31, 89.999998)}))))
    assert (lines[1].split().count("89"), lines[1].split().count("90")) == (2, 0), (
        "its pressure, and its memory"
    )
