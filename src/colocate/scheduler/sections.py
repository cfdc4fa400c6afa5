"""What `colocate scheduler` can be told besides its server: what to observe, how to judge, how to act.

The sections of judging are the load room's own settings; here is only what a file must say otherwise.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from colocate.cluster.usage import PollSettings, Preset, PrometheusSettings, QuerySettings, Statistic, queries
from colocate.cluster.usage import Window as AskedWindow
from colocate.cluster.usage.presets import NODE_LABELS
from colocate.cluster.usage.prometheus import connection_to
from colocate.config.words import Problem
from colocate.errors import UserError
from colocate.load import (
    BalancedSettings,
    EstimateSettings,
    FilterSettings,
    HeatSettings,
    LedgerSettings,
    LoadAwareSettings,
    Mix,
    OvercommitmentSettings,
    OversellSettings,
    PackingSettings,
    RiskBalancingSettings,
    Staleness,
    mix,
)
from colocate.load import LoadSettings as LoadSettings
from colocate.model.values import Seconds, Section, Size
from colocate.scheduler.load_ranges import check_ranges

_RULES_OF_THE_STACK = 300.0
"""Seconds over which kube-prometheus-stack's rule for CPU averages."""

_MARGIN = 300.0
"""Seconds for a sample to come after its window is over, with room to spare."""


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


class PrometheusSection(Section, frozen=True):
    """Where Prometheus is, and how to log in. Files are read again when they change."""

    url: str = ""
    token_file: Path | None = None
    username: str = ""
    password_file: Path | None = None
    certificate_authority: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    server_name: str = ""
    insecure: bool = False
    proxy: str = ""
    timeout: Seconds = Seconds(10)
    longest_answer: Size = Size(8 << 20)

    def settings(self) -> PrometheusSettings:
        """The same for the edge."""
        return PrometheusSettings(**msgspec.structs.asdict(self))


class WindowSection(Section, frozen=True):
    """One more statistic to ask for, of CPU and of memory."""

    statistic: Statistic
    span: Seconds


class UsageSection(Section, frozen=True):
    """Where samples come from."""

    prometheus: PrometheusSection = PrometheusSection()
    metrics_api: bool = False
    """Fill in nodes that Prometheus says nothing of, or ask it alone where there is no Prometheus."""
    interval: Seconds = Seconds(15)
    preset: Preset = Preset.SEED
    average: Seconds = Seconds(300)
    """The window of a node's use. Recording rules have their own: say here what it is."""
    shown_after: Seconds | None = None
    """How long after its binding a pod is wholly in the samples; the window of the average unless stated."""
    windows: tuple[WindowSection, ...] | None = None
    """What the policies in use judge by, unless stated; see `windows`."""
    pods: bool | None = None
    """Ask for the use of every pod, so that nodes are judged by the pods that are there now, and new pods by what
    their owners' pods use. Unless stated, where `balanced` or taints are in use, and Prometheus is asked."""
    pods_interval: Seconds = Seconds(60)
    """From one question about pods to the next: of a large cluster the answer is long."""
    matchers: str = ""
    labels: tuple[str, ...] = NODE_LABELS
    queries: Mapping[str, str] = {}

    def asked(self) -> QuerySettings:
        return QuerySettings(
            preset=self.preset,
            average_seconds=self.average,
            windows=tuple(AskedWindow(one.statistic, float(one.span)) for one in self.windows or ()),
            pods=bool(self.pods),
            matchers=self.matchers,
            labels=self.labels,
            queries=self.queries,
        )

    def poll(self, stale_after: float) -> PollSettings:
        """How to ask; a sample that no longer counts, after so many seconds, gives way to any. 0 is never."""
        expiry = stale_after or PollSettings().expiry
        return PollSettings(
            interval=self.interval,
            pods_interval=self.pods_interval,
            first_pause=min(1.0, self.interval),
            expiry=expiry,
        )

    @property
    def window(self) -> float:
        """Seconds by which a sample must be younger than a binding to show the whole pod."""
        if self.shown_after is not None:
            return float(self.shown_after)
        if self.preset is Preset.KUBE_PROMETHEUS_STACK:
            return max(float(self.average), _RULES_OF_THE_STACK)
        return float(self.average) or LedgerSettings().window


class Load(Section, frozen=True):
    """How nodes are judged; docs/load-policies.md explains each section."""

    policy: Policies = Policies("balanced")
    policies: Mapping[str, str] = {}
    """By the scheduler name of pods, where some are judged otherwise."""
    staleness: Staleness = Staleness()
    ledger: LedgerSettings = LedgerSettings()
    estimate: EstimateSettings = EstimateSettings()
    filter: FilterSettings = FilterSettings()
    balanced: BalancedSettings = BalancedSettings()
    packing: PackingSettings = PackingSettings()
    risk_balancing: RiskBalancingSettings = RiskBalancingSettings()
    overcommitment: OvercommitmentSettings = OvercommitmentSettings()
    load_aware: LoadAwareSettings = LoadAwareSettings()
    oversell: OversellSettings = OversellSettings()

    def settings(self, window: float) -> LoadSettings:
        """The same for the load room, with the window that the samples have."""
        shared = {
            name: getattr(self, name)
            for name in LoadSettings.__struct_fields__
            if name not in ("policy", "policies", "ledger")
        }
        policies = {name: mix(text) for name, text in self.policies.items()}
        ledger = msgspec.structs.replace(self.ledger, window=window)
        return LoadSettings(policy=self.policy.mix, policies=policies, ledger=ledger, **shared)


class TaintsOnStop(StrEnum):
    """What becomes of the taints when the scheduler stops."""

    REMOVE = "remove"
    """Unless another replica goes on from them."""
    KEEP = "keep"
    """For the next start to go on from."""


class Lease(Section, frozen=True):
    """By which one of several replicas is the writer."""

    namespace: str = "kube-system"
    name: str = "colocate-load-taints"
    duration: Seconds = Seconds(15)
    """A writer that has not renewed it for so long is taken for gone."""


class Taints(Section, frozen=True):
    """Heat as taints, for schedulers that ask no extender."""

    heat: HeatSettings = HeatSettings()
    per_minute: int = 60
    """Writes to nodes, at most."""
    period: Seconds = Seconds(5)
    """From one look at the heat to the next."""
    on_stop: TaintsOnStop = TaintsOnStop.REMOVE
    lease: Lease = Lease()


class Decisions(Section, frozen=True):
    """What is kept of each answer."""

    keep: int = 10_000
    """In memory, the latest of so many pods."""
    nodes: int = 5
    """Of each answer, told unasked and written to the file: the best, and its runners-up."""
    memory: Size = Size(128 << 20)
    """For the scores of all other candidates, and what they were judged by; the oldest make room."""
    file: Path | None = None
    """JSON lines, where they are wanted on disk, too."""
    file_size: Size = Size(64 << 20)
    """At which the file is put aside, with a number after its name."""
    files: int = 4
    """Kept in all."""


def check_usage(usage: UsageSection, asked: QuerySettings) -> None:
    try:
        queries(asked)
        if usage.prometheus.url:
            connection_to(usage.prometheus.settings())
    except UserError as error:
        raise Problem("usage", str(error)) from None
    for name, seconds in (
        ("interval", usage.interval),
        ("podsInterval", usage.pods_interval),
        ("prometheus.timeout", usage.prometheus.timeout),
    ):
        if not 0 < seconds <= 3600:
            raise Problem(
                f"usage.{name}", f"{seconds:g}s is out of range; choose more than 0s and at most 1h"
            )
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
    check_ranges(load.settings(load.ledger.window))


def check_times(usage: UsageSection, load: Load) -> None:
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


def check_taints(taints: Taints) -> None:
    if taints.per_minute < 1:
        raise Problem("taints.perMinute", f"{taints.per_minute} would allow no write; choose at least 1")
    if not 0 < taints.period <= 600:
        raise Problem(
            "taints.period", f"{taints.period:g}s is out of range; choose more than 0s, at most 10m"
        )
    if not 1 <= taints.lease.duration <= 600:
        raise Problem(
            "taints.lease.duration", f"{taints.lease.duration:g}s is out of range; choose 1s to 10m"
        )


def check_decisions(decisions: Decisions) -> None:
    for name, value in (("keep", decisions.keep), ("nodes", decisions.nodes), ("files", decisions.files)):
        if value < 1:
            raise Problem(f"decisions.{name}", f"{value} would keep nothing; choose at least 1")
    if decisions.file_size < 4096:
        raise Problem(
            "decisions.fileSize",
            f"{int(decisions.file_size)} bytes are too few for a decision; choose at least 4Ki",
        )
