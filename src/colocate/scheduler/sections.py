"""The sections of the scheduler's configuration on judging, taints and the record of decisions, and their checks.

`load` and `taints.heat` are settings of `colocate.load`, `usage` is `colocate.cluster.usage.UsageSettings`: what is
read from the file is what they work with. Each field states its range.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from colocate.cluster.usage import UsageSettings, queries
from colocate.cluster.usage.prometheus import connection_to
from colocate.config.words import Problem
from colocate.errors import UserError
from colocate.load import HeatSettings, JudgingSettings, LedgerSettings, LoadSettings, Mix, mix
from colocate.model.load import Aggregation
from colocate.model.ranges import Range, out_of_range
from colocate.model.values import Seconds, Section, Size

_MARGIN = 300.0
"""Seconds that a ledger should keep pods beyond the window of the samples, for samples that are late."""


class Policies(str):
    """A policy, or a mix of them: 'balanced', 'balanced=3,oversell=1'."""

    __slots__ = ()

    @property
    def mix(self) -> Mix:
        return mix(self)


def to_policies(value: object) -> Policies:
    """Read a mix; ValueError says how one is written."""
    if not isinstance(value, str):
        raise ValueError("a mix of policies; write it like balanced, or balanced=3,oversell=1")
    try:
        mix(value)
    except UserError as error:
        raise ValueError(f"a mix of policies: {error}") from None
    return Policies(value)


class Load(JudgingSettings, frozen=True):
    """How nodes are judged; docs/load-policies.md explains each section."""

    policy: Policies = Policies("balanced")
    policies: Mapping[str, str] = {}
    """By the scheduler name of pods, where some are judged by other policies."""

    def settings(self, window: float) -> LoadSettings:
        """The settings of decisions, with the window that the samples have."""
        judging = {name: getattr(self, name) for name in JudgingSettings.__struct_fields__}
        judging["ledger"] = msgspec.structs.replace(self.ledger, window=window)
        policies = {name: mix(text) for name, text in self.policies.items()}
        return LoadSettings(policy=self.policy.mix, policies=policies, **judging)


class TaintsOnStop(StrEnum):
    """What becomes of the taints when the scheduler stops."""

    REMOVE = "remove"
    """Unless another replica goes on from them."""
    KEEP = "keep"
    """For the next start to go on from."""


class Lease(Section, frozen=True):
    """The Lease that makes one of several replicas the writer."""

    namespace: str = "kube-system"
    name: str = "colocate-load-taints"
    duration: Annotated[Seconds, Range(1, 600, refusal="{:g}s is out of range; choose 1s to 10m")] = Seconds(
        15
    )
    """A writer that has not renewed it for so long counts as gone."""


class Taints(Section, frozen=True):
    """Heat as taints, for schedulers that ask no extender."""

    heat: HeatSettings = HeatSettings()
    per_minute: Annotated[int, Range(1, refusal="{} would allow no write; choose at least 1")] = 60
    """The most writes to nodes a minute."""
    period: Annotated[
        Seconds,
        Range(
            0,
            600,
            more_than_least=True,
            refusal="{:g}s is out of range; choose more than 0s, at most 10m",
        ),
    ] = Seconds(5)
    """From one look at the heat to the next."""
    on_stop: TaintsOnStop = TaintsOnStop.REMOVE
    lease: Lease = Lease()


_KEPT = Range(1, refusal="{} would keep nothing; choose at least 1")


class Decisions(Section, frozen=True):
    """What is kept of each answer."""

    keep: Annotated[int, _KEPT] = 10_000
    """The number of pods whose last decision is kept in memory."""
    nodes: Annotated[int, _KEPT] = 5
    """The number of best nodes that an explanation names unless asked for more, and that the file keeps."""
    memory: Size = Size(128 << 20)
    """For the scores of all other candidates, and for what they were judged by; the oldest are dropped first."""
    file: Path | None = None
    """JSON lines, to keep decisions on disk, too."""
    file_size: Annotated[
        Size, Range(4096, refusal="{:d} bytes are too few for a decision; choose at least 4Ki")
    ] = Size(64 << 20)
    """At this size the file is put aside, with a number after its name."""
    files: Annotated[int, _KEPT] = 4
    """The number of files that are kept."""


def check_ranges(section: msgspec.Struct, path: str) -> None:
    """Raise a Problem for the first number of a section that is out of its range."""
    if found := out_of_range(section, path):
        raise Problem(*found)


def check_usage(usage: UsageSettings, asked: UsageSettings) -> None:
    """`asked` are the settings with windows and pods decided."""
    try:
        queries(asked)
        if usage.prometheus.url:
            connection_to(usage.prometheus)
    except UserError as error:
        raise Problem("usage", str(error)) from None
    check_ranges(usage, "usage")
    if not 0 <= usage.window <= 86400:
        raise Problem("usage.average", f"{usage.window:g}s is out of range; choose 0s to 24h")


def check_load(load: Load) -> None:
    for name, policy in load.policies.items():
        try:
            mix(policy)
        except UserError as error:
            raise Problem(f"load.policies.{name}", str(error)) from None
    if load.ledger.window != LedgerSettings().window:
        raise Problem(
            "load.ledger.window",
            "this is not set here; set usage.shownAfter to say how long samples lag behind",
        )
    check_judging(load)


def check_judging(load: JudgingSettings) -> None:
    """Raise a Problem for settings by which no node can be judged; snapshots and recordings hold them, too."""
    check_ranges(load, "load")
    bounds, needs = load.filter.thresholds, f"add aggregation: one of {', '.join(Aggregation)}"
    if bounds.aggregated is not None and bounds.aggregation is None:
        raise Problem("load.filter.thresholds.aggregated", f"this needs an aggregation; {needs}")
    if load.balanced.window and load.balanced.aggregation is None:
        raise Problem("load.balanced.window", f"this needs an aggregation; {needs}")
    aware = load.load_aware
    if not (aware.cpu_weight or aware.memory_weight or aware.dominant_weight):
        raise Problem("load.loadAware", "all weights are 0, so every node would get 0; raise one")


def check_times(usage: UsageSettings, load: Load) -> None:
    """Raise a Problem where samples, or pods in the ledger, would expire before the next ones can come."""
    after, expiry = load.staleness.after, load.ledger.expiry
    if after and usage.pods_interval >= after and usage.pods is not False:
        raise Problem(
            "usage.podsInterval",
            f"samples expire after {after:g} s (load.staleness.after), before the next ones of pods come "
            f"({usage.pods_interval:g} s); ask more often",
        )
    if after and usage.interval >= after:
        raise Problem(
            "usage.interval",
            f"samples expire after {after:g} s (load.staleness.after), before the next ones come ({usage.interval:g} "
            f"s); ask more often, or write load.staleness.after: {3 * usage.interval:g}",
        )
    if expiry and usage.window > expiry:
        raise Problem(
            "load.ledger.expiry",
            f"the ledger forgets pods after {expiry:g} s, but samples show them only after {usage.window:g} s "
            f"(usage.average or shownAfter); write at least {usage.window + _MARGIN:g}, or 0 for never",
        )
