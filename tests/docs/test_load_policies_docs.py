"""docs/load-policies.md names every policy, and its examples hold."""

from pathlib import Path

from tests.load.facts import load, table

from colocate.load.demand import Demand
from colocate.load.policies.balanced import Balanced
from colocate.load.policies.oversell import overcommit_ratio, written
from colocate.load.settings import BalancedSettings, PolicyName, Settings
from colocate.load.weights import weight
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
    assert scores == [27, 50]
    assert "5 % and 95 % make\n27, 50 % and 50 % make 50" in DOCS


def test_the_example_of_oversell_holds() -> None:
    settings = Settings().oversell
    target, floor = written(settings.memory_target), written(settings.memory_floor)
    ratio = float(overcommit_ratio(80, written(20), 100, target, floor))
    assert f"the ratio is {ratio:.2f}, and 80 % look like {80 / ratio:.0f} %" in DOCS


def test_the_example_of_weights_holds() -> None:
    found = weight()
    assert f"can prefer a node by up to {found.others}" in DOCS
    assert f"the weight must be {found.weight} (25 × {found.weight} × 10 = {250 * found.weight})" in DOCS
    scores = table({"half": load(10, 40), "hot": load(10, 90)})
    nothing = Demand(NOTHING, NOTHING, NOTHING, 0)
    half, hot = (Balanced(BalancedSettings()).score(scores.terms(name), nothing) for name in ("half", "hot"))
    assert f"make {half - hot} points" in DOCS
    assert (half - hot) * found.weight * 10 > found.others, "a hot node really loses"
