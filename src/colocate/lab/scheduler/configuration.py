"""Reads the scheduler's settings from a KubeSchedulerConfiguration. Pure.

Settings that this stand-in does not support are listed in `ignored`, so that users do not rely on them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from colocate.errors import UserError
from colocate.lab.scheduler.queue import FIRST_BACKOFF, LONGEST_BACKOFF
from colocate.model import go

DEFAULT_NAME = "default-scheduler"
DEFAULT_TIMEOUT = 5.0
KIND = "KubeSchedulerConfiguration"
_GROUP = "kubescheduler.config.k8s.io/"


class _Settings(msgspec.Struct, frozen=True, rename="camel"):
    """Field names are kube-scheduler's, in snake case."""


class ExtenderTls(_Settings, frozen=True):
    """TLS settings of an extender: its authority and our certificate. The `data` fields hold PEM in base64."""

    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: str = ""
    key_data: str = ""
    ca_data: str = ""


class ManagedResource(_Settings, frozen=True):
    """A resource that an extender manages."""

    name: str
    ignored_by_scheduler: bool = False
    """Whether the scheduler leaves counting it to the extender."""


class ExtenderSettings(_Settings, frozen=True):
    """One HTTP extender; an empty verb is not called."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    weight: int = 0
    enable_https: bool = msgspec.field(name="enableHTTPS", default=False)
    tls: ExtenderTls = msgspec.field(name="tlsConfig", default=ExtenderTls())
    http_timeout: float = msgspec.field(name="httpTimeout", default=DEFAULT_TIMEOUT)
    """Seconds for each call."""
    node_cache_capable: bool = False
    """Whether it is sent the names of nodes rather than whole nodes."""
    managed_resources: tuple[ManagedResource, ...] = ()
    """The extender is called only for pods that request one of these; empty means all pods."""
    ignorable: bool = False
    """Whether pods are scheduled without it if it fails."""


class Profile(_Settings, frozen=True):
    """One scheduler name that pods can request."""

    scheduler_name: str = DEFAULT_NAME
    percentage_of_nodes_to_score: int | None = None


class Configuration(_Settings, frozen=True):
    """All settings. Extenders apply to every profile."""

    profiles: tuple[Profile, ...] = (Profile(),)
    extenders: tuple[ExtenderSettings, ...] = ()
    percentage_of_nodes_to_score: int = 0
    """The percentage of nodes to find before scoring; 0 chooses it by the number of nodes."""
    pod_initial_backoff_seconds: float = FIRST_BACKOFF
    pod_max_backoff_seconds: float = LONGEST_BACKOFF
    ignored: tuple[str, ...] = ()
    """Paths of settings in the file that have no effect here."""

    @property
    def ignored_resources(self) -> frozenset[str]:
        return frozenset(
            managed.name
            for extender in self.extenders
            for managed in extender.managed_resources
            if managed.ignored_by_scheduler
        )

    def percentage(self, scheduler_name: str) -> int:
        for profile in self.profiles:
            if profile.scheduler_name == scheduler_name and profile.percentage_of_nodes_to_score is not None:
                return profile.percentage_of_nodes_to_score
        return self.percentage_of_nodes_to_score


def read(text: str | bytes, where: str = "the scheduler's configuration") -> Configuration:
    """The settings of a KubeSchedulerConfiguration in YAML or JSON; UserError where it cannot be used."""
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(given, dict):
        raise UserError(f"{where} is not a {KIND}: it is {'empty' if given is None else 'not a mapping'}")
    version, kind = given.pop("apiVersion", None), given.pop("kind", None)
    if kind != KIND or not str(version).startswith(_GROUP):
        raise UserError(
            f"{where} is not a {KIND} of {_GROUP}v1: its kind is {kind or 'missing'}, its apiVersion is "
            f"{version or 'missing'}"
        )
    ignored = tuple(_unknown(given, Configuration, ""))
    try:
        given = _with_seconds(given)
        read_ = msgspec.convert({**given, "ignored": ignored}, Configuration)
    except (msgspec.ValidationError, ValueError) as error:
        raise UserError(f"{where} cannot be used: {error}") from None
    if fault := next(_faults(read_), None):
        raise UserError(f"{where} cannot be used: {fault}")
    return read_


def seconds(text: str | int | float) -> float:
    """A duration such as 5s, 1m30s or 100ms; a bare number counts nanoseconds, as for kube-scheduler."""
    if isinstance(text, int | float):
        return text * 1e-9
    return go.seconds(text)


def _with_seconds(given: Mapping[str, Any]) -> dict[str, Any]:
    extenders = given.get("extenders")
    if not isinstance(extenders, list):
        return {key: value for key, value in given.items() if value is not None}
    read_: list[Any] = []
    for one in extenders:
        if isinstance(one, dict):
            timeout = seconds(one.get("httpTimeout") or 0) or DEFAULT_TIMEOUT
            one = {key: value for key, value in one.items() if value is not None} | {"httpTimeout": timeout}
        read_.append(one)
    return {key: value for key, value in given.items() if value is not None} | {"extenders": read_}


def _unknown(given: Any, type: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Paths of settings that no field of ours reads."""
    if not isinstance(given, dict):
        return
    known = {field.encode_name for field in msgspec.structs.fields(type)} - {"ignored"}
    for key, value in given.items():
        here = f"{path}{key}"
        if key not in known:
            yield here
        elif key in _NESTED:
            inner = value if isinstance(value, list) else [value]
            for number, one in enumerate(inner):
                index = f"[{number}]" if isinstance(value, list) else ""
                yield from _unknown(one, _NESTED[key], f"{here}{index}.")


_NESTED: Mapping[str, type[msgspec.Struct]] = {
    "profiles": Profile,
    "extenders": ExtenderSettings,
    "managedResources": ManagedResource,
    "tlsConfig": ExtenderTls,
}


def _faults(read_: Configuration) -> Iterator[str]:
    names = [profile.scheduler_name for profile in read_.profiles]
    if not names:
        yield "profiles is empty: give at least one schedulerName"
    for name in names:
        if names.count(name) > 1:
            yield f"schedulerName {name} appears twice: each profile needs its own"
    if sum(bool(extender.bind_verb) for extender in read_.extenders) > 1:
        yield "several extenders have a bindVerb: only one may bind"
    for number, extender in enumerate(read_.extenders):
        where = f"extenders[{number}]"
        if not extender.url_prefix.startswith(("http://", "https://")):
            yield f"{where}.urlPrefix {extender.url_prefix!r} is not an http or https address"
        if extender.prioritize_verb and extender.weight <= 0:
            yield f"{where}.weight is {extender.weight}: an extender that prioritizes needs a positive one"
    if not 0 < read_.pod_initial_backoff_seconds <= read_.pod_max_backoff_seconds:
        yield "podInitialBackoffSeconds must be positive and not above podMaxBackoffSeconds"
