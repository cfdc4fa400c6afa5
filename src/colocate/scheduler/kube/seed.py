"""Reads the configuration of a kube-scheduler with the plugins MemRealUsage and CpuRealUsage built in. Pure.

Those need no kube-scheduler of their own any more: what their arguments say belongs to Colocate's settings, all
else to a stock kube-scheduler. What neither takes is named.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from colocate.errors import UserError
from colocate.load import DEFAULT_POINTS, Staleness
from colocate.scheduler.kube.configuration import (
    API_VERSION,
    KIND,
    KubeProfile,
    Plugin,
    PluginSet,
    WantedConfiguration,
    leads_somewhere,
    lease_of,
    tree_of,
    typed,
    without_login,
)
from colocate.scheduler.kube.extender import KubeExtender
from colocate.scheduler.settings import SchedulerConfig

POLICIES = {"MemRealUsage": "mem-real-usage", "CpuRealUsage": "cpu-real-usage"}
"""Our policies, by the plugins whose scores they give."""
_GROUP = API_VERSION.partition("/")[0]
_OF_PROFILES = ("schedulerName", "plugins", "pluginConfig")
"""What is read of a profile."""
_ARGUMENTS = ("prometheusApiAddr", "queryMetricTimeSeconds", "queryMetricIntervalSeconds")
_DEFAULT_NAME = "default-scheduler"
_FIRST = "kube-scheduler"
"""The lease of a kube-scheduler that is told no other."""
_POINTS = ("score", "multiPoint")


class Asking(msgspec.Struct, frozen=True):
    """How Prometheus is asked: pluginConfig's prometheusApiAddr, queryMetricTimeSeconds and …IntervalSeconds."""

    url: str = ""
    timeout: float = 10.0
    interval: float = 10.0


class Seed(msgspec.Struct, frozen=True):
    """What such a configuration says."""

    profiles: tuple[KubeProfile, ...]
    """Without the plugins that a stock kube-scheduler does not have."""
    policies: Mapping[str, str]
    """By scheduler name, a mix of policies: `mem-real-usage`, or `mem-real-usage=2,cpu-real-usage=1`."""
    prometheus: Asking
    leader_election: Mapping[str, Any] | None
    extenders: tuple[Mapping[str, Any], ...]
    more: Mapping[str, Any]
    """Further fields for kube-scheduler."""
    doubts: tuple[str, ...]
    """A sentence for everything that is not what it seems."""


class _LeaderElection(msgspec.Struct, frozen=True, rename="camel"):
    leader_elect: bool = True
    resource_name: str = _FIRST


class _Args(msgspec.Struct, frozen=True, rename="camel"):
    """Of MemRealUsage or CpuRealUsage; None where the one before counts."""

    prometheus_api_addr: str | None = None
    query_metric_time_seconds: float | None = None
    query_metric_interval_seconds: float | None = None


class _PluginConfig(msgspec.Struct, frozen=True):
    """Its arguments may be anything, where they are not for us."""

    name: str


class _Profile(msgspec.Struct, frozen=True, rename="camel"):
    scheduler_name: str = _DEFAULT_NAME
    plugins: dict[str, PluginSet] = {}
    plugin_config: tuple[_PluginConfig, ...] = ()


class _File(msgspec.Struct, frozen=True, rename="camel"):
    """What is looked at of a file; what else is in it is left as it is."""

    profiles: tuple[_Profile, ...] = ()
    leader_election: _LeaderElection | None = None
    extenders: tuple[KubeExtender, ...] = ()


def read(text: str, where: str, *, others_score: bool = False) -> Seed:
    """What a file says; a UserError where it is no such file.

    With `others_score` kube-scheduler's own score plugins count where the file has switched all of them off.
    """
    tree = _tree(text, where)
    file = typed(_File, tree, where)
    reading = _Reading(where, others_score)
    profiles = tuple(
        reading.profile(one, given, f"profiles[{index}]")
        for index, (one, given) in enumerate(zip(file.profiles, tree.pop("profiles", ()), strict=True))
    )
    if not reading.policies:
        raise UserError(f"{where}: no profile enables {' or '.join(POLICIES)}; there is nothing to take over")
    if not reading.prometheus.url:
        reading.doubts.append(
            "no pluginConfig has a prometheusApiAddr; set usage.prometheus.url in Colocate's own settings"
        )
    return Seed(
        profiles,
        reading.policies,
        reading.prometheus,
        reading.leader_election(file.leader_election, tree.pop("leaderElection", None), profiles),
        tuple(tree.pop("extenders", ())),
        tree,
        tuple(reading.doubts),
    )


def taken_over(seed: Seed, wanted: WantedConfiguration) -> WantedConfiguration:
    """`wanted`, with all that the file says to kube-scheduler."""
    more = dict(seed.more)
    if wanted.kubeconfig:
        more.pop("clientConnection", None)
    return msgspec.structs.replace(
        wanted,
        # Its policies decided alone: a hot node goes on to lose.
        points=DEFAULT_POINTS if wanted.points is None else wanted.points,
        profiles=seed.profiles,
        leader_election=seed.leader_election,
        extenders=seed.extenders,
        more=more,
    )


def for_our_settings(seed: Seed) -> Iterator[str]:
    """What the file says to Colocate, a line each."""
    asked = seed.prometheus
    yield "For the configuration of 'colocate scheduler':"
    where = without_login(asked.url) or "(unknown)"
    yield f"  Prometheus {where}, asked every {asked.interval:g} s, for at most {asked.timeout:g} s"
    for name, mix in seed.policies.items():
        yield f"  policy {mix} for pods of {name}"


def _tree(text: str, where: str) -> dict[str, Any]:
    tree = tree_of(text, where)
    version, kind = str(tree.pop("apiVersion", None) or ""), tree.pop("kind", None)
    if kind != KIND or version.partition("/")[0] != _GROUP:
        missing = " and ".join(name for name, said in (("apiVersion", version), ("kind", kind)) if not said)
        found = f"a {kind or 'mapping'} {f'without {missing}' if missing else f'of {version}'}"
        raise UserError(f"{where}: this is {found}; give a {KIND} of {API_VERSION}")
    return tree


class _Reading:
    def __init__(self, where: str, others_score: bool) -> None:
        self._where = where
        self._others_score = others_score
        self.policies: dict[str, str] = {}
        self.prometheus = Asking()
        self.doubts: list[str] = []

    def profile(self, read: _Profile, given: dict[str, Any], path: str) -> KubeProfile:
        """`given` is the same profile as the file has it."""
        name = read.scheduler_name or _DEFAULT_NAME
        plugins, enabled = self._plugins(read.plugins, path)
        if enabled:
            self.policies[name] = _mix(enabled)
        more = {field: value for field, value in given.items() if field not in _OF_PROFILES}
        kept = list(self._configured(read.plugin_config, given.get("pluginConfig", ()), path))
        if kept:
            more["pluginConfig"] = kept
        return KubeProfile(name, plugins, more)

    def leader_election(
        self, read: _LeaderElection | None, given: Mapping[str, Any] | None, profiles: Sequence[KubeProfile]
    ) -> Mapping[str, Any] | None:
        """With a lease of its own, unless it is the cluster's first scheduler: on one lease only one schedules."""
        if not given or read is None or not read.leader_elect or read.resource_name != _FIRST:
            return given
        if any(profile.name == _DEFAULT_NAME for profile in profiles):
            return given
        lease = lease_of(profiles[0].name)
        self.doubts.append(
            f"leaderElection would share the lease {_FIRST!r} with the cluster's first scheduler, and only one of "
            f"them would schedule; resourceName is now {lease!r}, so its role must allow that lease"
        )
        return {**given, "resourceName": lease}

    def _plugins(
        self, given: Mapping[str, PluginSet], path: str
    ) -> tuple[dict[str, PluginSet], dict[str, int]]:
        """What is left for a stock kube-scheduler, and the weights of the plugins that it does not have."""
        left: dict[str, PluginSet] = {}
        ours: dict[str, int] = {}
        for point, said in given.items():
            if point in _POINTS:
                ours |= {one.name: one.weight or 1 for one in said.enabled if one.name in POLICIES}
            others = PluginSet(_not_ours(said.enabled), _not_ours(said.disabled))
            if others != PluginSet():
                left[point] = others
        if left.get("score") == PluginSet(disabled=(Plugin("*"),)):
            if self._others_score:
                del left["score"]
            else:
                self.doubts.append(
                    f"{path}.plugins.score switches kube-scheduler's own score plugins off: affinity, spreading and "
                    f"taints no longer count; 'colocate scheduler kube-config --with-score-plugins' brings them "
                    f"back with the right weight"
                )
        return left, ours

    def _configured(
        self, read: Sequence[_PluginConfig], given: Sequence[Mapping[str, Any]], path: str
    ) -> Iterator[Mapping[str, Any]]:
        """The plugins' arguments that are for a stock kube-scheduler; the others are taken."""
        for index, (one, whole) in enumerate(zip(read, given, strict=True)):
            if one.name not in POLICIES:
                yield whole
                continue
            here = f"{path}.pluginConfig[{index}].args"
            said = whole.get("args", {})
            args = typed(_Args, said, self._where, here)
            self.doubts += [
                f"{here}.{name}: {one.name} has no such argument, so it is left out"
                for name in said
                if name not in (*_ARGUMENTS, "apiVersion", "kind")
            ]
            self._take(args, here)

    def _take(self, args: _Args, here: str) -> None:
        url = args.prometheus_api_addr
        if url is not None and not leads_somewhere(url):
            # It may hold a password, and is not shown.
            raise UserError(
                f"{self._where}: {here}.prometheusApiAddr is not an http or https address; correct it"
            )
        if url is not None and without_login(url) != url:
            self.doubts.append(
                f"{here}.prometheusApiAddr has a login; use usage.prometheus.username and passwordFile instead"
            )
        timeout, interval = args.query_metric_time_seconds, args.query_metric_interval_seconds
        for name, value in zip(_ARGUMENTS[1:], (timeout, interval), strict=True):
            if value is not None and not 0 < value < math.inf:
                raise UserError(
                    f"{self._where}: {here}.{name}: {value:g} is not a number of seconds above 0; correct it"
                )
        before = self.prometheus
        asking = Asking(
            before.url if url is None else url.rstrip("/"),
            before.timeout if timeout is None else timeout,
            before.interval if interval is None else interval,
        )
        if before.url and asking != before:
            self.doubts.append(
                f"{here} differs from the profile before it; the last profile sets Prometheus for all"
            )
        self.prometheus = asking


def _not_ours(plugins: Sequence[Plugin]) -> tuple[Plugin, ...]:
    return tuple(one for one in plugins if one.name not in POLICIES)


def _mix(weights: Mapping[str, int]) -> str:
    if len(weights) == 1:
        return POLICIES[next(iter(weights))]
    return ",".join(f"{POLICIES[name]}={weight}" for name, weight in weights.items())


_ROUNDS = 3
"""For so many rounds a sample counts at least: the seed's never expired, however seldom it asked."""


def over_seed(seed: Seed, read: Callable[[Mapping[str, Any]], SchedulerConfig]) -> SchedulerConfig:
    """What is read over what the seed says, with samples that count as long as suits the interval in force."""
    config = read(_said_by(seed, seed.prometheus.interval))
    if config.usage.interval == seed.prometheus.interval:
        return config
    return read(_said_by(seed, config.usage.interval))


def _said_by(seed: Seed, interval: float) -> dict[str, Any]:
    """As a configuration would say it: where Prometheus is, how it is asked, what pods of which scheduler are judged
    by; how long samples count that are asked for every `interval` seconds."""
    load: dict[str, Any] = {"policies": dict(seed.policies)}
    asked = seed.prometheus
    if not asked.url:
        return {"load": load}
    if interval >= Staleness().after:
        # Samples asked for this seldom would expire before the next ones come.
        load["staleness"] = {"after": _ROUNDS * interval}
    prometheus = {"url": asked.url, "timeout": f"{asked.timeout}s"}
    return {"usage": {"prometheus": prometheus, "interval": f"{asked.interval}s"}, "load": load}
