"""What the configuration of `colocate scheduler` takes, and what it says of the rest."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from colocate.config import words
from colocate.config.file import build_document, load_document
from colocate.config.override import from_assignments, settable, unknown_variables
from colocate.errors import UserError
from colocate.model.values import Seconds
from colocate.scheduler.sections import Load
from colocate.scheduler.settings import (
    DEFAULT_TOKEN_FILE,
    SCHEDULER,
    CallerSettings,
    SchedulerConfig,
    Server,
    ServerEndpoint,
    ServerLimits,
    ServerTls,
    Size,
)


def read(text: str, **environ: str) -> SchedulerConfig:
    return build_document(SCHEDULER, text.encode(), "scheduler.yaml", environ).config


def refusal(section: str) -> str:
    """The one line in which a section is refused."""
    with pytest.raises(UserError) as refused:
        read(f"version: 1\n{section}")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_version_is_enough() -> None:
    assert read("version: 1") == SchedulerConfig()


def test_everything_said() -> None:
    server = read(
        """
version: 1
server:
  address: "[::1]:9000"
  tls: {certificate: /tls.crt, key: /tls.key, clientAuthority: /ca.crt, clientNames: [kube-scheduler]}
  callers: {tokenFile: /token}
  limits: {body: 8Mi, bodies: 1Gi, connections: 10, reserved: 4, probes: 2, perAddress: 3,
           headerTimeout: 1s, bodyTimeout: 2s, answerTimeout: 3s,
           idleTimeout: 1m}
  grace: 500ms
"""
    ).server
    assert server == Server(
        address=ServerEndpoint("[::1]:9000"),
        tls=ServerTls(
            certificate=Path("/tls.crt"),
            key=Path("/tls.key"),
            client_authority=Path("/ca.crt"),
            client_names=("kube-scheduler",),
        ),
        callers=CallerSettings(token_file=Path("/token")),
        limits=ServerLimits(
            body=Size(8 << 20),
            bodies=Size(1 << 30),
            connections=10,
            reserved=4,
            probes=2,
            per_address=3,
            header_timeout=Seconds(1),
            body_timeout=Seconds(2),
            answer_timeout=Seconds(3),
            idle_timeout=Seconds(60),
        ),
        grace=Seconds(0.5),
    )
    assert server.address.host_and_port == ("::1", 9000)


def test_a_unix_socket_is_an_address_too() -> None:
    server = read("version: 1\nserver: {address: 'unix:/run/colocate/extender.sock'}").server
    assert server.address.socket == Path("/run/colocate/extender.sock")


@pytest.mark.parametrize(
    ("said", "file"),
    [
        ("{}", DEFAULT_TOKEN_FILE),
        ("{address: '0.0.0.0:8890'}", DEFAULT_TOKEN_FILE),
        ("{callers: {tokenFile: /mine}}", Path("/mine")),
        ("{address: 'unix:/run/x.sock'}", None),
        ("{tls: {certificate: /c, key: /k}}", DEFAULT_TOKEN_FILE),
        ("{tls: {certificate: /c, key: /k, clientAuthority: /a}}", None),
        ("{callers: {anyone: true}}", None),
    ],
)
def test_callers_must_show_a_token_unless_something_else_is_said(said: str, file: Path | None) -> None:
    assert read(f"version: 1\nserver: {said}").server.token_file == file


def test_half_of_the_places_are_reserved_and_some_are_for_probes() -> None:
    places = ServerLimits().places(showing=True)
    assert (places.known, places.probes, places.strangers) == (1000, 50, 950)
    assert ServerLimits().places(showing=False).known == 0, (
        "where nobody can show anything there is nothing to reserve"
    )
    assert ServerLimits(connections=40, reserved=5, probes=2).places(showing=True).strangers == 33


def test_single_values_come_from_the_environment_and_from_flags() -> None:
    config = read("version: 1", COLOCATE_SERVER_ADDRESS="0.0.0.0:1", COLOCATE_SERVER_LIMITS_BODY="1Mi")
    assert (config.server.address, config.server.limits.body) == ("0.0.0.0:1", 1 << 20)
    flags = from_assignments(["server.grace=2s"])
    assert build_document(SCHEDULER, b"version: 1", "f", {}, flags).config.server.grace == Seconds(2)
    assert "server.tls.certificate" in settable(SCHEDULER)
    [warning] = unknown_variables({"COLOCATE_SERVER_ADRESS": "x"}, SCHEDULER)
    assert "did you mean 'COLOCATE_SERVER_ADDRESS'" in warning


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        ("{address: 8890}", "server.address: 8890 is not an address"),
        ("{callers: {anyone: true, tokenFile: /t}}", "server.callers.anyone: this contradicts"),
        ("{limits: {connections: 2}}", "server.limits.connections: 2 leaves no connection for a new caller"),
        ("{limits: {perAddress: 0}}", "server.limits.perAddress: 0 would allow nothing"),
        ("{address: off}", "server.address: "),
        ("{address: 'unix:relative'}", "server.address: "),
        ("{address: '127.0.0.1:70000'}", "70000 is not a port"),
        (f"{{address: 'unix:/{'x' * 200}'}}", "a unix socket allows"),
        ("{tls: {certificate: /c}}", "server.tls.key: this is missing"),
        ("{tls: {key: /c}}", "server.tls.certificate: this is missing"),
        ("{tls: {clientAuthority: /c}}", "callers cannot send a certificate over HTTP"),
        ("{tls: {certificate: /c, key: /k, clientNames: [a]}}", "names are worth nothing without clientAuthority"),
        ("{limits: {body: 0}}", "server.limits.body: 0 would allow nothing"),
        ("{limits: {body: lots}}", "is not an amount of memory"),
        ("{limits: {body: 1Gi}}", "server.limits.bodies: 268435456 is less than the limit of one body"),
        ("{limits: {connections: -1}}", "server.limits.connections: -1 would allow nothing"),
        ("{limits: {bodyTimeout: 0s}}", "server.limits.bodyTimeout: 0s is out of range"),
        ("{grace: 2h}", "server.grace: 7200s is out of range"),
        ("{port: 1}", "server.port: there is no such field"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_a_sentence(server: str, complaint: str) -> None:
    assert complaint in refusal(f"server: {server}")


@pytest.mark.parametrize(
    ("load", "complaint"),
    [
        ("{balanced: {dominantPercent: 300}}", "load.balanced.dominantPercent: 300 is out of range; choose 0 to 100"),
        ("{balanced: {dominantPercent: -400}}", "load.balanced.dominantPercent: -400"),
        ("{loadAware: {cpuWeight: -3}}", "load.loadAware.cpuWeight: -3"),
        ("{loadAware: {cpuWeight: 0, memoryWeight: 0}}", "load.loadAware: all weights are 0"),
        ("{oversell: {most: -1}}", "load.oversell.most: -1 is out of range; choose 1 to 100"),
        ("{oversell: {cpuFloor: 0}}", "load.oversell.cpuFloor: 0 is out of range; choose 0.01 to 1"),
        ("{overcommitment: {smoothingWindow: -2}}", "load.overcommitment.smoothingWindow: -2"),
        ("{estimate: {cpuPercent: -900}}", "load.estimate.cpuPercent: -900"),
        ("{ledger: {leastPercent: -50}}", "load.ledger.leastPercent: -50"),
        ("{staleness: {after: -5}}", "load.staleness.after: -5"),
        ("{filter: {thresholds: {usage: {cpu: -1}}}}", "load.filter.thresholds.usage.cpu: -1 is out of range"),
        ("{filter: {thresholds: {prod: {memory: 101}}}}", "load.filter.thresholds.prod.memory: 101"),
        ("{filter: {thresholds: {aggregated: {cpu: 65}}}}", "thresholds.aggregated: this needs an aggregation"),
    ],
)  # fmt: skip
def test_numbers_by_which_nothing_can_be_judged_are_refused(load: str, complaint: str) -> None:
    assert complaint in refusal(f"load: {load}")


def _numbers(section: msgspec.Struct, path: str) -> Iterator[str]:
    """The paths of all numbers in a section, as a file has them."""
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        here = f"{path}.{field.encode_name}"
        if isinstance(value, msgspec.Struct):
            yield from _numbers(value, here)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield here


@pytest.mark.parametrize("path", tuple(_numbers(Load(), "load")))
def test_no_number_of_judging_may_be_negative_or_without_an_end(path: str) -> None:
    for number in ("-1", "1000000000000000000"):
        text = number
        for name in reversed(path.split(".")):
            text = f"{{{name}: {text}}}"
        with pytest.raises(UserError):
            read(f"version: 1\n{text[1:-1]}")


@pytest.mark.parametrize(
    ("gpus", "complaint"),
    [
        ("policy: best", "choose one of ours, fgd, best-fit, spread"),
        ("dialects: []", "the list is empty"),
        ("dialects: [{name: other}]", "no GPU dialect 'other'"),
        ("dialects: [{name: doslab}, {name: doslab, unit: 2Mi}]", "named twice"),
        ("dialects: [{name: doslab, unit: 0}]", "0 bytes is no unit; write it in whole Mi or Gi"),
        (
            "dialects: [{name: colocate}, {name: doslab, unit: 64}]",
            "gpus.dialects[1].unit: 64 bytes is no unit; did you mean 64Mi?",
        ),
        ("hold: 0s", "choose 0.1s to 10m"),
        ("lease: {duration: 1h}", "choose 1s to 10m"),
    ],
)
def test_gpus_that_could_not_be_chosen_are_refused(gpus: str, complaint: str) -> None:
    assert complaint in refusal(f"gpus: {{{gpus}}}")


def test_gpus_alone_need_no_samples() -> None:
    assert not read("version: 1\nact: [gpus]").samples
    assert read("version: 1\nact: [gpus, taints]").samples


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"scheduler\.yaml: cannot be read"):
        load_document(SCHEDULER, tmp_path / "scheduler.yaml", {})


def test_the_example_in_the_docs_can_be_used() -> None:
    page = (Path(__file__).parents[2] / "docs" / "extender.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]
    config = read(text)
    assert config.server.limits == ServerLimits(), "what is optional shows its default"
    assert config.server.tls.client_names == ("system:kube-scheduler",)


def test_every_single_value_can_be_given_outside_of_the_file() -> None:
    for one in settable(SCHEDULER).values():
        words.python_type(one.kind)
    given = {
        "COLOCATE_SERVER_CALLERS_TOKEN_FILE": "/token",
        "COLOCATE_USAGE_PROMETHEUS_URL": "http://prometheus:9090",
        "COLOCATE_USAGE_INTERVAL": "10s",
        "COLOCATE_LOAD_POLICY": "balanced=3,oversell=1",
        "COLOCATE_LOAD_STALENESS_AFTER": "60.5",
        "COLOCATE_LOAD_FILTER_ENABLED": "true",
        "COLOCATE_DECISIONS_FILE": "/log/decisions.jsonl",
    }
    config = read("version: 1", **given)
    assert config.server.callers.token_file == Path("/token")
    assert config.usage.prometheus.url == "http://prometheus:9090"
    assert config.usage.interval == Seconds(10)
    assert [part.policy for part in config.load.policy.mix] == ["balanced", "oversell"]
    assert (config.load.staleness.after, config.load.filter.enabled) == (60.5, True)
    assert config.decisions.file == Path("/log/decisions.jsonl")
