"""The extenders in a KubeSchedulerConfiguration, as much of them as tells how kube-scheduler reaches them. Pure."""

import msgspec
import yaml

from colocate.errors import UserError

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
    http_timeout: str | int | float | None = None
    node_cache_capable: bool = False
    ignorable: bool = False
    tls_config: Tls | None = None

    @property
    def seconds(self) -> float:
        if self.http_timeout is None:
            return _DEFAULT_TIMEOUT
        if isinstance(self.http_timeout, int | float):
            return self.http_timeout * 1e-9 or _DEFAULT_TIMEOUT
        units = {"ms": 0.001, "s": 1.0, "m": 60.0}
        for unit, factor in units.items():
            number = self.http_timeout.removesuffix(unit)
            if number != self.http_timeout and number.replace(".", "", 1).isdigit():
                return float(number) * factor
        return _DEFAULT_TIMEOUT


class _KubeSchedulerConfiguration(msgspec.Struct, frozen=True):
    kind: str
    extenders: tuple[ExtenderSettings, ...] = ()


def read_extenders(text: str, where: str) -> tuple[ExtenderSettings, ...]:
    """The extenders of a KubeSchedulerConfiguration; a UserError where it is none."""
    try:
        read = msgspec.convert(yaml.safe_load(text), _KubeSchedulerConfiguration)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise UserError(
            f"{where}: it is no KubeSchedulerConfiguration ({' '.join(str(error).split())}); name the file that "
            f"kube-scheduler is given as --config"
        ) from None
    return read.extenders
