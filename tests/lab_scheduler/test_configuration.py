"""KubeSchedulerConfiguration: read, doubted, refused."""

import base64
import ssl
from pathlib import Path

import pytest

from colocate.errors import UserError
from colocate.lab.api.certificates import Authority
from colocate.lab.api.store import ObjectStore
from colocate.lab.scheduler import configuration
from colocate.lab.scheduler.configuration import (
    Configuration,
    ExtenderSettings,
    ExtenderTls,
    ManagedResource,
    Profile,
)
from colocate.lab.scheduler.extender import client_context

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def test_nothing_said_is_the_default() -> None:
    assert configuration.read(HEAD) == Configuration(profiles=(Profile("default-scheduler"),))


def test_everything_said() -> None:
    read = configuration.read(
        HEAD
        + """
percentageOfNodesToScore: 50
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
profiles:
  - schedulerName: one
  - schedulerName: two
    percentageOfNodesToScore: 100
extenders:
  - urlPrefix: https://127.0.0.1:8888/extender
    filterVerb: filter
    prioritizeVerb: prioritize
    bindVerb: bind
    weight: 5
    enableHTTPS: true
    tlsConfig: {insecure: false, serverName: extender, caFile: /ca.crt, certFile: /tls.crt, keyFile: /tls.key}
    httpTimeout: 1m0.5s
    nodeCacheCapable: true
    managedResources:
      - {name: mock.com/gpu, ignoredByScheduler: true}
      - {name: mock.com/other}
    ignorable: true
"""
    )
    assert read == Configuration(
        profiles=(Profile("one"), Profile("two", 100)),
        extenders=(
            ExtenderSettings(
                "https://127.0.0.1:8888/extender",
                "filter",
                "prioritize",
                "bind",
                5,
                True,
                ExtenderTls(False, "extender", "/tls.crt", "/tls.key", "/ca.crt"),
                60.5,
                True,
                (ManagedResource("mock.com/gpu", True), ManagedResource("mock.com/other")),
                True,
            ),
        ),
        percentage_of_nodes_to_score=50,
        pod_initial_backoff_seconds=2,
        pod_max_backoff_seconds=20,
    )
    assert read.ignored_resources == {"mock.com/gpu"}
    assert (read.percentage("one"), read.percentage("two")) == (50, 100)


def test_what_has_no_effect_is_named() -> None:
    read = configuration.read(
        HEAD
        + """
leaderElection: {leaderElect: false}
profiles:
  - schedulerName: mem-real-usage-scheduler
    plugins: {score: {disabled: [{name: "*"}]}}
    pluginConfig: [{name: MemRealUsage, args: {}}]
extenders:
  - {urlPrefix: "http://localhost", preemptVerb: preempt, tlsConfig: {nextProtos: [h2]}}
"""
    )
    assert read.ignored == (
        "leaderElection",
        "profiles[0].plugins",
        "profiles[0].pluginConfig",
        "extenders[0].preemptVerb",
        "extenders[0].tlsConfig.nextProtos",
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5),
        ("100ms", 0.1),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("250us", 0.00025),
        ("0", 0),
        (5_000_000_000, 5),
    ],
)
def test_durations(text: str | int, seconds: float) -> None:
    assert configuration.seconds(text) == pytest.approx(seconds)


def test_no_timeout_is_the_default_timeout() -> None:
    read = configuration.read(HEAD + "extenders: [{urlPrefix: 'http://localhost', httpTimeout: 0s}]")
    assert read.extenders[0].http_timeout == 5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[", "is not YAML"),
        ("", "it is empty"),
        ("- a", "it is not a mapping"),
        ("kind: Pod\napiVersion: v1", "its kind is Pod, its apiVersion is v1"),
        ("kind: Pod", "its kind is Pod, its apiVersion is missing"),
        ("profiles: []", "its kind is missing, its apiVersion is missing"),
        (HEAD + "profiles: []", "profiles is empty"),
        (HEAD + "profiles: [{schedulerName: a}, {schedulerName: a}]", "appears twice"),
        (HEAD + "profiles: 3", "Expected `array`"),
        (HEAD + "extenders: [{}]", "urlPrefix"),
        (HEAD + "extenders: [{urlPrefix: localhost}]", "not an http or https address"),
        (HEAD + "extenders: [{urlPrefix: 'http://a', prioritizeVerb: p}]", "needs a positive one"),
        (HEAD + "extenders: [{urlPrefix: 'http://a', httpTimeout: soon}]", "is not a span of time"),
        (HEAD + "extenders: [{urlPrefix: 'http://a', bindVerb: b}, {urlPrefix: 'http://b', bindVerb: b}]",
         "only one may bind"),
        (HEAD + "podInitialBackoffSeconds: 0", "must be positive"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_a_sentence(text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        configuration.read(text)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_certificates_from_files_and_from_data(tmp_path: Path) -> None:
    authority = Authority.of(ObjectStore())
    pair = authority.client("scheduler")
    (tmp_path / "ca").write_bytes(authority.certificate)
    (tmp_path / "pair").write_bytes(pair.key + pair.certificate)
    from_files = ExtenderTls(ca_file=f"{tmp_path}/ca", cert_file=f"{tmp_path}/pair")
    from_data = ExtenderTls(
        ca_data=_encoded(authority.certificate),
        cert_data=_encoded(pair.certificate),
        key_data=_encoded(pair.key),
    )
    for tls in (from_files, from_data):
        context = client_context(ExtenderSettings("https://a", tls=tls, enable_https=True))
        assert isinstance(context, ssl.SSLContext)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.cert_store_stats()["x509_ca"] >= 1


@pytest.mark.parametrize(
    ("tls", "enable_https", "mode"),
    [
        (ExtenderTls(insecure=True), False, ssl.CERT_NONE),
        (ExtenderTls(), True, ssl.CERT_NONE),
        (ExtenderTls(server_name="a"), False, ssl.CERT_REQUIRED),
    ],
)
def test_which_authorities_are_trusted(tls: ExtenderTls, enable_https: bool, mode: ssl.VerifyMode) -> None:
    context = client_context(ExtenderSettings("https://a", tls=tls, enable_https=enable_https))
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is mode


@pytest.mark.parametrize(
    "tls",
    [ExtenderTls(ca_file="/nowhere/ca.crt"), ExtenderTls(ca_data="!"), ExtenderTls(cert_file="/nowhere")],
)
def test_certificates_that_are_not_there_are_the_users_error(tls: ExtenderTls) -> None:
    with pytest.raises(UserError, match="tlsConfig of the extender at https://a cannot be used"):
        client_context(ExtenderSettings("https://a", tls=tls))
