"""Sections of every process's configuration: log and metrics."""

from enum import StrEnum

from colocate.model.values import Address, Section


class LogFormat(StrEnum):
    """How log lines look; `auto` is text on a terminal and JSON elsewhere."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Log(Section, frozen=True):
    """What the agent writes to standard error."""

    format: LogFormat = LogFormat.AUTO
    level: LogLevel = LogLevel.INFO


class Metrics(Section, frozen=True):
    """The Prometheus endpoint; off by default, so that two agents never use the same port."""

    address: Address = Address("off")
