"""The configuration file of `colocate scheduler`: its fields, their types, defaults and checks.

The server's section is here; `sections` and the capabilities have the others.
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from colocate.cluster.usage import UsageSettings
from colocate.config.document import FOREIGN_TO_ALL, VERSION, ConfigDocument
from colocate.config.process_sections import Log, Metrics
from colocate.config.words import Problem, show
from colocate.http.places import PlaceLimits
from colocate.model import values
from colocate.model.values import Seconds, Section, to_size
from colocate.model.values import Size as Size
from colocate.scheduler.gpus.section import GpuSection, check_gpus
from colocate.scheduler.sections import (
    Decisions,
    Load,
    Policies,
    Taints,
    check_load,
    check_ranges,
    check_times,
    check_usage,
    to_policies,
)
from colocate.scheduler.windows import asks_for_pods, check_windows, windows
from colocate.wire.rpc import MAX_SOCKET_PATH

_UNIX = "unix:"


class ServerEndpoint(str):
    """Where the extender listens: 'host:port', or 'unix:/path' for a socket on this machine."""

    __slots__ = ()

    @property
    def socket(self) -> Path | None:
        """The path of the unix socket; None for host and port."""
        return Path(self.removeprefix(_UNIX)) if self.startswith(_UNIX) else None

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.rpartition(":")
        return host.strip("[]"), int(port)


class ServerTls(Section, frozen=True):
    """HTTPS. The files are read again when they change; connections that are open go on as they are."""

    certificate: Path | None = None
    """PEM: the server's certificate, and those that lead to its authority. HTTP where none is given."""
    key: Path | None = None
    """PEM, unencrypted."""
    client_authority: Path | None = None
    """PEM: the authority of callers' certificates. Callers without one are refused, except for health."""
    client_names: tuple[str, ...] = ()
    """Common names or DNS names of callers; any that the authority has signed where none is named. Name one
    where the authority is the cluster's own: it signs the certificates of every kubelet, too."""


DEFAULT_TOKEN_FILE = Path("/var/lib/colocate/scheduler-token")
"""Created at the start, readable by its owner alone, where nothing else says who may call."""


class CallerSettings(Section, frozen=True):
    """Who may ask, besides what `tls` demands of certificates. Health may be asked by anyone."""

    token_file: Path | None = None
    """Holds the token that every caller must show; several, one a line, while one replaces the other. It is
    shown as `Authorization: Bearer TOKEN`, or as the password in the URL, which is kube-scheduler's only way.
    Where neither this nor a client authority is given, a token is made: DEFAULT_TOKEN_FILE."""
    anyone: bool = False
    """Let in every caller, without a token."""


class ServerLimits(Section, frozen=True):
    """What one caller can cost."""

    body: Size = Size(64 << 20)
    """A request, after decompression: 5000 whole nodes are some 50 MB, 5000 names 0.2 MB."""
    bodies: Size = Size(256 << 20)
    """All requests that are under way together; further ones are told to come again."""
    connections: int = 2000
    """Open at a time. When places run out, connections on which nothing is under way are closed."""
    reserved: int | None = None
    """Connections for callers that have shown a token or a certificate; half of all unless stated. Without effect
    where callers need neither."""
    probes: int | None = None
    """Connections for /healthz and /readyz; one in 40 unless stated."""
    per_address: int = 100
    """Connections from one address that have shown nothing yet."""
    header_timeout: Seconds = Seconds(10)
    """For the first line and the headers of a request, from their first byte; and for the first request."""
    body_timeout: Seconds = Seconds(30)
    """For the body of a request."""
    answer_timeout: Seconds = Seconds(30)
    """For the caller to read its answer."""
    idle_timeout: Seconds = Seconds(120)
    """After an answer. Longer than the 90 s for which kube-scheduler keeps a connection: the client must hang up
    first, or a request may be lost with its connection."""

    def places(self, *, showing: bool) -> PlaceLimits:
        """The limits of the server; `showing` is whether callers must show a token or certificate."""
        reserved = self.connections // 2 if self.reserved is None else self.reserved
        return PlaceLimits(
            connections=self.connections,
            known=reserved if showing else 0,
            probes=max(1, self.connections // 40) if self.probes is None else self.probes,
            per_address=self.per_address,
        )


class Server(Section, frozen=True):
    """The extender's HTTP server."""

    address: ServerEndpoint = ServerEndpoint("127.0.0.1:8890")
    tls: ServerTls = ServerTls()
    callers: CallerSettings = CallerSettings()
    limits: ServerLimits = ServerLimits()
    grace: Seconds = Seconds(10)
    """How long requests that are under way may take once the process is told to stop."""

    @property
    def token_file(self) -> Path | None:
        """Where the token is that callers must show; None where they need none."""
        if self.callers.token_file is not None:
            return self.callers.token_file
        # A socket file is for its owner alone; a certificate replaces a token.
        if self.callers.anyone or self.tls.client_authority is not None or self.address.socket is not None:
            return None
        return DEFAULT_TOKEN_FILE


class Act(StrEnum):
    """A way to influence where pods go."""

    EXTENDER = "extender"
    """Answer kube-scheduler's questions."""
    TAINTS = "taints"
    """Keep every node's heat as taints, which every scheduler respects."""
    GPUS = "gpus"
    """Choose the GPU of every pod that asks for one, and bind the pod."""


class SchedulerConfig(Section, frozen=True):
    """The whole configuration of `colocate scheduler`."""

    version: int = VERSION
    log: Log = Log()
    metrics: Metrics = Metrics()
    server: Server = Server()
    act: tuple[Act, ...] = (Act.EXTENDER,)
    shadow: bool = False
    """Score all nodes equally and write nothing, but record what would have been done."""
    usage: UsageSettings = UsageSettings()
    load: Load = Load()
    taints: Taints = Taints()
    gpus: GpuSection = GpuSection()
    decisions: Decisions = Decisions()

    @property
    def samples(self) -> bool:
        """Whether nodes are judged by what they use."""
        return any(way is not Act.GPUS for way in self.act)

    def asked(self) -> UsageSettings:
        """What is asked of Prometheus: the usage section with its windows and pods decided."""
        needed = windows(self.usage, self.load) if Act.EXTENDER in self.act else self.usage.windows or ()
        pods = asks_for_pods(self.usage, self.load, taints=Act.TAINTS in self.act)
        return msgspec.structs.replace(self.usage, windows=needed, pods=pods)


def to_endpoint(value: object) -> ServerEndpoint:
    """Read where to listen; ValueError says how that is written."""
    if isinstance(value, str) and re.fullmatch(rf"{_UNIX}/[^\0]+", value):
        return ServerEndpoint(value)
    try:
        if (address := values.to_address(value)) != "off":
            return ServerEndpoint(address)
    except ValueError:
        pass
    raise ValueError(
        "an address; write it like 127.0.0.1:8890, [::1]:8890 or unix:/run/colocate/extender.sock"
    )


_READ = {Size: to_size, ServerEndpoint: to_endpoint, Policies: to_policies}


def decode(kind: type, value: Any) -> Any:
    """Build the types above from what a file can hold (a msgspec dec_hook)."""
    return _READ[kind](value) if kind in _READ else values.decode(kind, value)


def check(config: SchedulerConfig) -> None:
    """Raise a Problem where a scheduler could not run with this configuration."""
    _check_server(config.server)
    if not config.act:
        raise Problem("act", f"the list is empty; choose at least one of {', '.join(Act)}")
    check_load(config.load)
    check_usage(config.usage, config.asked())
    check_times(config.usage, config.load)
    if Act.EXTENDER in config.act:
        check_windows(config.usage, config.load)
    check_ranges(config.taints, "taints")
    check_gpus(config.gpus)
    check_ranges(config.decisions, "decisions")


def _check_server(server: Server) -> None:
    socket = server.address.socket
    if socket is not None and len(bytes(socket)) > MAX_SOCKET_PATH:
        raise Problem(
            "server.address",
            f"the path has {len(bytes(socket))} bytes, but a unix socket allows {MAX_SOCKET_PATH}; "
            f"choose a shorter one",
        )
    if socket is None and server.address.host_and_port[1] > 65535:
        raise Problem(
            "server.address",
            f"{server.address.host_and_port[1]} is not a port; choose one up to 65535",
        )
    tls = server.tls
    if (tls.certificate is None) != (tls.key is None):
        missing = "key" if tls.key is None else "certificate"
        raise Problem(
            f"server.tls.{missing}", "this is missing, but the other is given; give both or neither"
        )
    if tls.client_authority is not None and tls.certificate is None:
        raise Problem(
            "server.tls.clientAuthority",
            "callers cannot send a certificate over HTTP; add certificate and key",
        )
    if tls.client_names and tls.client_authority is None:
        raise Problem("server.tls.clientNames", "names are worth nothing without clientAuthority; add it")
    if server.callers.anyone and (server.callers.token_file or tls.client_authority):
        raise Problem(
            "server.callers.anyone",
            "this contradicts tokenFile or tls.clientAuthority, which callers must satisfy; leave one out",
        )
    limits = server.limits
    for name, value in (
        ("body", limits.body),
        ("bodies", limits.bodies),
        ("connections", limits.connections),
        ("reserved", limits.reserved),
        ("probes", limits.probes),
        ("perAddress", limits.per_address),
    ):
        if value is not None and value < 1:
            raise Problem(
                f"server.limits.{name}", f"{show(int(value))} would allow nothing; choose more than 0"
            )
    places = limits.places(showing=True)
    if places.strangers < 1:
        raise Problem(
            "server.limits.connections",
            f"{places.connections} leaves no connection for a new caller: {places.known} are reserved and "
            f"{places.probes} are for probes; choose more",
        )
    if limits.bodies < limits.body:
        raise Problem(
            "server.limits.bodies",
            f"{limits.bodies} is less than the limit of one body ({limits.body}); raise it",
        )
    for name, seconds in (
        ("headerTimeout", limits.header_timeout),
        ("bodyTimeout", limits.body_timeout),
        ("answerTimeout", limits.answer_timeout),
        ("idleTimeout", limits.idle_timeout),
    ):
        if not 0 < seconds <= 3600:
            raise Problem(
                f"server.limits.{name}", f"{seconds:g}s is out of range; choose more than 0s and at most 1h"
            )
    if not 0 <= server.grace <= 3600:
        raise Problem("server.grace", f"{server.grace:g}s is out of range; choose 0s to 1h")


_OF_THE_AGENT = "the configuration of 'colocate agent'; check it with 'colocate config check'"

SCHEDULER = ConfigDocument(
    SchedulerConfig,
    check,
    decode,
    "'colocate scheduler config example' prints an example",
    FOREIGN_TO_ALL | dict.fromkeys(("kubelet", "control", "mock", "memory"), _OF_THE_AGENT),
)
