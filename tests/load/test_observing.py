"""Samples that are worked in step by step: until the last step nothing is seen of them, then all of it at once."""

from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.load import round, terms
from colocate.load.decision import decide
from colocate.load.settings import LoadSettings, PolicyName, Weighted
from colocate.load.table import LoadTable
from colocate.model.load import Amount, BoundPod, NodeLoad, PodUsage
from tests.load.facts import GIB, NOW, load, node, pod, table

NAMES = [f"n{number:03}" for number in range(250)]
MIX = LoadSettings().policy
LATER = NOW + 400


def loads(percent: float, at: float = NOW) -> dict[str, NodeLoad]:
    return {name: load(percent, percent, at=at) for name in NAMES}


def scores(made: LoadTable) -> list[int]:
    return made.scores(MIX, made.demand(pod("asked")), NAMES)


def finish(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def test_until_the_last_step_answers_are_as_before() -> None:
    made = table(loads(20))
    before = scores(made)
    steps = made.observing(loads(80, NOW + 15), NOW + 15)
    for taken, _ in enumerate(steps):
        assert scores(made) == before, taken
    assert taken > 5
    assert scores(made) == scores(table(loads(80))) != before


def test_the_next_request_works_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = table(loads(20))
    scores(made)
    finish(made.observing(loads(80, NOW + 15), NOW + 15))
    build = Mock(wraps=terms.node_terms)
    monkeypatch.setattr(round, "node_terms", build)
    scorer = made.scorer(MIX)
    monkeypatch.setattr(scorer, "of_node", Mock(side_effect=AssertionError("worked out in a request")))
    scores(made)
    assert not build.called


def test_no_step_looks_at_more_than_some_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = table(loads(20))
    scores(made)
    build = Mock(wraps=terms.node_terms)
    monkeypatch.setattr(round, "node_terms", build)
    for _ in made.observing(loads(80, NOW + 15), NOW + 15):
        assert build.call_count <= 100
        build.reset_mock()


def test_nodes_that_come_meanwhile_are_judged_by_the_new_samples() -> None:
    made = table(loads(20))
    steps = made.observing({**loads(80, NOW + 15), "new": load(10, 10, at=NOW + 15)}, NOW + 15)
    next(steps)
    made.add_nodes([node("new")])
    finish(steps)
    assert made.terms("new").cpu.percent == 10
    assert made.terms("n000").cpu.percent == 80


events = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.sampled_from(["bind", "decide", "end", "remove", "advance", "back"]),
        st.sampled_from(NAMES[:3]),
    ),
    max_size=6,
)


@given(events=events, pods=st.booleans())
def test_whatever_happens_meanwhile_the_end_is_as_if_done_at_once(
    events: list[tuple[int, str, str]], pods: bool
) -> None:
    stepwise, at_once = table(loads(20)), table(loads(20))
    for made in (stepwise, at_once):
        made.advance(NOW + 50)
        for number, name in enumerate(NAMES[:5]):
            made.bind(BoundPod(pod(f"old-{number}"), name, NOW + 50))
            made.bind(BoundPod(pod(f"young-{number}"), name, NOW + 390))
        made.advance(LATER)
        scores(made)
    usages = {"young-0": PodUsage(Amount(20, GIB), LATER)} if pods else None
    fresh = loads(60, LATER) | {"n001": load(90, 90, at=LATER)}
    steps = stepwise.observing(fresh, LATER, usages)
    for number in range(13):
        next(steps, None)
        for _, what, name in (event for event in events if event[0] == number):
            for made in (stepwise, at_once):
                happen(made, what, name, number)
    finish(steps)
    if usages is not None:
        at_once.observe_pods(usages)
    at_once.observe(fresh, stepwise.now)
    left = [name for name in NAMES if name in at_once.nodes]
    assert [stepwise.terms(name) for name in left] == [at_once.terms(name) for name in left]
    for policy in PolicyName:
        asked = stepwise.demand(pod("new"))
        weighted = (Weighted(policy),)
        assert stepwise.scores(weighted, asked, NAMES) == at_once.scores(weighted, asked, NAMES)


def happen(made: LoadTable, what: str, name: str, number: int) -> None:
    match what:
        case "bind":
            made.bind(BoundPod(pod(f"new-{number}"), name, LATER))
        case "decide":
            # One candidate, so that the pod is assumed on the same node by old and by new samples.
            decide(made, pod(f"judged-{number}"), [name], LATER)
        case "end":
            made.end("young-1")
        case "remove":
            made.remove_node(name)
        case "advance":
            made.advance(LATER + number)
        case "back":
            made.advance(LATER - number)
