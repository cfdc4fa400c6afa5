"""Writes the KubeSchedulerConfiguration of a second, stock kube-scheduler that asks the extender. Pure.

Every line says why it is there. The extender's weight is computed from the plugins that score beside it: as much
as leaves the fewest hot nodes, or so much that a hot node loses whatever they say.
"""

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
import yaml
from msgspec import inspect

from colocate.cluster.secret import Secret
from colocate.config import words
from colocate.errors import UserError
from colocate.load import DEFAULT_PLUGINS, ExtenderWeight, ScorePlugin, advised_weight, least_weight
from colocate.model import go, values
from colocate.wire.extender_questions import without_nulls

T = TypeVar("T")

DEFAULT_NAME = "mem-real-usage-scheduler"
API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"
GPU_POINTS = 5
"""By default: the best GPU is worth more than what other plugins may say, unless two are nearly as good."""
_GPU_TIMEOUT = "10s"
_COLUMN = 44
_EVERY = "*"
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SCORING = frozenset(one.name for one in DEFAULT_PLUGINS)


class Plugin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plugin by its name; 0 is the weight of one that is given none."""

    name: str
    weight: int = 0


class PluginSet(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a profile says of one extension point."""

    enabled: tuple[Plugin, ...] = ()
    disabled: tuple[Plugin, ...] = ()


class KubeProfile(msgspec.Struct, frozen=True):
    """One name under which pods ask to be scheduled, and what else its profile holds."""

    name: str = DEFAULT_NAME
    plugins: Mapping[str, PluginSet] = {}
    """By extension point."""
    more: Mapping[str, Any] = {}
    """Further fields, left as they are."""

    @property
    def score_plugins(self) -> tuple[ScorePlugin, ...]:
        """Those of kube-scheduler's own that score in this profile."""
        weights = {one.name: one.weight for one in DEFAULT_PLUGINS}
        # `multiPoint` first; `score` overrides it.
        for point in ("multiPoint", "score"):
            said = self.plugins.get(point, PluginSet())
            off = {one.name for one in said.disabled}
            weights = {} if _EVERY in off else {name: weights[name] for name in weights if name not in off}
            for one in said.enabled:
                # Among those of all points most do not score: one that does is known, or has a weight.
                if point == "score" or one.weight or one.name in _SCORING:
                    weights[one.name] = one.weight or 1
        return tuple(ScorePlugin(name, heavy) for name, heavy in weights.items())


class TlsFiles(msgspec.Struct, frozen=True):
    """Files of kube-scheduler's own, for HTTPS."""

    authority: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""


class WantedConfiguration(msgspec.Struct, frozen=True):
    """The wanted configuration."""

    url: str = "http://127.0.0.1:8890"
    profiles: Sequence[KubeProfile] = (KubeProfile(),)
    filter: bool = False
    points: int | None = None
    """By how many points of 100 a node must be hotter than another to lose against it in any case; None for the
    weight that leaves the fewest hot nodes."""
    timeout: str = "1s"
    tls: TlsFiles = TlsFiles()
    leader_election: Mapping[str, Any] | None = None
    """As in a file; None for a lease of its own."""
    kubeconfig: str = ""
    more: Mapping[str, Any] = {}
    """Further fields of the configuration, left as they are."""
    extenders: Sequence[Mapping[str, Any]] = ()
    """Others, which are asked first."""
    loads: bool = True
    """Whether nodes are to be scored by what they use."""
    gpus: Sequence[str] = ()
    """Resources by which pods ask for GPUs that Colocate chooses; none where it chooses none."""
    gpu_points: int = GPU_POINTS
    """As `points`, among nodes with GPUs that fit."""


def extender_weight(wanted: WantedConfiguration) -> ExtenderWeight:
    """The weight that is enough in every profile: an extender has one for all of them."""
    points = wanted.points
    weights = [
        advised_weight(profile.score_plugins)
        if points is None
        else least_weight(points, profile.score_plugins)
        for profile in wanted.profiles
    ]
    return max(weights, key=lambda one: one.weight)


def lease_of(name: str) -> str:
    """The name of a lease for the scheduler of that name: objects have no upper case in theirs."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def render(wanted: WantedConfiguration) -> str:
    """The configuration as YAML with comments; a UserError where it cannot be had as wanted."""
    _check(wanted)
    return "\n".join(_lines(wanted)) + "\n"


def _check(wanted: WantedConfiguration) -> None:
    if not leads_somewhere(wanted.url):
        raise UserError(
            f"kube-scheduler cannot use the extender's address {without_login(wanted.url)!r}; write http:// or "
            f"https://, and HOST:PORT"
        )
    try:
        waits = go.seconds(wanted.timeout)
    except ValueError as error:
        raise UserError(f"the time for an answer: {error}") from None
    if waits <= 0:
        raise UserError(
            f"the time for an answer, {wanted.timeout}, must be more than 0; write it like 1s or 500ms"
        )
    if not wanted.loads and not wanted.gpus:
        raise UserError("the configuration would ask no extender; leave out --without-load, or give --gpus")
    names = [profile.name for profile in wanted.profiles]
    for name in names:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{name!r} is not a valid scheduler name for events; use letters, digits, '-', '_' and '.', at most "
                f"63 characters"
            )
        if names.count(name) > 1:
            raise UserError(f"several profiles have the scheduler name {name!r}; give each its own name")
    tls = wanted.tls
    if tls != TlsFiles() and not wanted.url.startswith("https://"):
        raise UserError(
            f"{without_login(wanted.url)} uses no certificates; write https://, or leave them out"
        )
    if bool(tls.certificate) != bool(tls.key):
        raise UserError("a certificate needs its key; give both files or neither")


def _lines(wanted: WantedConfiguration) -> Iterator[str]:
    yield "# A second, stock kube-scheduler that asks the Colocate extender where pods really have room."
    yield "# Start it with --config=THIS_FILE; pods choose it by spec.schedulerName."
    yield f"apiVersion: {API_VERSION}"
    yield f"kind: {KIND}"
    yield from _leader_election(wanted)
    if wanted.kubeconfig:
        yield "clientConnection:"
        yield _line(2, "kubeconfig", wanted.kubeconfig, "how it reaches the API server")
    elif "clientConnection" not in wanted.more:
        yield "# No clientConnection: in a pod, kube-scheduler uses the pod's service account."
    yield from _dumped(wanted.more, 0)
    yield "profiles:"
    for profile in wanted.profiles:
        yield _line(2, "- schedulerName", profile.name, "what pods say in spec.schedulerName")
        plugins = {"plugins": msgspec.to_builtins(profile.plugins)} if profile.plugins else {}
        yield from _dumped({**plugins, **profile.more}, 4)
    yield "# kube-scheduler asks these extenders for every profile above."
    yield "extenders:"
    for other in wanted.extenders:
        yield from _dumped([other], 2)
    if wanted.loads:
        yield from _extender(wanted)
    if wanted.gpus:
        yield from _gpu_extender(wanted)


def _leader_election(wanted: WantedConfiguration) -> Iterator[str]:
    yield "leaderElection:"
    if wanted.leader_election is not None:
        yield from _dumped(wanted.leader_election, 2)
        return
    yield _line(2, "leaderElect", True, "one of several replicas schedules, the others wait")
    yield _line(
        2,
        "resourceName",
        lease_of(wanted.profiles[0].name),
        "a lease of its own: the first kube-scheduler has 'kube-scheduler'",
    )
    yield _line(2, "resourceNamespace", "kube-system", "where the lease is")


def _extender(wanted: WantedConfiguration) -> Iterator[str]:
    heavy = extender_weight(wanted)
    yield _line(
        2, "- urlPrefix", wanted.url.rstrip("/"), "where 'colocate scheduler' listens (server.address)"
    )
    if has_login(wanted.url):
        yield "    # The password in the URL is the token of callers: keep this file secret."
    yield _line(4, "prioritizeVerb", "prioritize", "gives every remaining node a score")
    if wanted.filter:
        yield _line(4, "filterVerb", "filter", "removes nodes that are too hot; Colocate's own file must")
        yield f"{'':{_COLUMN}}  # enable it too, or all nodes pass: load: {{filter: {{enabled: true}}}}"
    else:
        yield "    # No filterVerb: a hot node gets a low score, and pods still run when every node is hot."
    first, *others = heavy.reasons if heavy.others else ("no other plugin scores, so any weight will do",)
    yield _line(4, "weight", heavy.weight, first)
    for reason in others:
        yield f"{'':{_COLUMN}}  # {reason}"
    yield _line(
        4, "nodeCacheCapable", True, "send names, not whole nodes: it is quicker, and with whole nodes"
    )
    yield f"{'':{_COLUMN}}  # a filter would make the resource plugins see every node as idle"
    yield _line(
        4, "httpTimeout", wanted.timeout, "an answer takes milliseconds; pods wait no longer than this"
    )
    yield _line(4, "ignorable", True, "kube-scheduler goes on without the extender while it is away")
    if wanted.url.startswith("https://"):
        yield from _https(wanted.tls)


def _gpu_extender(wanted: WantedConfiguration) -> Iterator[str]:
    weights = [least_weight(wanted.gpu_points, profile.score_plugins) for profile in wanted.profiles]
    heavy = max(weights, key=lambda one: one.weight)
    yield "  # For pods that ask for GPUs alone: which GPU of which node. 'act' of the scheduler must have gpus."
    yield _line(2, "- urlPrefix", f"{wanted.url.rstrip('/')}/gpu", "the same process, and its second half")
    if has_login(wanted.url):
        yield "    # The password in the URL is the token of callers: keep this file secret."
    yield _line(4, "filterVerb", "filter", "removes nodes without a GPU that fits")
    yield _line(4, "prioritizeVerb", "prioritize", "100 for the node with the best GPU, less for others")
    yield _line(4, "preemptVerb", "preempt", "keeps victims who would free no GPU that fits")
    yield _line(4, "bindVerb", "bind", "books the GPU, writes it into the pod, and binds the pod")
    first, *others = heavy.reasons if heavy.others else ("no other plugin scores, so any weight will do",)
    yield _line(4, "weight", heavy.weight, first)
    for reason in others:
        yield f"{'':{_COLUMN}}  # {reason}"
    yield "    managedResources:"
    for number, name in enumerate(wanted.gpus):
        why = "only pods that ask for one of these are asked about" if number == 0 else ""
        yield _line(6, "- name", name, why)
    yield _line(4, "nodeCacheCapable", True, "send names, not whole nodes")
    yield _line(4, "httpTimeout", _GPU_TIMEOUT, "a bind writes to the API server twice")
    yield _line(4, "ignorable", False, "only the extender knows which GPU: pods wait until it is back")
    if wanted.url.startswith("https://"):
        yield from _https(wanted.tls)


def _https(tls: TlsFiles) -> Iterator[str]:
    yield _line(4, "enableHTTPS", True, "")
    if not tls.authority:
        yield "    # No caFile: kube-scheduler accepts any certificate. Set caFile to check it."
    if tls == TlsFiles():
        return
    yield "    tlsConfig:"
    for name, value, why in (
        ("caFile", tls.authority, "the authority that signed the extender's certificate"),
        ("serverName", tls.server_name, "the name in that certificate, if it differs from urlPrefix"),
        (
            "certFile",
            tls.certificate,
            "kube-scheduler's own certificate for the extender (server.tls.clientAuthority there)",
        ),
        ("keyFile", tls.key, "the key of certFile"),
    ):
        if value:
            yield _line(6, name, value, why)


def _line(indent: int, name: str, value: str | int, why: str) -> str:
    # What JSON writes, YAML reads as the same; plain words need no quotes.
    shown = value if isinstance(value, str) and _is_plain(value) else json.dumps(value)
    text = f"{'':{indent}}{name}: {shown}"
    return f"{text:{_COLUMN}}  # {why}" if why else text


def _is_plain(value: str) -> bool:
    try:
        return bool(value) and yaml.safe_load(f"a: {value}") == {"a": value}
    except yaml.YAMLError:
        return False


def _dumped(tree: Mapping[str, Any] | Sequence[Any], indent: int) -> Iterator[str]:
    if tree:
        for line in yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=1000).splitlines():
            yield f"{'':{indent}}{line}"


def tree_of(text: str, where: str) -> dict[Any, Any]:
    """What is in a file, as Go reads it: a field that is null is not there."""
    try:
        tree = without_nulls(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # A date or a number that cannot be is a ValueError.
        raise UserError(f"{where}: this is not YAML ({' '.join(str(error).split())}); correct it") from None
    if not isinstance(tree, dict):
        raise UserError(f"{where}: this is not a {KIND}; give the file that kube-scheduler gets as --config")
    return tree


def typed(kind: type[T], tree: Any, where: str, path: str = "") -> T:
    """What is in a tree, that of a whole file or at a path in it; a UserError where it does not fit."""
    try:
        words.check(inspect.type_info(kind), tree, values.decode, path)
        return msgspec.convert(tree, kind)
    except words.Problem as problem:
        raise UserError(f"{where}: {problem}") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: {path and f'{path}: '}{error}; correct it") from None


def leads_somewhere(url: str) -> bool:
    """Whether it is an http or https address with a host, and without query, fragment or spaces."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and port != 0
        and not (parts.query or parts.fragment or any(letter.isspace() for letter in url))
    )


def without_login(url: str) -> str:
    """The address without user and password, for logs and errors."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def has_login(url: str) -> bool:
    """Whether it has a user or a password in it."""
    return "@" in urlsplit(url).netloc


def with_token(url: str, token: Secret) -> str:
    """The address with a token as its password: kube-scheduler can send a token in no other way."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"scheduler:{quote(token.reveal(), safe='')}@{parts.netloc}"))


def is_local(url: str) -> bool:
    """Whether its host is this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
