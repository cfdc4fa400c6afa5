"""Which node a series is of, and which value counts."""

import math

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from colocate.cluster.usage.answers import Series
from colocate.cluster.usage.claims import Claim, Claims, Sample, counting, identity, updated
from colocate.cluster.usage.directory import Directory, KnownNode, NodeShape, host_of
from colocate.cluster.usage.node_series import Joined, Times, join
from colocate.cluster.usage.settings import NODE_LABELS
from colocate.model.load import Amount

NOW = 1000.0
NODES = Directory(
    [
        KnownNode("a", ("10.0.0.1", "2001:db8::1", "host-a", "ip-10-0-0-1.Example.COM")),
        KnownNode("b", ("10.0.0.2", "fe80::2%eth0")),
        KnownNode("c"),
    ]
)
NO_TIMES = Times([], NODES, NODE_LABELS, NOW)


def of(value: float, at: float = NOW, /, **labels: str) -> Series:
    return Series(labels, at, value)


def scraped(now: float, *series: Series | None, before: Times | None = None) -> Times:
    return Times(series, NODES, NODE_LABELS, now, before)


def joined(*series: Series | None, times: Times = NO_TIMES, labels: tuple[str, ...] = NODE_LABELS) -> Joined:
    return join(series, NODES, labels, times)


def values(*series: Series | None, times: Times = NO_TIMES) -> dict[str, float]:
    return {node: sample.value for node, sample in joined(*series, times=times).samples.items()}


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("a", "a"),
        ("a:9100", "a"),
        ("10.0.0.1:9100", "a"),
        ("10.0.0.2", "b"),
        ("[2001:db8::1]:9100", "a"),
        ("[2001:0DB8:0:0:0:0:0:1]:9100", "a"),
        ("2001:db8::1", "a"),
        ("[fe80::2]:9100", "b"),
        ("host-a:9100", "a"),
        ("HOST-A", "a"),
        ("ip-10-0-0-1.example.com.:9100", "a"),
        ("d", None),
        ("10.0.0.3:9100", None),
        ("10.0.0.1:9100:9100", None),
        ("", None),
        ("[", None),
        (":9100", None),
    ],
)
def test_a_node_is_found_by_its_name_or_an_address(text: str, node: str | None) -> None:
    assert NODES.find(text) == node


def test_an_address_of_two_nodes_is_of_none() -> None:
    directory = Directory([KnownNode("a", ("localhost", "10.0.0.1")), KnownNode("b", ("localhost",))])
    assert directory.find("localhost:9100") is None
    assert directory.ambiguous == {"localhost"}
    assert directory.find("10.0.0.1:9100") == "a"


@pytest.mark.parametrize("label", ["node", "kubernetes_node", "instance"])
def test_each_of_the_labels_may_say_the_node(label: str) -> None:
    assert values(Series({label: "a"}, NOW, 7)) == {"a": 7}


def test_the_first_label_that_names_a_node_counts() -> None:
    assert values(of(7, node="a", instance="10.0.0.2:9100")) == {"a": 7}
    assert values(of(7, node="somewhere", instance="10.0.0.2:9100")) == {"b": 7}
    turned = joined(of(7, node="a", instance="10.0.0.2:9100"), labels=("instance", "node"))
    assert set(turned.samples) == {"b"}


def test_values_that_are_none_are_left_out_and_counted() -> None:
    found = joined(
        of(math.nan, node="a"),
        of(1e13, node="a"),
        of(math.inf, node="a"),
        of(-math.inf, node="b"),
        of(-5, node="b"),
        None,
        of(1, node="nobody", job="x"),
        of(3, node="c"),
    )
    assert found.samples == {"c": Sample(3, NOW)}
    counts = found.counts
    assert (counts.series, counts.joined, counts.missing) == (8, 1, 2)
    assert (counts.not_a_number, counts.infinite, counts.negative) == (1, 3, 1)
    assert (counts.malformed, counts.unknown, counts.duplicate) == (1, 1, 0)
    assert found.missing == ("a", "b")
    assert found.strangers == ({"node": "nobody", "job": "x"},)


def test_a_little_less_than_nothing_is_nothing() -> None:
    assert values(of(-0.4, node="a")) == {"a": 0}


def test_of_two_exporters_the_higher_counts_where_both_are_as_fresh() -> None:
    low, high = of(10, node="a", instance="x"), of(90, node="a", instance="y")
    assert values(low, high) == values(high, low) == {"a": 90}
    assert joined(low, high).counts.duplicate == 1


def test_times_are_ages_on_prometheus_clock_and_so_survive_another_clock() -> None:
    ahead = 5000.0
    times = Times([of(NOW + ahead - 30, NOW + ahead, node="a")], NODES, NODE_LABELS, NOW)
    found = joined(of(7, NOW + ahead, node="a"), times=times)
    assert found.samples == {"a": Sample(7, NOW - 30, NOW + ahead - 30)}


def test_a_time_that_is_known_by_node_serves_series_with_other_labels() -> None:
    times = Times([of(NOW - 30, instance="10.0.0.1:9100")], NODES, NODE_LABELS, NOW)
    assert joined(of(7, node="a"), times=times).samples == {"a": Sample(7, NOW - 30, NOW - 30)}


def test_a_node_that_is_no_longer_scraped_stays_as_old_as_it_was() -> None:
    before = scraped(NOW - 90, of(NOW - 90, NOW - 90, node="a"), of(NOW - 90, NOW - 90, node="b"))
    times = scraped(NOW, of(NOW - 1, node="b"), before=before)
    assert joined(of(7, node="a"), of(8, node="b"), of(9, node="c"), times=times).samples == {
        "a": Sample(7, NOW - 90, NOW - 90),
        "b": Sample(8, NOW - 1, NOW - 1),
        "c": Sample(9, NOW),
    }


def test_where_no_node_is_scraped_any_more_all_stay_as_old_as_they_were() -> None:
    times = scraped(NOW, before=scraped(NOW - 90, of(NOW - 90, NOW - 90, node="a")))
    assert joined(of(7, node="a"), times=times).samples == {"a": Sample(7, NOW - 90, NOW - 90)}


def test_a_node_that_has_left_the_cluster_is_forgotten() -> None:
    before = scraped(NOW - 90, of(NOW - 90, NOW - 90, node="a"))
    without = Times([], Directory([KnownNode("b")]), NODE_LABELS, NOW, before)
    assert joined(of(7, kubernetes_node="a"), times=without).samples == {"a": Sample(7, NOW)}


EXPIRY = 180.0
KEPT = Sample(20, NOW, NOW)


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        (Sample(90, NOW, NOW), False),
        (Sample(90, NOW + 200, NOW), False),
        (Sample(90, NOW - 5, NOW), False),
        (Sample(90, NOW + 15, NOW + 0.001), True),
        (Sample(90, NOW - 4000, NOW + 15), True),
        (Sample(90, NOW - 15, NOW - 15), False),
        (Sample(90, NOW - 4000, NOW - 4000), False),
        (Sample(90, NOW + 15, NOW - 4000), False),
        (Sample(90, NOW + 45, NOW - 4000), True),
        (Sample(90, NOW + 15), True),
    ],
    ids=[
        "the same scrape",
        "the same, after Prometheus' clock was set back",
        "the same, by an answer that was late",
        "a newer one",
        "a newer one, after our clock was set back",
        "an older one, of a replica that lags",
        "one that is much older, of a replica that is cut off",
        "another, just after Prometheus' clock was set back",
        "another, a while after that",
        "at an unknown time",
    ],
)
def test_a_sample_is_taken_when_it_is_of_another_scrape(found: Sample, taken: bool) -> None:
    kept = {"a": (Claim(1, KEPT),), "b": (Claim(2, KEPT),)}
    found_next = updated(kept, {"a": (Claim(1, found),)}, max(NOW, found.time), EXPIRY)
    assert found_next == {"a": (Claim(1, found if taken else KEPT),), "b": (Claim(2, KEPT),)}


def test_the_first_sample_is_taken_whenever_it_was_scraped() -> None:
    claims = {"a": (Claim(1, KEPT),)}
    assert updated(None, claims, NOW, EXPIRY) == claims
    assert updated({"a": (Claim(1, Sample(90, NOW + 15)),)}, claims, NOW, EXPIRY) == claims


rounds = st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 10), st.floats(0, 100)), max_size=12)


@given(rounds, st.floats(-1e6, 1e6))
def test_values_change_with_scrapes_and_with_nothing_else(
    rounds: list[tuple[bool, bool, float, float]], ahead: float
) -> None:
    """Each round: whether the node is scraped, whether that is told, how late the answer is, and what it says."""
    times, expected, stamp, told = None, Sample(0, 0), 0.0, 0.0
    claims: Claims | None = None
    now = 1e7
    for is_scraped, is_told, late, value in rounds:
        now += 15
        evaluated = now + ahead + late
        if is_scraped or not stamp:
            stamp = evaluated - 1
        news = is_told and stamp > told
        told = stamp if is_told else told
        times = scraped(now, *([of(stamp, evaluated, node="a")] if is_told else []), before=times)
        claims = updated(claims, joined(of(value, evaluated, node="a"), times=times).claims, now, EXPIRY)
        kept = counting(claims["a"], now, EXPIRY)
        if news or not told:
            expected = kept
            assert expected.value == value
        assert kept == expected


@given(st.floats(-1e5, 1e5), st.floats(-1e5, 1e5))
def test_no_clock_that_is_set_freezes_a_node(ours: float, theirs: float) -> None:
    begun = 1e6
    kept: Claims = {"a": (Claim(identity({"node": "a"}), Sample(20, begun, begun)),)}
    for seconds in range(15, 105, 15):
        at, now = begun + theirs + seconds, begun + ours + seconds
        found = joined(of(seconds, at, node="a"), times=scraped(now, of(at - 1, at, node="a")))
        kept = updated(kept, found.claims, now, EXPIRY)
    assert counting(kept["a"], begun + ours + 90, EXPIRY).value > 20


def test_times_that_are_none_are_passed_over() -> None:
    times = Times(
        [None, of(math.nan, node="a"), of(math.inf, node="a"), of(NOW + 50, node="b")],
        NODES,
        NODE_LABELS,
        NOW,
    )
    found = joined(of(7, node="a"), of(8, node="b"), times=times)
    assert found.samples == {"a": Sample(7, NOW), "b": Sample(8, NOW, NOW)}


def test_a_node_object_gives_its_addresses_and_capacity() -> None:
    shape = msgspec.convert(
        {
            "metadata": {"name": "a", "labels": {}},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname"}],
                "capacity": {"cpu": "3500m", "memory": "1Ki", "pods": "110"},
            },
        },
        NodeShape,
    )
    assert shape.known == KnownNode("a", ("10.0.0.1",), Amount(3500, 1024))
    assert msgspec.convert({"metadata": {"name": "b"}}, NodeShape).known == KnownNode("b")


names = st.sampled_from(["a", "b", "c", "10.0.0.1:9100", "[2001:db8::1]:1", "nobody", "", ":", "[", "a:b:c"])
labels = st.dictionaries(st.sampled_from([*NODE_LABELS, "job"]), names | st.text(max_size=6), max_size=4)
one = st.none() | st.builds(Series, labels, st.floats(0, 1e10), st.floats() | st.floats(-10, 200))


@given(st.lists(one, max_size=12), st.lists(one, max_size=6))
def test_joins_are_sound_whatever_comes(answer: list[Series | None], scraped: list[Series | None]) -> None:
    times = Times(scraped, NODES, NODE_LABELS, NOW)
    found = join(answer, NODES, NODE_LABELS, times)
    assert found.samples.keys() <= NODES.nodes.keys()
    for sample in found.samples.values():
        assert math.isfinite(sample.value)
        assert sample.value >= 0
        assert 0 <= sample.time <= NOW
    counts = found.counts
    lost = counts.unknown + counts.duplicate + counts.malformed
    lost += counts.not_a_number + counts.infinite + counts.negative
    assert counts.series == len(answer) == counts.joined + lost
    assert counts.joined == len(found.samples)
    assert counts.joined + counts.missing == len(NODES.nodes)
    # Prometheus lists series in any order.
    assert join(reversed(answer), NODES, NODE_LABELS, times).samples == found.samples


@given(st.ip_addresses(), st.integers(1, 65535))
def test_an_address_is_found_with_and_without_its_port(address: object, port: int) -> None:
    directory = Directory([KnownNode("a", (str(address),))])
    text = str(address)
    with_port = f"[{text}]:{port}" if ":" in text else f"{text}:{port}"
    assert directory.find(text) == directory.find(with_port) == "a"
    assert host_of(with_port) == text
