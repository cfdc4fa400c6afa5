"""How Prometheus is reached: its address, credentials, TLS; and nothing secret in words."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from colocate.clock import ManualClock, SystemClock
from colocate.cluster.errors import ClusterError, Unauthorized, Untrusted
from colocate.cluster.usage import Prometheus, PrometheusSettings
from colocate.cluster.usage.prometheus import connection_to
from colocate.errors import UserError
from colocate.lab.api.certificates import Authority, Pair
from colocate.lab.api.store import ObjectStore
from colocate.model.values import Seconds
from tests.cluster.serving import Scripted
from tests.support.prometheus import Metrics

from .fake import vector

PASSWORD = "secret-of-the-test"
HASHED = "$2b$04$QEIxl2Z9iquiuhqBJDATmO5Ji8XuuUIyaINZ0Wq73RkFiz/D0v.ve"


async def ask(clock: ManualClock, settings: PrometheusSettings) -> None:
    prometheus = Prometheus(settings, clock, environ={})
    try:
        await prometheus.query("cpu", "node_cpu")
    finally:
        await prometheus.close()


async def test_the_path_of_the_address_is_a_prefix(scripted: Scripted, clock: ManualClock) -> None:
    scripted.say(200, vector({}))
    await ask(clock, PrometheusSettings(url=f"{scripted.url}/monitoring/prometheus/", timeout=Seconds(2.5)))
    [request] = scripted.seen
    assert request.path == "/monitoring/prometheus/api/v1/query"
    assert dict(request.query) == {"query": "node_cpu", "timeout": "2500ms"}
    assert request.headers["Accept-Encoding"] == "identity"
    assert "Authorization" not in request.headers


async def test_a_token_file_is_read_again(scripted: Scripted, clock: ManualClock, tmp_path: Path) -> None:
    scripted.say(200, vector({}))
    token = tmp_path / "token"
    token.write_text("one\n")
    prometheus = Prometheus(PrometheusSettings(url=scripted.url, token_file=token), clock, environ={})
    await prometheus.query("cpu", "x")
    (tmp_path / "new").write_text("two\n")
    (tmp_path / "new").replace(token)
    await prometheus.query("cpu", "x")
    assert [one.headers["Authorization"] for one in scripted.seen] == ["Bearer one", "Bearer two"]
    await prometheus.close()


async def test_a_password_comes_from_its_file_or_from_the_address(
    scripted: Scripted, clock: ManualClock, tmp_path: Path
) -> None:
    scripted.say(200, vector({}))
    file = tmp_path / "password"
    file.write_text("pass word\n")
    await ask(clock, PrometheusSettings(url=scripted.url, username="me", password_file=file))
    await ask(clock, PrometheusSettings(url=scripted.url.replace("//", "//me:pass%20word@")))
    assert {one.headers["Authorization"] for one in scripted.seen} == {"Basic bWU6cGFzcyB3b3Jk"}


async def test_a_password_file_that_is_not_there_is_a_reason_in_words(
    clock: ManualClock, tmp_path: Path
) -> None:
    settings = PrometheusSettings(url="http://127.0.0.1:1", username="me", password_file=tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"the password file .*nowhere cannot be read: no such file"):
        await ask(clock, settings)


async def test_no_secret_is_in_what_is_said(clock: ManualClock) -> None:
    settings = PrometheusSettings(url="http://me:hidden@127.0.0.1:1/path")
    with pytest.raises(ClusterError) as raised:
        await ask(clock, settings)
    assert "hidden" not in str(raised.value)
    assert "no connection to http://127.0.0.1:1/path" in str(raised.value)
    assert "hidden" not in repr(connection_to(settings, {}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (PrometheusSettings(url="prometheus:9090"), "is not an address; write it as"),
        (PrometheusSettings(url="http://prometheus:port"), "url is not an address"),
        (PrometheusSettings(url="ftp://prometheus"), "is not an address; write it as"),
        (PrometheusSettings(url="http://p:9090/graph?g0.expr=up"), "give only the address"),
        (PrometheusSettings(url="https://p", client_key=Path("k")), "go together; one of them is missing"),
        (
            PrometheusSettings(url="http://p", token_file=Path("t")),
            "use https, or write prometheus.insecure: true",
        ),
        (PrometheusSettings(url="http://me:x@p"), "in clear text; use https"),
        (PrometheusSettings(url="https://p", token_file=Path("t"), username="me"), "exclude each other"),
        (PrometheusSettings(url="https://p", password_file=Path("t")), "needs a username"),
        (PrometheusSettings(url="https://p", proxy="socks5://p"), "not an http or https proxy"),
    ],
)
def test_settings_that_cannot_be_right_are_refused_in_a_sentence(
    settings: PrometheusSettings, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        connection_to(settings, {})


def test_an_ipv6_address_keeps_its_brackets() -> None:
    assert connection_to(PrometheusSettings(url="http://[2001:db8::1]:9090/"), {}).server == (
        "http://[2001:db8::1]:9090"
    )


def test_the_environments_proxy_is_used_and_the_settings_own_goes_over_it() -> None:
    environ = {"HTTPS_PROXY": "http://env:1"}
    found = connection_to(PrometheusSettings(url="https://prometheus.example"), environ).proxy
    assert found is not None
    assert found.reveal() == "http://env:1"
    own = connection_to(PrometheusSettings(url="https://prometheus.example", proxy="http://own:2"), environ)
    assert own.proxy is not None
    assert own.proxy.reveal() == "http://own:2"


def write(pair: Pair, folder: Path, name: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return certificate, key


@pytest.mark.needs("prometheus")
async def test_a_real_prometheus_with_tls_a_client_certificate_and_a_password(tmp_path: Path) -> None:
    authority = Authority.of(ObjectStore())
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    served = write(authority.server("prometheus", "prometheus.example"), tmp_path, "server")
    shown = write(authority.client("colocate"), tmp_path, "client")
    (tmp_path / "password").write_text(PASSWORD)
    web = {
        "tls_server_config": {
            "cert_file": str(served[0]),
            "key_file": str(served[1]),
            "client_ca_file": str(tmp_path / "ca.crt"),
            "client_auth_type": "RequireAndVerifyClientCert",
        },
        "basic_auth_users": {"me": HASHED},
    }
    async with Metrics(tmp_path / "metrics", web=web) as metrics:
        right = PrometheusSettings(
            url=metrics.url,
            certificate_authority=tmp_path / "ca.crt",
            client_certificate=shown[0],
            client_key=shown[1],
            server_name="prometheus.example",
            username="me",
            password_file=tmp_path / "password",
        )

        async def answer(**changes: object) -> None:
            settings = msgspec.structs.replace(right, **changes)
            prometheus = Prometheus(settings, SystemClock(), environ={})
            try:
                await prometheus.query("up", "up")
            finally:
                await prometheus.close()

        async with asyncio.timeout(30):
            while True:
                try:
                    await answer()
                    break
                except ClusterError:
                    await asyncio.sleep(0.05)
        with pytest.raises(Untrusted):
            await answer(certificate_authority=None)
        with pytest.raises(Untrusted):
            await answer(server_name="another.example")
        with pytest.raises(Untrusted, match="asks for a client certificate"):
            await answer(client_certificate=None, client_key=None)
        (tmp_path / "password").write_text("wrong")
        with pytest.raises(Unauthorized):
            await answer()
