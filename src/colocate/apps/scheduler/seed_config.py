"""Reads the configuration of a kube-scheduler with the plugins MemRealUsage and CpuRealUsage built in. Pure.

Those need no kube-scheduler of their own any more: what their arguments say belongs to Colocate's settings, all
else to a stock kube-scheduler. What neither takes is named.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from colocate.apps.scheduler.addresses import leads_somewhere, without_login
from colocate.apps.scheduler.kube_config import API_VERSION, KIND, Profile, Wanted, lease_of
from colocate.errors import UserError

POLICIES = {"MemRealUsage": "mem-real-usage", "CpuRealUsage": "cpu-real-usage"}
"""Our policies, by the plugins whose scores they give."""
_GROUP = API_VERSION.partition("/")[0]
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

    profiles: tuple[Profile, ...]
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


def read(text: str, where: str, *, others_score: bool = False) -> Seed:
    """What a file says; a UserError where it is no such file.

    With `others_score` kube-scheduler's own score plugins count where the file has switched all of them off.
    """
    tree = _tree(text, where)
    given = tree.pop("profiles", None) or []
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise UserError(
            f"{where}: profiles is not a list of mappings; write each profile as '- schedulerName: …'"
        )
    reading = _Reading(where, others_score)
    profiles = tuple(reading.profile(one, f"profiles[{index}]") for index, one in enumerate(given))
    if not reading.policies:
        raise UserError(
            f"{where}: no profile enables {' or '.join(POLICIES)}; there is nothing of it to take over"
        )
    if not reading.prometheus.url:
        reading.doubts.append(
            "no pluginConfig has a prometheusApiAddr; say where Prometheus is in Colocate's own settings"
        )
    return Seed(
        profiles,
        reading.policies,
        reading.prometheus,
        reading.leader_election(tree.pop("leaderElection", None), profiles),
        tuple(tree.pop("extenders", None) or ()),
        tree,
        tuple(reading.doubts),
    )


def taken_over(seed: Seed, wanted: Wanted) -> Wanted:
    """`wanted`, with all that the file says to kube-scheduler."""
    more = dict(seed.more)
    if wanted.kubeconfig:
        more.pop("clientConnection", None)
    return msgspec.structs.replace(
        wanted,
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
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{where}: it is not YAML ({' '.join(str(error).split())}); mend it there") from None
    if not isinstance(tree, dict):
        raise UserError(
            f"{where}: it holds no {KIND}; name the file that kube-scheduler is given as --config"
        )
    version, kind = str(tree.pop("apiVersion", None) or ""), tree.pop("kind", None)
    if kind != KIND or version.partition("/")[0] != _GROUP:
        missing = " and ".join(name for name, said in (("apiVersion", version), ("kind", kind)) if not said)
        found = f"a {kind or 'mapping'} {f'without {missing}' if missing else f'of {version}'}"
        raise UserError(f"{where}: it holds {found}; a {KIND} of {API_VERSION} is needed")
    return tree


class _Reading:
    def __init__(self, where: str, others_score: bool) -> None:
        self._where = where
        self._others_score = others_score
        self.policies: dict[str, str] = {}
        self.prometheus = Asking()
        self.doubts: list[str] = []

    def profile(self, given: dict[str, Any], path: str) -> Profile:
        given = dict(given)
        name = given.pop("schedulerName", None) or _DEFAULT_NAME
        plugins, enabled = self._plugins(given.pop("plugins", None) or {}, path)
        if enabled:
            self.policies[name] = _mix(enabled)
        kept = list(self._configured(given.pop("pluginConfig", None) or (), path))
        if kept:
            given["pluginConfig"] = kept
        return Profile(name, plugins, given)

    def leader_election(
        self, given: dict[str, Any] | None, profiles: Sequence[Profile]
    ) -> Mapping[str, Any] | None:
        """With a lease of its own, unless it is the cluster's first scheduler: on one lease only one schedules."""
        if not given or given.get("leaderElect") is False or given.get("resourceName", _FIRST) != _FIRST:
            return given
        if any(profile.name == _DEFAULT_NAME for profile in profiles):
            return given
        lease = lease_of(profiles[0].name)
        self.doubts.append(
            f"leaderElection would share the lease {_FIRST!r} with the cluster's first scheduler, and only one of "
            f"them would schedule; resourceName is {lease!r} now, and its role must allow that lease"
        )
        return {**given, "resourceName": lease}

    def _plugins(self, given: Mapping[str, Any], path: str) -> tuple[dict[str, Any], dict[str, int]]:
        """What is left for a stock kube-scheduler, and the weights of the plugins that it does not have."""
        left: dict[str, Any] = {}
        ours: dict[str, int] = {}
        for point, said in given.items():
            sets = {}
            for kind in ("enabled", "disabled"):
                listed = (said or {}).get(kind) or []
                if kind == "enabled" and point in _POINTS:
                    ours |= {
                        one["name"]: one.get("weight") or 1 for one in listed if one.get("name") in POLICIES
                    }
                others = [one for one in listed if one.get("name") not in POLICIES]
                if others:
                    sets[kind] = others
            if sets:
                left[point] = sets
        if left.get("score") == {"disabled": [{"name": "*"}]}:
            if self._others_score:
                del left["score"]
            else:
                self.doubts.append(
                    f"{path}.plugins.score switches kube-scheduler's own score plugins off: affinity, spreading and "
                    f"taints count for nothing; 'colocate scheduler kube-config --with-score-plugins' has them back, "
                    f"and the weight to match"
                )
        return left, ours

    def _configured(self, given: Any, path: str) -> Iterator[Any]:
        """The plugins' arguments that are for a stock kube-scheduler; the others are taken."""
        for index, one in enumerate(given):
            if not isinstance(one, dict) or one.get("name") not in POLICIES:
                yield one
                continue
            here = f"{path}.pluginConfig[{index}].args"
            args = one.get("args") or {}
            self.doubts += [
                f"{here}.{name}: {one['name']} has no such argument, and it is left out"
                for name in args
                if name not in (*_ARGUMENTS, "apiVersion", "kind")
            ]
            self._take(args, here)

    def _take(self, args: Mapping[str, Any], here: str) -> None:
        url, *seconds = (args.get(name) for name in _ARGUMENTS)
        if url is not None and not leads_somewhere(str(url)):
            # It may hold a password, and is not shown.
            raise UserError(
                f"{self._where}: {here}.prometheusApiAddr is no http or https address; correct it"
            )
        if url is not None and without_login(str(url)) != str(url):
            self.doubts.append(
                f"{here}.prometheusApiAddr holds a login; say it as usage.prometheus.username and passwordFile"
            )
        for name, value in zip(_ARGUMENTS[1:], seconds, strict=True):
            if value is not None and (
                not isinstance(value, int | float) or isinstance(value, bool) or value <= 0
            ):
                raise UserError(
                    f"{self._where}: {here}.{name}: {value!r} is no number of seconds; correct it"
                )
        before = self.prometheus
        asking = Asking(
            before.url if url is None else str(url).rstrip("/"),
            before.timeout if seconds[0] is None else float(seconds[0]),
            before.interval if seconds[1] is None else float(seconds[1]),
        )
        if before.url and asking != before:
            self.doubts.append(
                f"{here} asks Prometheus otherwise than the profile before it; the last one counts for all"
            )
        self.prometheus = asking


def _mix(weights: Mapping[str, int]) -> str:
    if len(weights) == 1:
        return POLICIES[next(iter(weights))]
    return ",".join(f"{POLICIES[name]}={weight}" for name, weight in weights.items())
