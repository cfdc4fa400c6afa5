"""Pods that the samples do not show yet: when they are counted, for how much, and until when."""

import pytest

from colocate.load.decision import decide
from colocate.load.demand import LEAST, MOST, Calibration, OwnerUse, Ratio, demand
from colocate.load.settings import EstimateSettings, LedgerSettings, LoadSettings, PackingSettings, mix
from colocate.load.table import LoadTable
from colocate.model.load import (
    Amount,
    BoundPod,
    ContainerAsk,
    NodeLoad,
    PerResource,
    PodFacts,
    PodShape,
    PodUsage,
    Usage,
)
from tests.load.facts import EXACT, GIB, NOW, bound, load, pod, table

ESTIMATE = EstimateSettings()


def two_nodes(ledger: LedgerSettings = EXACT) -> LoadTable:
    return table({"a": load(10, 10), "b": load(10, 10)}, LoadSettings(ledger=ledger))


def counted(made: LoadTable, name: str = "a") -> Amount:
    terms = made.terms(name)
    return Amount(terms.cpu.ledger, terms.memory.ledger)


def shape(request: PerResource, limit: PerResource = PerResource()) -> PodFacts:  # noqa: B008
    return PodFacts("uid", "default/p", PodShape((ContainerAsk(request, limit),)))


@pytest.mark.parametrize(
    ("request_", "limit", "estimate"),
    [
        (PerResource(1000, GIB), PerResource(2000, 2 * GIB), Amount(1700, 1503238554)),
        (PerResource(1000, GIB), PerResource(), Amount(850, 751619277)),
        (PerResource(), PerResource(), Amount(250, 200 << 20)),
        (PerResource(1000), PerResource(), Amount(850, 200 << 20)),
    ],
)
def test_a_pod_is_estimated_by_limit_else_request_else_default(
    request_: PerResource, limit: PerResource, estimate: Amount
) -> None:
    assert demand(shape(request_, limit), ESTIMATE, PackingSettings()).estimate == estimate


def test_a_sidecar_counts_next_to_the_containers_and_an_init_container_alone() -> None:
    def ask(cpu: int, *, sidecar: bool = False) -> ContainerAsk:
        return ContainerAsk(PerResource(cpu, 0), sidecar=sidecar)

    running = PodFacts("u", "k", PodShape((ask(100),), (ask(50, sidecar=True), ask(80))))
    starting = PodFacts("u", "k", PodShape((ask(100),), (ask(50, sidecar=True), ask(300))))
    assert demand(running, ESTIMATE, PackingSettings()).request.cpu == 150
    assert demand(starting, ESTIMATE, PackingSettings()).request.cpu == 350


def test_a_pod_counts_from_its_binding_on() -> None:
    made = two_nodes()
    before = made.scores(mix("balanced"), made.demand(pod("new")), ["a", "b"])
    made.bind(BoundPod(pod("big", 4000, 8 * GIB), "a", NOW))
    assert counted(made) == Amount(3400, int(8 * GIB * 0.7 + 0.5))
    after = made.scores(mix("balanced"), made.demand(pod("new")), ["a", "b"])
    assert after[0] < before[0] - 20
    assert after[1] == before[1]


def test_a_pod_leaves_when_a_sample_lies_a_whole_window_after_its_binding() -> None:
    made = two_nodes(LedgerSettings(window=60, least_percent=0))
    made.bind(bound("p", "a", NOW + 1))
    made.observe({"a": load(12, 12, at=NOW + 60)}, NOW + 60)
    assert counted(made).cpu > 0
    made.observe({"b": load(12, 12, at=NOW + 90)}, NOW + 90)
    assert counted(made).cpu > 0, "another node's sample shows nothing"
    made.observe({"a": load(12, 12, at=NOW + 61)}, NOW + 91)
    assert counted(made) == Amount()


def test_a_signal_that_died_does_not_keep_pods_that_the_other_shows() -> None:
    made = two_nodes(LedgerSettings(window=60, least_percent=0, expiry=0))
    made.bind(bound("p", "a", NOW + 100))
    dead, alive = Usage(10, NOW), Usage(12, NOW + 170)
    made.observe({"a": NodeLoad(alive, dead)}, NOW + 179)
    assert counted(made).cpu > 0, "memory still counts, and does not show it"
    assert made.terms("a").sampled_at == NOW
    made.observe({"a": NodeLoad(alive, dead)}, NOW + 180)
    assert counted(made) == Amount()
    assert made.terms("a").sampled_at == NOW + 170
    made.bind(bound("late", "a", NOW + 105))
    assert counted(made) == Amount(), "a pod that is shown does not enter either"


def test_a_pod_leaves_when_it_ends_and_when_it_has_been_there_too_long() -> None:
    made = two_nodes(LedgerSettings(expiry=900, least_percent=0))
    made.bind(bound("ends", "a"))
    made.bind(bound("stays", "b"))
    made.end("ends")
    assert counted(made, "a") == Amount()
    made.advance(NOW + 899)
    assert counted(made, "b").cpu > 0
    made.advance(NOW + 900)
    assert counted(made, "b") == Amount()


def test_pods_bound_long_ago_are_never_entered() -> None:
    made = two_nodes()
    made.bind(bound("old", "a", NOW - 3600))
    assert counted(made) == Amount()
    assert made.terms("a").cpu.requested == 50


def test_a_pod_that_moves_is_counted_where_it_is() -> None:
    made = two_nodes()
    made.bind(bound("p", "a"))
    made.bind(bound("p", "b"))
    assert counted(made, "a") == Amount()
    assert counted(made, "b").cpu > 0
    assert made.terms("a").cpu.requested == 0


def test_many_small_pods_count_by_number_up_to_a_bound() -> None:
    made = two_nodes(LedgerSettings(least_percent=1, least_percent_bound=25))
    for number in range(10):
        made.bind(BoundPod(pod(f"p-{number}", 1, 1), "a", NOW))
    assert counted(made).cpu == 800
    for number in range(10, 60):
        made.bind(BoundPod(pod(f"p-{number}", 1, 1), "a", NOW))
    assert counted(made).cpu == 2000


def test_of_a_pod_that_is_measured_only_the_rest_is_counted() -> None:
    made = two_nodes()
    made.bind(BoundPod(pod("p", 1000, GIB), "a", NOW))
    made.observe_pods({"p": PodUsage(Amount(350, 2 * GIB), NOW)})
    assert counted(made) == Amount(500, 0)


def test_where_every_pod_is_reported_one_counts_until_it_is() -> None:
    made = two_nodes(LedgerSettings(least_percent=0, expiry=0, wait_for_pod_usage=True))
    made.bind(bound("p", "a", NOW - 3600))
    assert counted(made).cpu > 0
    made.observe_pods({"p": PodUsage(Amount(1, 1), NOW)})
    assert counted(made) == Amount()


# --- what an extender assumes ------------------------------------------------------------------------


def test_a_pod_that_was_judged_counts_on_the_best_nodes_in_equal_shares() -> None:
    made = two_nodes()
    decide(made, pod("p", 1000, GIB), ["a", "b"], NOW)
    assert made.terms("a").unseen_pods == made.terms("b").unseen_pods == 0.5
    assert counted(made, "a").cpu == counted(made, "b").cpu == 425


def test_what_it_requests_and_may_use_at_most_counts_there_too() -> None:
    made = two_nodes()
    for asked in ("p", "q"):
        decide(made, pod(asked, 1000, GIB, limit=PerResource(3000, None)), ["a", "b"], NOW)
    assert (made.terms("a").cpu.requested, made.terms("b").memory.requested) == (1000, GIB)
    assert made.terms("a").cpu.limits == 3000
    for asked in ("p", "q"):
        made.bind(BoundPod(pod(asked, 1000, GIB), "a", NOW))
    assert (made.terms("a").cpu.requested, made.terms("b").cpu.requested) == (2000, 0)


def test_the_binding_takes_the_place_of_what_was_assumed() -> None:
    made = two_nodes()
    decide(made, pod("p"), ["a", "b"], NOW)
    made.bind(bound("p", "b"))
    assert made.terms("a").unseen_pods == 0
    assert made.terms("b").unseen_pods == 1
    decide(made, pod("p"), ["a", "b"], NOW)
    assert made.terms("b").unseen_pods == 1, "a pod that is bound is assumed nowhere"


def test_a_pod_that_never_comes_is_forgotten_soon() -> None:
    made = two_nodes(LedgerSettings(assumed_expiry=10))
    decide(made, pod("p"), ["a", "b"], NOW)
    made.advance(NOW + 9)
    assert made.terms("a").unseen_pods == 0.5
    made.advance(NOW + 10)
    assert made.terms("a").unseen_pods == 0


def test_judging_a_pod_again_counts_it_once() -> None:
    made = two_nodes()
    for _ in range(3):
        decide(made, pod("p"), ["a"], NOW)
    assert made.terms("a").unseen_pods == 1


def test_a_pod_that_may_go_anywhere_is_assumed_nowhere() -> None:
    made = table({f"n-{i}": load(1, 1) for i in range(17)})
    decide(made, pod("p"), list(made.nodes), NOW)
    assert len(made.ledger) == 0


# --- estimate against actual -------------------------------------------------------------------------


def settled(owner: str, *, used: Amount, pods: int) -> LoadTable:
    """A table that has seen that many pods of an owner through to their samples."""
    made = two_nodes()
    for number in range(pods):
        uid = f"{owner}-{number}"
        at = NOW + 1000 * number
        made.bind(BoundPod(pod(uid, 1000, GIB, owner=owner), "a", at))
        made.observe_pods({uid: PodUsage(used, at + 100)})
        made.observe({"a": load(10, 10, at=at + 100)}, at + 100)
    return made


def test_an_owner_whose_pods_use_little_is_estimated_lower_next_time() -> None:
    made = settled("web", used=Amount(85, GIB * 7 // 100), pods=20)
    estimate = made.demand(pod("next", 1000, GIB, owner="web")).estimate
    assert 85 <= estimate.cpu < 110
    assert made.demand(pod("other", 1000, GIB, owner="db")).estimate.cpu == 850


def test_one_odd_pod_changes_little_and_nothing_goes_beyond_the_bounds() -> None:
    assert (
        settled("web", used=Amount(0, 0), pods=1).demand(pod("n", 1000, GIB, owner="web")).estimate.cpu > 600
    )
    calibration = Calibration()
    for number in range(1000):
        calibration.learn("nothing", OwnerUse(1, 100, 100, 0, 0), NOW + 60 * number)
        calibration.learn("all", OwnerUse(1, 100, 100, 10**9, 10**9), NOW + 60 * number)
    assert calibration.ratio("nothing").cpu == pytest.approx(LEAST, rel=0.3)
    assert calibration.ratio("all").memory == pytest.approx(MOST, rel=0.05)


def test_no_correction_goes_beyond_a_limit() -> None:
    limited = shape(PerResource(1000, GIB), PerResource(1000, GIB))
    assert demand(limited, ESTIMATE, PackingSettings(), Ratio(2.0, 2.0)).estimate == Amount(1000, GIB)


def test_owners_are_forgotten_in_the_order_in_which_they_were_heard_of() -> None:
    calibration = Calibration(owners=2)
    for owner in ("first", "second", "first", "third"):
        calibration.learn(owner, OwnerUse(1, 100, 100, 50, 50), NOW)
    assert {each.owner for each in calibration.learned} == {"first", "third"}


def test_a_node_that_is_never_sampled_counts_its_pods_too() -> None:
    made = table({"a": NodeLoad(), "b": load(10, 10)})
    made.bind(bound("p", "a"))
    assert made.terms("a").unseen_pods == 1


class TestPodsThatOnlyACallerVouchesFor:
    """A caller could make up pods, so only so many of one caller count."""

    def assume(self, made: LoadTable, *uids: str, by: str = "") -> int:
        for uid in uids:
            decide(made, pod(uid), ["a"], NOW, vouched_by=by)
        return len(made.ledger.assumptions)

    def test_a_thousand_phantoms_of_one_caller_are_counted_as_the_few_that_are_allowed(self) -> None:
        made = two_nodes()
        assert self.assume(made, *(f"phantom-{number}" for number in range(1000)), by="mallory") == 50
        assert counted(made) == Amount(50 * made.demand(pod("x")).estimate.cpu, counted(made).memory)

    def test_another_caller_and_pods_of_the_api_server_are_counted_all_the_same(self) -> None:
        made = two_nodes()
        self.assume(made, *(f"phantom-{number}" for number in range(100)), by="mallory")
        assert self.assume(made, "theirs", by="kube-scheduler") == 51
        assert self.assume(made, *(f"real-{number}" for number in range(200))) == 251

    def test_one_that_is_asked_about_again_and_again_counts_once(self) -> None:
        made = two_nodes()
        for _ in range(200):
            self.assume(made, "same", by="kube-scheduler")
        assert self.assume(made, "other", by="kube-scheduler") == 2

    @pytest.mark.parametrize("leaving", ["bound", "ended", "expired"])
    def test_each_that_leaves_makes_room(self, leaving: str) -> None:
        made = LoadTable(LoadSettings(ledger=LedgerSettings(vouched_pods=1)))
        made.add_nodes(two_nodes().nodes.values())
        assert self.assume(made, "first", "second", by="kube-scheduler") == 1
        if leaving == "bound":
            made.bind(bound("first", "a"))
        elif leaving == "ended":
            made.end("first")
        else:
            made.advance(NOW + 11)
        assert self.assume(made, "third", by="kube-scheduler") == 1
        assert made.ledger.assumptions[0].uid == "third"
