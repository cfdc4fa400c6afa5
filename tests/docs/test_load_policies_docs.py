"""docs/load-policies.md names every policy, and its examples hold."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.lab_scheduler.lab import Candidate, node_facts, pod_facts, taint
from tests.load.facts import load, table

from colocate.lab.scheduler import scores as kube
from colocate.lab.scheduler.requests import Account, PodRequests
from colocate.load.demand import Demand
from colocate.load.policies.balanced import Balanced
from colocate.load.policies.oversell import overcommit_ratio, written
from colocate.load.settings import BalancedSettings, LoadSettings, PolicyName
from colocate.load.weights import least_weight
from colocate.model.load import NOTHING

DOCS = (Path(__file__).parents[2] / "docs/load-policies.md").read_text()


def test_every_policy_has_its_place() -> None:
    headings = [line for line in DOCS.splitlines() if line.startswith("## ")]
    for name in PolicyName:
        assert any(name in heading for heading in headings), name


def test_the_examples_of_balanced_hold() -> None:
    made = table({"lopsided": load(5, 95), "even": load(50, 50)})
    nothing = Demand(NOTHING, NOTHING, NOTHING, 0)
    scores = [Balanced(BalancedSettings()).score(made.terms(name), nothing) for name in ("lopsided", "even")]
    assert scores == [19, 57]
    assert "5 % and 95 % make 19,\n50 % and 50 % make 57" in DOCS


def test_the_example_of_oversell_holds() -> None:
    settings = LoadSettings().oversell
    target, floor = written(settings.memory_target), written(settings.memory_floor)
    ratio = float(overcommit_ratio(80, written(20), 100, target, floor))
    assert f"the ratio is {ratio:.2f}, and 80 % look like {80 / ratio:.0f} %" in DOCS


def test_the_example_of_weights_holds() -> None:
    found = least_weight()
    assert f"can prefer a node by up to {found.others}" in DOCS
    assert f"the weight must be {found.weight} (25 × {found.weight} × 10 = {250 * found.weight})" in DOCS
    scores = table({"half": load(10, 40), "hot": load(10, 90)})
    nothing = Demand(NOTHING, NOTHING, NOTHING, 0)
    half, hot = (Balanced(BalancedSettings()).score(scores.terms(name), nothing) for name in ("half", "hot"))
    assert f"make {half - hot} points" in DOCS
    assert (half - hot) * found.weight * 10 > found.others, "a hot node really loses"


def shown(level: int, cpu: int = 0, memory: int = 0) -> Candidate:
    """A node of 4 CPUs and 16 Gi, with its heat and what is requested of it, in thousandths."""
    account = Account()
    asked = {"cpu": 4 * cpu, "memory": (16 << 30) * memory // 1000}
    account.enter("other", PodRequests(asked, asked["cpu"], asked["memory"]))
    taints = [taint(f"colocate.dev/load-{number + 1}", "PreferNoSchedule") for number in range(level)]
    return Candidate(node_facts(name=f"at-{level}", taints=taints), account)


def test_a_step_of_heat_is_worth_what_is_said() -> None:
    steps = []
    for greatest in range(1, 5):
        best, next_, *_ = kube.taint_scores(pod_facts(), [shown(level) for level in range(greatest + 1)])
        steps.append(kube.TAINTS * (best - next_))
    assert f"| one step, in points | {' | '.join(map(str, steps))} |" in DOCS


booked = st.integers(0, 990)


@given(booked, booked, booked, booked, st.integers(2, 4))
def test_two_steps_of_heat_decide_whatever_is_requested(
    cpu: int, memory: int, other_cpu: int, other_memory: int, level: int
) -> None:
    nodes = [shown(0, cpu, memory), shown(level, other_cpu, other_memory), shown(4)]
    totals = kube.totals(
        pod_facts(requests={"cpu": "10m", "memory": "10Mi"}), nodes[: 2 if level == 4 else 3]
    )
    assert totals["at-0"] > totals[f"at-{level}"]


def test_one_step_may_lose_against_a_node_of_which_much_less_is_requested() -> None:
    plain = pod_facts(requests={"cpu": "10m", "memory": "10Mi"})
    totals = kube.totals(plain, [shown(0, 875), shown(1), shown(4)])
    assert totals["at-1"] > totals["at-0"]
    totals = kube.totals(plain, [shown(0, 875), shown(1), shown(3)])
    assert totals["at-0"] > totals["at-1"]
