"""The extenders in a KubeSchedulerConfiguration: how kube-scheduler reaches them, what scores beside them. Pure."""

import msgspec

from colocate.model import go
from colocate.scheduler.kube.configuration import (
    KubeProfile,
    PluginSet,
    WantedConfiguration,
    extender_weight,
    tree_of,
    typed,
)

_DEFAULT_TIMEOUT = 5.0


class KubeTls(msgspec.Struct, frozen=True, rename="camel"):
    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class KubeExtender(msgspec.Struct, frozen=True, rename="camel"):
    """An extender, as a KubeSchedulerConfiguration has it."""

    url_prefix: str
    prioritize_verb: str = ""
    filter_verb: str = ""
    weight: int = 0
    http_timeout: str | None = None
    node_cache_capable: bool = False
    ignorable: bool = False
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: KubeTls | None = None

    def __post_init__(self) -> None:
        if self.http_timeout is not None:
            go.seconds(self.http_timeout)

    @property
    def seconds(self) -> float:
        """How long kube-scheduler waits for an answer."""
        return go.seconds(self.http_timeout or "0") or _DEFAULT_TIMEOUT

    @property
    def tls(self) -> KubeTls:
        """As kube-scheduler uses it: told to use HTTPS and no authority, it believes any certificate."""
        stated = self.tls_config or KubeTls()
        if self.enable_https and not stated.ca_file:
            return msgspec.structs.replace(stated, insecure=True)
        return stated


class KubeScheduler(msgspec.Struct, frozen=True):
    """What a KubeSchedulerConfiguration says of scores."""

    extenders: tuple[KubeExtender, ...]
    profiles: tuple[KubeProfile, ...] = (KubeProfile(),)

    @property
    def least_weight(self) -> int:
        """Of an extender, so that the load has its say in every profile."""
        return extender_weight(WantedConfiguration(profiles=self.profiles or (KubeProfile(),))).weight


class _Profile(msgspec.Struct, frozen=True):
    plugins: dict[str, PluginSet] = {}


class _KubeSchedulerConfiguration(msgspec.Struct, frozen=True):
    kind: str
    extenders: tuple[KubeExtender, ...] = ()
    profiles: tuple[_Profile, ...] = ()


def read_kube_scheduler(text: str, where: str) -> KubeScheduler:
    """What a KubeSchedulerConfiguration says; a UserError where it is none."""
    read = typed(_KubeSchedulerConfiguration, tree_of(text, where), where)
    return KubeScheduler(read.extenders, tuple(KubeProfile(plugins=one.plugins) for one in read.profiles))
