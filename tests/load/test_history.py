"""What was decided is kept, within bounds; and nodes are listed by their load."""

from colocate.load import History, decide, mix, refused_everywhere, top
from colocate.load.decision import ScoreAnswer
from colocate.model.load import BoundPod, NodeLoad, PodFacts
from tests.load.facts import GIB, NOW, load, pod, table


def answer(uid: str, key: str = "") -> ScoreAnswer:
    made = table({"cool": load(10, 10), "hot": load(90, 90)})
    return decide(made, PodFacts(uid, key or f"default/{uid}"), ["cool", "hot"], NOW)


def test_a_decision_is_found_by_name_and_by_uid() -> None:
    history = History()
    history.add(answer("u-1", "default/web"))
    by_name, by_uid = history.find("default/web"), history.find("u-1")
    assert by_name is not None
    assert by_name == by_uid
    assert history.find("default/other") is None


def test_whether_the_scheduler_followed_is_known_once_the_pod_is_bound() -> None:
    history = History()
    for uid in ("followed", "other", "open"):
        history.add(answer(uid))
    bound = history.bound("followed", "cool", NOW + 1)
    assert bound is not None
    assert bound.followed is True
    assert history.bound("followed", "cool", NOW + 2) is None, "it is news only once"
    history.bound("other", "hot", NOW + 1)
    assert [kept.followed for kept in history.latest(9)] == [None, False, True]


def test_the_oldest_are_forgotten() -> None:
    history = History(most=2)
    for uid in ("a", "b", "c"):
        history.add(answer(uid))
    assert len(history) == 2
    assert history.find("default/a") is None
    assert [kept.decision.uid for kept in history.latest(1)] == ["c"]


def test_a_pod_of_the_same_name_is_found_after_its_forerunner_is_forgotten() -> None:
    history = History(most=2)
    for uid, key in (("old", "default/db-0"), ("new", "default/db-0"), ("x", "default/x")):
        history.add(answer(uid, key))
    kept = history.find("default/db-0")
    assert kept is not None
    assert kept.decision.uid == "new"


def test_a_pod_that_was_refused_everywhere_is_kept_until_it_is_let_in() -> None:
    history = History()
    made = table({"hot": load(90, 90)})
    history.add(answer("judged"))
    history.add(refused_everywhere(made, PodFacts("u", "default/u"), 1, NOW, mix("balanced")))
    for uid in ("judged", "u", "u", "stranger"):
        history.let_in(uid)
    assert history.find("default/u") is None
    assert history.find("judged") is not None
    history.add(refused_everywhere(made, PodFacts("u", "default/u"), 1, NOW, mix("balanced")))
    kept = history.bound("u", "hot", NOW)
    assert kept is not None
    assert kept.followed is None, "no scheduler was told to go there"


def test_a_pod_that_is_judged_again_has_its_last_decision() -> None:
    history = History()
    history.add(answer("u"))
    history.bound("u", "cool", NOW)
    history.add(answer("u"))
    kept = history.find("u")
    assert kept is not None
    assert kept.node is None
    assert len(history) == 1


def test_nodes_are_listed_by_load_with_what_is_requested_of_them() -> None:
    made = table({"idle": load(5, 5), "busy": load(20, 70, at=NOW - 20), "silent": NodeLoad()})
    made.bind(BoundPod(pod("p", 4000, 8 * GIB), "idle", NOW - 600))
    rows = top(made)
    assert [row.node for row in rows] == ["busy", "silent", "idle"]
    busy, silent, idle = rows
    assert (busy.memory.used, busy.age) == (70, 20)
    assert silent.cpu.used is None
    assert (idle.cpu.requested, idle.memory.requested) == (50, 25)


def test_what_is_requested_of_a_node_is_what_its_pods_request_and_not_those_on_their_way() -> None:
    made = table({"idle": load(5, 5)})
    made.bind(BoundPod(pod("bound", 4000, 8 * GIB), "idle", NOW - 600))
    made.assume("coming", ["idle"], made.demand(pod("coming", 2000, 4 * GIB)), NOW)
    [row] = top(made)
    assert (row.cpu.requested, row.memory.requested) == (50, 25)
    assert (row.unseen_pods, row.cpu.unseen > 0) == (1, True), "they are told as unseen"
    assert made.terms("idle").cpu.requested == 6000, "policies count both"
