"""Why not that node: every candidate of an answer can be explained, within bounds of memory."""

from hypothesis import given
from hypothesis import strategies as st

from colocate.load import (
    History,
    LoadTable,
    PackedNames,
    PolicyName,
    ScoreAnswer,
    decide,
    explain_all,
    explain_node,
)
from colocate.load.decision import TERMS_SIZE
from colocate.load.settings import Mix, mix
from colocate.model.load import BoundPod, NodeLoad, PodFacts
from tests.load.facts import NOW, load, pod, table

MANY = {f"n{number:02}": load(number, 90 - number) for number in range(40)}


def judged(made: LoadTable, uid: str, now: float = NOW, by: Mix | None = None) -> ScoreAnswer:
    return decide(made, PodFacts(uid, f"default/{uid}"), list(made.nodes), now, mix=by)


def test_a_node_that_lost_is_told_beside_the_best_though_all_has_changed_since() -> None:
    made = table(MANY)
    answer = judged(made, "p")
    made.observe({name: load(50, 50, at=NOW + 60) for name in MANY}, NOW + 60)
    told = explain_node(answer.decision, made.settings, answer.candidates, "n03")
    assert told is not None
    best, asked = told.nodes
    assert (best.node, asked.node) == (answer.decision.best[0], "n03")
    assert asked.score == dict(zip(MANY, answer.scores, strict=True))["n03"]
    parts = {part.name: part.value for part in asked.policies[0].parts}
    assert (parts["peak CPU"], parts["peak memory"]) == (3, 87)


def test_of_a_node_that_was_no_candidate_nothing_is_told() -> None:
    made = table(MANY)
    answer = decide(made, pod("p"), ["n01", "n02"], NOW)
    assert explain_node(answer.decision, made.settings, answer.candidates, "n03") is None


def test_all_are_told_the_best_first_with_their_ranks_among_the_candidates() -> None:
    made = table({"full": load(1, 350), "half": load(1, 250), "free": load(1, 150)})
    answer = judged(made, "p", by=mix("mem-real-usage"))
    told = explain_all(answer.decision, made.settings, answer.candidates)
    assert [(node.node, node.score) for node in told.nodes] == [("free", 100), ("half", 50), ("full", 0)]
    assert [node.policies[0].score for node in told.nodes] == [100, 50, 0]
    assert told.nodes[1].policies[0].policy is PolicyName.MEM_REAL_USAGE


steps = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), st.sampled_from(sorted(MANY)[:4])),
        st.tuples(st.just("sample"), st.sampled_from(sorted(MANY)[:4])),
        st.tuples(st.just("decide"), st.just("")),
        st.tuples(st.just("pass"), st.just("")),
    ),
    max_size=30,
)


@given(steps)
def test_each_was_judged_by_what_is_told(steps: list[tuple[str, str]]) -> None:
    made = table({name: MANY[name] for name in sorted(MANY)[:4]})
    now = NOW
    expected = []
    for number, (what, node) in enumerate(steps):
        now += 1
        match what:
            case "bind":
                made.bind(BoundPod(pod(f"b{number}", 300), node, now))
            case "sample":
                made.observe({node: load(number, number, at=now)}, now)
            case "pass":
                now += 100
            case _:
                answer = decide(made, pod(f"p{number}"), list(made.nodes), now, assume=False)
                expected.append((answer, {name: made.terms(name) for name in made.nodes}))
                made.assume(f"p{number}", answer.decision.best, answer.decision.demand, now)
    for answer, terms in expected:
        assert answer.candidates.terms() == terms
        assert answer.candidates.by_name() == dict(zip(terms, answer.scores, strict=True))


def test_without_new_samples_what_is_kept_for_one_answer_stays_small() -> None:
    made = table(MANY)
    answers = []
    for number in range(2000):
        answers.append(judged(made, f"p{number}"))
        made.bind(BoundPod(PodFacts(f"p{number}", "default/p"), "n00", NOW))
    assert max(len(answer.candidates.log) for answer in answers) < 1200
    assert all(len(answer.candidates.terms()) == len(MANY) for answer in answers)


def parts_known(history: History, uid: str) -> bool | None:
    found = history.candidates(uid)
    return None if found is None else bool(found.terms())


def test_the_oldest_lose_the_parts_first_and_keep_the_best() -> None:
    made = table(MANY)
    history = History(room=2 * 3 * len(MANY) * TERMS_SIZE)
    for number in range(5):
        made.observe({name: load(10, 10, at=NOW + number) for name in MANY}, NOW + number)
        history.add(judged(made, f"p{number}", NOW + number))
    assert [parts_known(history, f"p{number}") for number in range(5)] == [False, False, True, True, True]
    kept, candidates = history.find("p0"), history.candidates("p0")
    assert kept is not None
    assert candidates is not None
    told = explain_all(kept.decision, made.settings, candidates)
    assert len(told.nodes) == len(MANY)
    assert told.nodes[0].policies
    assert not told.nodes[-1].policies
    assert told.nodes[-1].score is not None


def test_then_they_lose_the_scores() -> None:
    made = table(MANY)
    one = judged(made, "p").candidates.size
    history = History(room=2 * 3 * one)
    for number in range(5):
        history.add(judged(made, f"p{number}"))
    assert [parts_known(history, f"p{number}") for number in range(5)] == [None, None, True, True, True]
    assert history.find("p0") is not None


def test_what_is_judged_again_and_again_takes_no_more_room() -> None:
    made = table(MANY)
    history = History(room=2 * 4 * judged(made, "p").candidates.size)
    history.add(judged(made, "first"))
    for _ in range(100):
        history.add(judged(made, "pending"))
    assert parts_known(history, "first")


def test_what_is_forgotten_frees_what_only_it_needed() -> None:
    made = table(MANY)
    history = History(most=2)
    answers = []
    for number in range(4):
        made.observe({name: load(10, 10, at=NOW + number) for name in MANY}, NOW + number)
        answers.append(judged(made, f"p{number}", NOW + number))
        history.add(answers[-1])
    assert [bool(answer.candidates.log) for answer in answers] == [False, False, True, True]


def test_no_candidates_take_no_room() -> None:
    made = table({"a": load(1, 1), "b": NodeLoad()})
    answer = decide(made, pod("p"), [], NOW)
    assert answer.candidates.by_name() == {}
    history = History()
    history.add(answer)
    assert history.candidates("p") is None


@given(
    rounds=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), min_size=1, max_size=60),
    room=st.integers(0, 4000),
)
def test_packed_names_are_found_again_or_not_at_all(rounds: list[tuple[int, int]], room: int) -> None:
    made = table(MANY)
    history = History(room=room)
    last: dict[str, list[str]] = {}
    for number, count in rounds:
        uid, names = f"u-{number}", list(MANY)[:count]
        packed = PackedNames(",".join(names).encode(), lambda data: data.decode().split(","))
        history.add(decide(made, PodFacts(uid, f"default/{uid}"), names, NOW, kept_as=packed))
        last[uid] = names
    for uid, names in last.items():
        candidates = history.candidates(uid)
        assert candidates is None or list(candidates.by_name()) == names
    assert history.candidates(f"u-{rounds[-1][0]}") is not None, "the youngest is known in any case"
