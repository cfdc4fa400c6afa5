"""The doctor on the extender: it is asked as kube-scheduler would."""

from pathlib import Path

import pytest
from aiohttp import web
from tests.cluster.serving import Scripted
from tests.doctor.examining_load import NAMES, cluster_of, examined
from tests.scheduler.asking import SteeredJudge, asking, server
from tests.scheduler.pretending import slow

from colocate.doctor.extender_checks import ours, presumed
from colocate.doctor.report import CheckVerdict
from colocate.errors import UserError
from colocate.lab.api.certificates import Authority, Pair
from colocate.lab.api.store import ObjectStore
from colocate.load.settings import FilterSettings
from colocate.scheduler.kube.extender import KubeExtender, read_kube_scheduler
from colocate.scheduler.kube.extender import KubeTls as ShownTls
from colocate.scheduler.sections import Load
from colocate.scheduler.settings import CallerSettings, SchedulerConfig, ServerTls


def with_files(folder: Path, authority: bytes, pair: Pair) -> KubeExtender:
    """An extender that kube-scheduler is to ask with these, at an address where nobody is."""
    written = {"ca.crt": authority, "tls.crt": pair.certificate, "tls.key": pair.key}
    for name, text in written.items():
        (folder / name).write_bytes(text)
    return KubeExtender(
        "https://127.0.0.1:9",
        "prioritize",
        weight=5,
        ignorable=True,
        enable_https=True,
        tls_config=ShownTls(
            ca_file=f"{folder}/ca.crt", cert_file=f"{folder}/tls.crt", key_file=f"{folder}/tls.key"
        ),
    )


class TestExtender:
    @pytest.mark.parametrize(
        ("verb", "enabled", "reason"),
        [
            (
                "filter",
                False,
                "kube-scheduler asks it to filter, but it lets every node pass: load.filter.enabled is false",
            ),
            ("", True, "load.filter.enabled is true, but kube-scheduler never asks it to filter"),
            ("", False, ""),
            ("filter", True, ""),
        ],
    )
    async def test_it_takes_both_sides_to_filter(self, verb: str, enabled: bool, reason: str) -> None:
        async with asking(SteeredJudge()) as ask:
            settings = KubeExtender(
                ask.listening.url,
                "prioritize",
                filter_verb=verb,
                weight=100,
                ignorable=True,
                node_cache_capable=True,
            )
            load = Load(filter=FilterSettings(enabled=enabled))
            found = await examined("extender", "nowhere", extenders=(settings,), load=load)
        warned = [result.reason for result in found if result.verdict is not CheckVerdict.GOOD]
        assert warned == ([f"{ask.listening.url}: {reason}"] if reason else [])

    async def test_it_answers_in_time(self) -> None:
        async with asking(SteeredJudge()) as ask, cluster_of(*NAMES) as client:
            settings = KubeExtender(
                ask.listening.url, "prioritize", weight=5, ignorable=True, node_cache_capable=True
            )
            [found] = await examined("extender", client, extenders=(settings,))
        assert found.verdict is CheckVerdict.GOOD
        assert "answers for 3 nodes" in found.reason

    async def test_it_is_shown_the_password_of_the_address(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("sesame")
        async with asking(SteeredJudge(), server(callers=CallerSettings(token_file=token))) as ask:
            url = ask.listening.url
            refused, let_in = [
                (
                    await examined(
                        "extender", "nowhere", extenders=(KubeExtender(one, "prioritize", weight=5),)
                    )
                )[-1]
                for one in (url, url.replace("://", "://any:sesame@"))
            ]
        assert refused.verdict is CheckVerdict.BAD
        assert "401" in refused.reason
        assert "into urlPrefix as its password" in refused.remedy
        assert let_in.verdict is CheckVerdict.GOOD
        assert "sesame" not in let_in.reason

    async def test_it_warns_where_anyone_may_ask(self) -> None:
        async with asking(SteeredJudge(), server()) as ask:
            settings = KubeExtender(ask.listening.url, "prioritize", weight=5, ignorable=True)
            warned, good = await examined("extender", "nowhere", extenders=(settings,), server=server())
        assert (warned.verdict, good.verdict) == (CheckVerdict.WARN, CheckVerdict.GOOD)
        assert warned.reason.startswith("server.callers.anyone is true: anyone who can reach the extender")

    async def test_what_kube_scheduler_shows_is_presumed_where_nothing_is_said_of_it(
        self, tmp_path: Path
    ) -> None:
        token = tmp_path / "token"
        token.write_text("open sesame/§\n")
        [settings] = presumed(
            SchedulerConfig(server=server(callers=CallerSettings(token_file=token)))
        ).extenders
        assert settings.url_prefix.startswith("http://scheduler:open%20sesame%2F%C2%A7@127.0.0.1:")
        token.unlink()
        [settings] = presumed(
            SchedulerConfig(server=server(callers=CallerSettings(token_file=token)))
        ).extenders
        assert "@" not in settings.url_prefix

    async def test_one_that_is_slower_than_kube_scheduler_is_patient(self) -> None:
        async with Scripted().running() as scripted:
            scripted.answers.append(slow)
            settings = KubeExtender(scripted.url, "prioritize", weight=5, http_timeout="100ms")
            found = await examined("extender", "nowhere", extenders=(settings,))
        assert "no answer within httpTimeout, 0.1 s" in found[-1].reason

    async def test_an_answer_that_go_would_not_read(self) -> None:
        async def broken(request: web.Request) -> web.StreamResponse:
            return web.json_response([{"Host": "colocate-doctor", "Score": 1.5}])

        async with Scripted().running() as scripted:
            scripted.answers.append(broken)
            settings = KubeExtender(scripted.url, "prioritize", weight=5)
            found = await examined("extender", "nowhere", extenders=(settings,))
        assert "kube-scheduler could not read its answer" in found[-1].reason

    async def test_settings_that_let_hot_nodes_win_or_pods_wait(self) -> None:
        text = """
kind: KubeSchedulerConfiguration
extenders:
- urlPrefix: http://127.0.0.1:9
  filterVerb: filter
  prioritizeVerb: prioritize
  weight: 1
  httpTimeout: 2s
"""
        [settings] = read_kube_scheduler(text, "scheduler.yaml").extenders
        assert settings.seconds == 2
        found = await examined("extender", "nowhere", extenders=(settings,))
        said = " ".join(result.remedy for result in found)
        for remedy in ("nodeCacheCapable: true", "ignorable: true", "colocate scheduler serve"):
            assert remedy in said

    @pytest.mark.parametrize(
        ("https", "authority", "believed"), [(True, False, True), (False, False, False), (True, True, True)]
    )
    async def test_certificates_are_believed_as_kube_scheduler_believes_them(
        self, tmp_path: Path, https: bool, authority: bool, believed: bool
    ) -> None:
        signing = Authority.of(ObjectStore())
        pair = signing.server("extender")
        (tmp_path / "tls.crt").write_bytes(pair.certificate)
        (tmp_path / "tls.key").write_bytes(pair.key)
        (tmp_path / "ca.crt").write_bytes(signing.certificate)
        tls = ServerTls(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
        async with asking(SteeredJudge(), server(tls=tls)) as ask:
            settings = KubeExtender(
                ask.listening.url,
                "prioritize",
                weight=5,
                ignorable=True,
                enable_https=https,
                tls_config=ShownTls(ca_file=f"{tmp_path}/ca.crt") if authority else None,
            )
            [found] = await examined("extender", "nowhere", extenders=(settings,))
        assert (found.verdict is CheckVerdict.GOOD) == believed, found.reason
        assert believed or "cannot be reached: its certificate is not trusted, " in found.reason
        assert believed or "as caFile" in found.remedy

    @pytest.mark.parametrize(
        ("lacking", "called"), [("ca.crt", "caFile"), ("tls.crt", "certFile"), ("tls.key", "keyFile")]
    )
    async def test_a_file_that_is_elsewhere_is_named(self, tmp_path: Path, lacking: str, called: str) -> None:
        signing = Authority.of(ObjectStore())
        settings = with_files(tmp_path, signing.certificate, signing.client("kube-scheduler"))
        (tmp_path / lacking).unlink()
        [found] = await examined("extender", "nowhere", extenders=(settings,))
        assert found.verdict is CheckVerdict.WARN, "it may be right where kube-scheduler is"
        assert found.reason == (
            f"https://127.0.0.1:9: cannot read its {called} here: {tmp_path}/{lacking}: no such file or directory"
        )
        assert "kube-scheduler's pod" in found.remedy

    @pytest.mark.parametrize(
        ("broken", "called"), [("ca.crt", "caFile"), ("tls.crt", "certFile and keyFile")]
    )
    async def test_a_file_that_is_of_no_use_is_named(self, tmp_path: Path, broken: str, called: str) -> None:
        signing = Authority.of(ObjectStore())
        settings = with_files(tmp_path, signing.certificate, signing.client("kube-scheduler"))
        (tmp_path / broken).write_text("no certificate")
        [found] = await examined("extender", "nowhere", extenders=(settings,))
        assert found.verdict is CheckVerdict.BAD
        assert f"cannot use its {called}: {tmp_path}/{broken}" in found.reason
        assert "PEM" in found.remedy

    async def test_extenders_of_others_are_left_alone(self) -> None:
        others = [
            KubeExtender("http://127.0.0.1:9/binder"),
            KubeExtender("http://127.0.0.1:9/scheduler", "prioritize"),
            KubeExtender("http://127.0.0.1:9", "priorities", "predicates"),
        ]
        async with asking(SteeredJudge()) as ask:
            mine = KubeExtender(ask.listening.url, "prioritize", weight=5, ignorable=True)
            [found] = await examined("extender", "nowhere", extenders=(*others, mine))
        assert found.verdict is CheckVerdict.GOOD
        [none] = await examined("extender", "nowhere", extenders=tuple(others))
        assert "no extender is configured for" in none.reason

    def test_of_several_alike_the_one_at_the_configured_port_is_ours(self) -> None:
        alike = [KubeExtender(f"http://10.0.0.1:{port}", "prioritize") for port in (8888, 8890)]
        config = SchedulerConfig()
        assert ours(alike, config) == alike[1:]
        assert ours(alike[:1], config) == alike[:1], "a service may have another port"

    @pytest.mark.parametrize(
        ("plugins", "least"),
        [
            ("{}", 1),
            ("{score: {disabled: [{name: '*'}]}}", 1),
            ("{multiPoint: {disabled: [{name: '*'}], enabled: [{name: NodeAffinity, weight: 20}]}}", 2),
        ],
    )
    def test_the_weight_that_is_enough_depends_on_what_scores_beside_it(
        self, plugins: str, least: int
    ) -> None:
        text = f"kind: KubeSchedulerConfiguration\nprofiles: [{{schedulerName: a, plugins: {plugins}}}]"
        assert read_kube_scheduler(text, "scheduler.yaml").least_weight == least

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("1m30s", 90), ("500ms", 0.5), ("1.5h", 5400), ("0s", 5), ("250us", 0.00025), ("+.5s", 0.5)],
    )
    def test_a_timeout_is_read_as_go_reads_it(self, text: str, seconds: float) -> None:
        assert KubeExtender("http://x", http_timeout=text).seconds == pytest.approx(seconds)

    @pytest.mark.parametrize("text", ["banana", "5", "", "s", "1s 2s", "-", "1d"])
    def test_a_timeout_that_go_would_not_read_is_told(self, text: str) -> None:
        file = (
            f"kind: KubeSchedulerConfiguration\nextenders: [{{urlPrefix: 'http://x', httpTimeout: '{text}'}}]"
        )
        with pytest.raises(UserError, match="is not a span of time"):
            read_kube_scheduler(file, "x.yaml")

    async def test_what_is_no_configuration_is_the_users_error(self) -> None:
        with pytest.raises(UserError, match="not a KubeSchedulerConfiguration"):
            read_kube_scheduler("[]", "x.yaml")
