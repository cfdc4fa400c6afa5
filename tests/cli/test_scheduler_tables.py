"""What is printed of decisions fits the terminal, and says no more than what counts."""

from tests.load.facts import NOW, load, pod, table

from colocate.apps.scheduler.decisions import Told
from colocate.cli import scheduler_tables
from colocate.load import decide, explain_all, top
from colocate.load.explaining import Explanation, NodeReason
from colocate.model.load import NodeLoad

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
    assert list(scheduler_tables.explanation(bare))[-1].split(maxsplit=2) == ["17", "n1", "not kept any more"]


def test_the_runner_up_goes_where_there_is_no_room_for_it() -> None:
    latest = [Told(explained(), shadow=False, node="gpu", bound_at=NOW, followed=False)]
    wide, narrow = (list(scheduler_tables.decisions(latest, width)) for width in (200, 110))
    assert "RUNNER-UP" in wide[0]
    assert "RUNNER-UP" not in narrow[0]
    assert max(map(len, narrow)) <= 110
    assert narrow[1].endswith("another: gpu")


def test_nodes_by_load_fit_80_columns() -> None:
    lines = list(scheduler_tables.top(top(table(LOADS))))
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:7] == ["worker-2.fra.example.com", "92", "%", "31", "/", "0", "%"]


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
