"""Two series that claim one node: a stranger's never makes it look idle, and is told of with the matcher to add."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from colocate.cluster.usage import SignalHealth, UsageSettings
from colocate.cluster.usage.answers import Series
from colocate.cluster.usage.claims import (
    Claim,
    Claims,
    Sample,
    SeriesCollision,
    collisions,
    counting,
    disagreeing,
    highest,
    identity,
    updated,
)
from colocate.cluster.usage.directory import Directory, KnownNode
from colocate.cluster.usage.node_series import Times, join
from colocate.doctor.strangers import LabelRemedies

NOW = 1e6
EXPIRY = 180.0
ROUND = 15.0
LABELS = ("node", "kubernetes_node", "instance")
NODES = Directory([KnownNode(name, (f"10.0.0.{n}",)) for n, name in enumerate(("victim", "b", "c"), start=1)])
OURS = {"node": "victim", "instance": "10.0.0.1:9100", "job": "node-exporter"}
THEIRS = {"node": "victim", "instance": "10.9.8.7:8080", "job": "tenant"}


class Rounds:
    """Answers one after the other, as a poller takes them."""

    def __init__(self, labels: tuple[str, ...] = LABELS) -> None:
        self.now = NOW
        self._labels = labels
        self._times: Times | None = None
        self.claims: Claims | None = None
        self.collisions: tuple[SeriesCollision, ...] = ()

    def take(self, *said: tuple[dict[str, str], float, float | None]) -> float | None:
        """One round: labels, value and age of each series; no age where its scrape is not told. What counts of the
        victim."""
        self.now += ROUND
        answer = [Series(labels, self.now, value) for labels, value, _ in said]
        scraped = [Series(labels, self.now, self.now - age) for labels, _, age in said if age is not None]
        self._times = Times(scraped, NODES, self._labels, self.now, self._times)
        joined = join(answer, NODES, self._labels, self._times)
        self.claims = updated(self.claims, joined.claims, self.now, EXPIRY)
        disputes = list(disagreeing(self.claims, joined.claims, self.now))
        self.collisions = collisions(disputes, answer, NODES, self._labels)
        claims = self.claims.get("victim")
        return counting(claims, self.now, EXPIRY).value if claims else None


@pytest.mark.parametrize(("ours", "theirs"), [(20, 1), (1, 1), (59, 0)])
def test_a_tenant_that_is_scraped_more_often_makes_a_full_node_look_no_less_full(
    ours: float, theirs: float
) -> None:
    rounds = Rounds()
    for _ in range(5):
        assert rounds.take((OURS, 95, ours), (THEIRS, 0, theirs)) == 95


def test_a_tenant_that_claims_the_future_is_no_fresher() -> None:
    rounds = Rounds()
    for _ in range(5):
        assert rounds.take((OURS, 95, 10), (THEIRS, 0, -600)) == 95
        assert rounds.take((OURS, 97, 10), (THEIRS, 96, -600)) == 97


def test_a_tenant_that_names_the_node_goes_over_no_exporter_that_is_known_by_its_address() -> None:
    plain = {"instance": "10.0.0.1:9100"}
    otherwise = {"node": "victim.example", "instance": "10.0.0.1:9100"}
    for honest in (plain, otherwise):
        assert Rounds().take((honest, 95, 10), ({"node": "victim"}, 0, 1)) == 95


def test_a_tenant_whose_scrapes_alone_are_told_goes_over_nobody() -> None:
    assert Rounds().take((OURS, 95, None), (THEIRS, 0, 1)) == 95


def test_a_tenant_that_silences_the_exporter_gains_nothing_until_the_last_sample_expires() -> None:
    rounds = Rounds()
    rounds.take((OURS, 95, 1), (THEIRS, 0, 1))
    for _ in range(int(EXPIRY / ROUND) - 1):
        assert rounds.take((THEIRS, 0, 1)) == 95
    assert rounds.take((THEIRS, 0, 1)) == 0, "an expired sample does not win"


def test_a_flood_of_series_drives_out_nobody_who_says_more() -> None:
    rounds = Rounds()
    flood = [({**THEIRS, "pod": str(number)}, number % 50, 1) for number in range(500)]
    assert rounds.take(*flood, (OURS, 95, 10)) == 95
    assert rounds.take(*flood, (OURS, 96, 1)) == 96
    assert rounds.claims is not None
    assert len(rounds.claims["victim"]) <= 8


def test_what_an_exporter_leaves_behind_drains_and_counts_as_it_was_when_it_was_scraped() -> None:
    """Its pod has another address after every restart, and a rule goes on to say 100 percent of the old one."""
    old, new = {**OURS, "instance": "192.168.0.1:9100"}, {**OURS, "instance": "192.168.0.2:9100"}
    rounds = Rounds()
    rounds.take((old, 30, 1))
    for number in range(1, 12):
        counted = rounds.take((old, 30 + 6 * number, ROUND * number + 1), (new, 20, 1))
        assert counted == 30
        assert not rounds.collisions, "they were never scraped side by side"
    assert rounds.take((old, 100, 181), (new, 20, 1)) == 20


def test_replicas_that_say_the_same_are_no_strangers() -> None:
    rounds = Rounds()
    for _ in range(3):
        assert rounds.take(({**OURS, "replica": "a"}, 50, 3), ({**OURS, "replica": "b"}, 53, 9)) == 53
        assert not rounds.collisions


def test_a_collision_is_told_with_the_matcher_that_keeps_what_all_nodes_have() -> None:
    rounds = Rounds()
    others = [({"node": name, "instance": f"{name}:9100", "job": "node-exporter"}, 40, 5) for name in "bc"]
    rounds.take((OURS, 95, 5), (THEIRS, 0, 1), *others)
    (found,) = rounds.collisions
    assert (found.node, found.counted, found.other) == ("victim", 95, 0)
    assert (found.counted_labels, found.other_labels) == (OURS, THEIRS)
    assert (found.matcher, found.certain) == ('job="node-exporter"', True)


def test_a_stranger_who_says_more_is_left_out_by_the_same_matcher() -> None:
    rounds = Rounds()
    others = [({"node": name, "job": "node-exporter"}, 40, 5) for name in "bc"]
    assert rounds.take((OURS, 10, 5), (THEIRS, 100, 1), *others) == 100
    (found,) = rounds.collisions
    assert found.matcher == 'job="node-exporter"'


class CountedLabels(dict[str, str]):
    """Labels that count how often they are looked at."""

    looks = 0

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
        self.looks += 1
        return super().get(name, default)


def test_a_tenant_whose_series_has_thousands_of_labels_has_few_looked_for_in_the_series_of_others() -> None:
    rounds = Rounds()
    theirs = THEIRS | {f"l{number}": "x" for number in range(5000)} | {"n" * 5000: "x" * 5000}
    honest = CountedLabels(node="b", job="node-exporter")
    rounds.take(
        (OURS, 95, 5), (theirs, 0, 1), (honest, 40, 5), ({"node": "c", "job": "node-exporter"}, 40, 5)
    )
    (found,) = rounds.collisions
    assert found.matcher == 'job="node-exporter"'
    assert honest.looks < 50
    assert len(str(found)) < 20_000


def test_where_no_label_tells_them_apart_either_may_be_left_out() -> None:
    rounds = Rounds()
    rounds.take(({"node": "victim", "instance": "x"}, 95, 5), ({"node": "victim", "instance": 'y"z'}, 0, 1))
    (found,) = rounds.collisions
    assert (found.matcher, found.certain) == ('instance!="y\\"z" or instance!="x"', False)


def test_a_collision_that_begins_while_we_look_is_seen_once_both_were_scraped() -> None:
    rounds = Rounds()
    rounds.take((OURS, 95, 5))
    rounds.take((OURS, 95, 5), (THEIRS, 0, 1))
    assert not rounds.collisions
    rounds.take((OURS, 95, 5), (THEIRS, 0, 1))
    assert rounds.collisions
    rounds.take((OURS, 95, 5))
    assert not rounds.collisions


def test_the_doctors_remedy_is_a_matcher_to_be_written() -> None:
    collision = SeriesCollision("victim", 95, OURS, 0, THEIRS, 'job="node-exporter"', True)
    told = SignalHealth("cpu", "node_cpu_usage_avg_5m", collisions=(collision,))
    remedies = LabelRemedies(UsageSettings(matchers='cluster="prod"'), NODES, [told])
    matchers = json.dumps('cluster="prod",job="node-exporter"')
    assert remedies.of_collision(told, collision).startswith(f"write usage.matchers: {matchers} if")
    own = LabelRemedies(UsageSettings(queries={"cpu": "mine"}), NODES, [told])
    assert own.of_collision(told, collision).endswith('by job="node-exporter" in usage.queries.cpu')


samples = st.builds(Sample, st.floats(0, 100), st.floats(NOW - 400, NOW), st.just(0.0))
claims = st.lists(st.builds(Claim, st.integers(0, 20), samples), min_size=1, max_size=20)


@given(claims, claims)
def test_no_claim_that_is_added_makes_a_node_less_busy_while_others_are_fresh(
    honest: list[Claim], added: list[Claim]
) -> None:
    before = counting(highest(honest), NOW, EXPIRY)
    after = counting(highest([*honest, *added]), NOW, EXPIRY)
    if NOW - before.time < EXPIRY and all(NOW - one.sample.time < EXPIRY for one in added):
        assert after.value >= before.value


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3))
def test_an_identity_is_that_of_the_labels(labels: dict[str, str]) -> None:
    assert identity(labels) == identity(dict(reversed(list(labels.items()))))
    assert identity({**labels, "more": "x"}) != identity(labels)
