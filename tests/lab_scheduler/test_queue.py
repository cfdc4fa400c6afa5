"""Which pod is next, and when the others are tried again."""

from hypothesis import given
from hypothesis import strategies as st

from colocate.lab.scheduler.facts import SchedulablePod
from colocate.lab.scheduler.filters import FilterCause
from colocate.lab.scheduler.queue import LONGEST_WAIT, Queue, WaitingPod
from colocate.lab.scheduler.requests import PodRequests


def facts(uid: str, priority: int = 0, gated: bool = False) -> SchedulablePod:
    return SchedulablePod("default", uid, uid, PodRequests(), priority=priority, gated=gated)


def filled(*pods: SchedulablePod) -> Queue:
    queue = Queue()
    for pod in pods:
        queue.put(pod, changed=True, now=0)
    return queue


def take(queue: Queue, now: float = 0) -> WaitingPod:
    waiting = queue.take(now)
    assert waiting is not None
    return waiting


def names(queue: Queue, now: float = 0) -> list[str]:
    found = []
    while (waiting := queue.take(now)) is not None:
        found.append(waiting.pod.uid)
    return found


def test_priority_comes_first_and_age_second() -> None:
    queue = filled(facts("old"), facts("urgent", 10), facts("young"), facts("lazy", -1))
    assert names(queue) == ["urgent", "old", "young", "lazy"]


@given(st.lists(st.integers(-3, 3)))
def test_the_order_is_that_of_a_stable_sort(priorities: list[int]) -> None:
    pods = [facts(f"{number}", priority) for number, priority in enumerate(priorities)]
    expected = sorted(range(len(pods)), key=lambda number: -priorities[number])
    assert names(filled(*pods)) == [str(number) for number in expected]


def test_back_off_doubles_up_to_ten_seconds() -> None:
    queue = filled(facts("a"))
    now, waits = 0.0, []
    for _ in range(7):
        queue.retry(take(queue, now), now)
        when = queue.next_time()
        assert when is not None
        assert queue.take(when - 0.001) is None
        waits.append(when - now)
        now = when
    assert waits == [1, 2, 4, 8, 10, 10, 10]


def test_who_fits_nowhere_waits_for_a_change_that_may_help() -> None:
    queue = filled(facts("a"))
    queue.put_aside(take(queue), FilterCause.RESOURCES, now=0)
    queue.happened(FilterCause.TAINTS, now=5)
    assert queue.take(5) is None
    queue.happened(FilterCause.RESOURCES, now=5)
    assert take(queue, 5).pod.uid == "a"


def test_a_change_does_not_shorten_the_back_off() -> None:
    queue = filled(facts("a"))
    queue.put_aside(take(queue), FilterCause.RESOURCES, now=0)
    queue.happened(FilterCause.RESOURCES, now=0.5)
    assert queue.take(0.5) is None
    assert queue.next_time() == 1
    assert take(queue, 1).attempts == 2


def test_a_change_while_a_pod_is_in_hand_is_not_lost() -> None:
    queue = filled(facts("a"), facts("b"))
    in_hand, other = take(queue), take(queue)
    queue.happened(FilterCause.RESOURCES, now=0)
    queue.put_aside(in_hand, FilterCause.RESOURCES | FilterCause.LABELS, now=0)
    queue.put_aside(other, FilterCause.LABELS, now=0)
    assert names(queue, 1) == ["a"]


def test_a_pod_that_is_changed_in_hand_is_tried_again() -> None:
    queue = filled(facts("a"))
    in_hand = take(queue)
    queue.put(facts("a"), changed=True, now=0)
    queue.put_aside(in_hand, FilterCause.RESOURCES, now=0)
    assert names(queue, 1) == ["a"]


def test_a_pod_whose_wishes_change_is_tried_again() -> None:
    queue = filled(facts("a"))
    queue.put_aside(take(queue), FilterCause.RESOURCES, now=0)
    queue.put(facts("a"), changed=False, now=5)
    assert queue.take(5) is None
    queue.put(facts("a"), changed=True, now=5)
    assert names(queue, 5) == ["a"]


def test_no_pod_is_forgotten_for_longer_than_five_minutes() -> None:
    queue = filled(facts("a"))
    queue.put_aside(take(queue), FilterCause.RESOURCES, now=0)
    assert queue.next_time() == LONGEST_WAIT
    assert queue.take(LONGEST_WAIT - 1) is None
    assert names(queue, LONGEST_WAIT) == ["a"]


def test_gated_pods_wait_for_their_gates_alone() -> None:
    queue = filled(facts("a", gated=True))
    queue.happened(FilterCause.anything(), now=0)
    assert queue.take(1000) is None
    queue.put(facts("a"), changed=True, now=1000)
    assert names(queue, 1000) == ["a"]


def test_a_pod_that_was_dropped_is_not_taken_nor_put_back() -> None:
    queue = filled(facts("a"), facts("b"))
    queue.drop("b")
    in_hand = take(queue)
    queue.drop("a")
    queue.retry(in_hand, 0)
    queue.put_aside(in_hand, FilterCause.RESOURCES, 0)
    assert (names(queue, 1000), len(queue), queue.next_time()) == ([], 0, None)
