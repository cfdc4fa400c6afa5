"""The extenders in a KubeSchedulerConfiguration: how kube-scheduler reaches them, what scores beside them. Pure."""

from typing import NotRequired, TypedDict

import msgspec
import yaml

from colocate.apps.scheduler.kube_config import Profile, Wanted, extender_weight
from colocate.errors import UserError
from colocate.model import go_duration

_DEFAULT_TIMEOUT = 5.0


class Tls(msgspec.Struct, frozen=True, rename="camel"):
    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class ExtenderSettings(msgspec.Struct, frozen=True, rename="camel"):
    """An extender, as a KubeSchedulerConfiguration has it."""

    url_prefix: str
    prioritize_verb: str = ""
    filter_verb: str = ""
    weight: int = 0
    http_timeout: str | None = None
    node_cache_capable: bool = False
    ignorable: bool = False
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: Tls | None = None

    def __post_init__(self) -> None:
        if self.http_timeout is not None:
            go_duration.seconds(self.http_timeout)

    @property
    def seconds(self) -> float:
        """How long kube-scheduler waits for an answer."""
        return go_duration.seconds(self.http_timeout or "0") or _DEFAULT_TIMEOUT

    @property
    def tls(self) -> Tls:
        """As kube-scheduler uses it: told to use HTTPS and no authority, it believes any certificate."""
        stated = self.tls_config or Tls()
        if self.enable_https and not stated.ca_file:
            return msgspec.structs.replace(stated, insecure=True)
        return stated


class KubeScheduler(msgspec.Struct, frozen=True):
    """What a KubeSchedulerConfiguration says of scores."""

    extenders: tuple[ExtenderSettings, ...]
    profiles: tuple[Profile, ...] = (Profile(),)

    @property
    def least_weight(self) -> int:
        """Of an extender, so that a hot node loses in every profile."""
        return extender_weight(Wanted(profiles=self.profiles or (Profile(),))).weight


class _Plugin(TypedDict):
    name: str
    weight: NotRequired[int | None]


_Plugins = dict[str, dict[str, list[_Plugin] | None] | None]
"""By extension point, what is enabled and disabled."""


class _Profile(msgspec.Struct, frozen=True):
    plugins: _Plugins | None = None


class _KubeSchedulerConfiguration(msgspec.Struct, frozen=True):
    kind: str
    extenders: tuple[ExtenderSettings, ...] | None = None
    profiles: tuple[_Profile, ...] | None = None


def read_kube_scheduler(text: str, where: str) -> KubeScheduler:
    """What a KubeSchedulerConfiguration says; a UserError where it is none."""
    try:
        read = msgspec.convert(yaml.safe_load(text), _KubeSchedulerConfiguration)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise UserError(
            f"{where}: it is no KubeSchedulerConfiguration ({' '.join(str(error).split())}); name the file that "
            f"kube-scheduler is given as --config"
        ) from None
    profiles = tuple(Profile(plugins=one.plugins or {}) for one in read.profiles or ())
    return KubeScheduler(read.extenders or (), profiles)
