"""Times that would defeat each other are refused, with what to write instead; those of the seed are made to fit."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from colocate.config.file import Underlay, build_document
from colocate.config.override import from_assignments
from colocate.errors import UserError
from colocate.model.values import Seconds
from colocate.scheduler.kube.seed import Asking, Seed, over_seed
from colocate.scheduler.settings import SCHEDULER, SchedulerConfig


def read(text: str) -> SchedulerConfig:
    return build_document(SCHEDULER, f"version: 1\n{text}".encode(), "scheduler.yaml", {}).config


@pytest.mark.parametrize(
    ("wrong", "sentence", "right"),
    [
        (
            "usage: {interval: 10m}",
            "samples expire after 180 s (load.staleness.after), before the next ones come (600 s); "
            "ask more often, or write load.staleness.after: 1800",
            "{usage: {interval: 10m}, load: {staleness: {after: 1800}}, version: 1}",
        ),
        (
            "usage: {average: 1h}",
            "the ledger forgets pods after 900 s, but samples show them only after 3600 s (usage.average or "
            "shownAfter); write at least 3900, or 0 for never",
            "{usage: {average: 1h}, load: {ledger: {expiry: 3900}}, version: 1}",
        ),
    ],
)
def test_times_that_defeat_each_other_are_refused(wrong: str, sentence: str, right: str) -> None:
    with pytest.raises(UserError) as refused:
        read(wrong)
    assert sentence in str(refused.value)
    build_document(SCHEDULER, right.encode(), "scheduler.yaml", {})


def test_never_defeats_nothing() -> None:
    read("usage: {interval: 10m, average: 1h}\nload: {staleness: {after: 0}, ledger: {expiry: 0}}")


def asking_every(seconds: float) -> Seed:
    return Seed((), {}, Asking("http://p:9090", 5.0, seconds), None, (), {}, ())


def with_seed(seed: Seed, text: str = "", *flags: str) -> SchedulerConfig:
    blob = f"version: 1\n{text}".encode()

    def read(said: Mapping[str, Any]) -> SchedulerConfig:
        under = Underlay(said, "--from seed.yaml")
        return build_document(SCHEDULER, blob, "scheduler.yaml", {}, from_assignments(flags), under).config

    return over_seed(seed, read)


def test_samples_that_the_seed_asks_for_seldom_outlive_the_next_round() -> None:
    config = with_seed(asking_every(600.0))
    assert config.usage.interval == Seconds(600)
    assert config.load.staleness.after == 1800
    assert with_seed(asking_every(30.0)).load.staleness.after == 180


def test_what_the_seed_says_counts_where_nothing_else_is_said() -> None:
    seed = msgspec.structs.replace(
        asking_every(30.0), policies={"a": "mem-real-usage", "b": "cpu-real-usage"}
    )
    text = "usage: {prometheus: {url: 'http://other:9090'}}\nload: {policies: {b: balanced}}"
    config = with_seed(seed, text, "usage.interval=7s")
    assert (config.usage.prometheus.url, config.usage.prometheus.timeout) == ("http://other:9090", Seconds(5))
    assert config.usage.interval == Seconds(7)
    assert config.load.policies == {"a": "mem-real-usage", "b": "balanced"}


def test_what_is_wrong_with_it_is_said_of_its_file() -> None:
    with pytest.raises(UserError, match=r"--from seed\.yaml: 0s is out of range"):
        with_seed(asking_every(0.0))


def test_samples_count_as_long_as_suits_the_interval_that_is_in_force() -> None:
    def after(*flags: str) -> float:
        return with_seed(asking_every(600.0), "", *flags).load.staleness.after

    assert after("usage.interval=15s") == 180
    assert after("usage.interval=300s") == 900
    assert after("load.staleness.after=700") == 700
