"""The configuration of a second kube-scheduler: complete, explained, weighed; and taken over from the seed's own."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from colocate.errors import UserError
from colocate.lab.scheduler import configuration
from colocate.lab.scheduler.configuration import Configuration, ExtenderSettings, ExtenderTls
from colocate.lab.scheduler.configuration import Profile as LabProfile
from colocate.scheduler.kube import configuration as kube_config
from colocate.scheduler.kube import seed as seed_config
from colocate.scheduler.kube.configuration import (
    KubeProfile,
    Plugin,
    PluginSet,
    TlsFiles,
    WantedConfiguration,
)

SEED = (Path(__file__).parents[1] / "data" / "seeds" / "001-scheduler.yaml").read_text()
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def read(wanted: WantedConfiguration) -> Configuration:
    """As the embedded cluster's scheduler reads it."""
    return configuration.read(kube_config.render(wanted))


class TestWritten:
    def test_a_second_scheduler_that_asks_the_extender(self) -> None:
        found = read(WantedConfiguration())
        assert found.profiles == (LabProfile("mem-real-usage-scheduler"),)
        assert found.extenders == (
            ExtenderSettings(
                "http://127.0.0.1:8890",
                prioritize_verb="prioritize",
                weight=1,
                http_timeout=1.0,
                node_cache_capable=True,
                ignorable=True,
            ),
        )
        assert found.ignored == ("leaderElection",)

    def test_a_lease_of_its_own(self) -> None:
        tree = yaml.safe_load(
            kube_config.render(WantedConfiguration(profiles=(KubeProfile("mine"), KubeProfile("yours"))))
        )
        assert tree["leaderElection"] == {
            "leaderElect": True,
            "resourceName": "mine",
            "resourceNamespace": "kube-system",
        }
        assert [profile["schedulerName"] for profile in tree["profiles"]] == ["mine", "yours"]

    def test_filtering_is_opted_in_to(self) -> None:
        assert read(WantedConfiguration()).extenders[0].filter_verb == ""
        assert read(WantedConfiguration(filter=True)).extenders[0].filter_verb == "filter"
        assert "load: {filter: {enabled: true}}" in kube_config.render(WantedConfiguration(filter=True))
        assert "load:" not in kube_config.render(WantedConfiguration())

    def test_gpus_are_chosen_by_a_second_extender_that_pods_wait_for(self) -> None:
        load, gpus = read(WantedConfiguration(gpus=("doslab.io/gpu-memory", "doslab.io/gpu-core"))).extenders
        assert load.bind_verb == ""
        assert gpus == ExtenderSettings(
            "http://127.0.0.1:8890/gpu",
            filter_verb="filter",
            prioritize_verb="prioritize",
            bind_verb="bind",
            weight=25,
            http_timeout=10.0,
            node_cache_capable=True,
            managed_resources=(
                configuration.ManagedResource("doslab.io/gpu-memory"),
                configuration.ManagedResource("doslab.io/gpu-core"),
            ),
            ignorable=False,
        )
        text = kube_config.render(WantedConfiguration(gpus=("x/y",), loads=False))
        tree = yaml.safe_load(text)
        assert [one["preemptVerb"] for one in tree["extenders"]] == ["preempt"]

    def test_no_extender_at_all_is_refused(self) -> None:
        with pytest.raises(UserError, match="would ask no extender"):
            kube_config.render(WantedConfiguration(loads=False))

    def test_https_with_all_its_files(self) -> None:
        wanted = WantedConfiguration(
            url="https://extender:8890/", tls=TlsFiles("/ca.crt", "/tls.crt", "/tls.key", "extender")
        )
        (extender,) = read(wanted).extenders
        assert (extender.url_prefix, extender.enable_https) == ("https://extender:8890", True)
        assert extender.tls == ExtenderTls(
            ca_file="/ca.crt", cert_file="/tls.crt", key_file="/tls.key", server_name="extender"
        )

    def test_https_without_an_authority_is_doubted(self) -> None:
        text = kube_config.render(WantedConfiguration(url="https://extender:8890"))
        assert "# No caFile: kube-scheduler accepts any certificate" in text
        assert configuration.read(text).extenders[0].enable_https

    @pytest.mark.parametrize("name", ["Mem.Real_usage", "yes", "1", "0x1F", "null", "1e3"])
    def test_any_name_is_read_as_it_was_said(self, name: str) -> None:
        assert read(WantedConfiguration(profiles=(KubeProfile(name),))).profiles == (LabProfile(name),)

    def test_every_line_of_the_extender_says_why(self) -> None:
        text = kube_config.render(WantedConfiguration(filter=True)).partition("extenders:\n")[2]
        assert [line for line in text.splitlines() if "#" not in line] == []

    @pytest.mark.parametrize(
        ("wanted", "complaint"),
        [
            (WantedConfiguration(url="extender:8890"), "write http:// or https://"),
            (
                WantedConfiguration(profiles=(KubeProfile("a"), KubeProfile("a"))),
                "several profiles have the scheduler name 'a'",
            ),
            (WantedConfiguration(tls=TlsFiles("/ca.crt")), "uses no certificates; write https://"),
            (
                WantedConfiguration(url="https://a", tls=TlsFiles(certificate="/c")),
                "a certificate needs its key",
            ),
            (WantedConfiguration(url="http://"), "write http:// or https://"),
            (WantedConfiguration(url="http://:8890"), "and HOST:PORT"),
            (WantedConfiguration(url="http://extender:port"), "and HOST:PORT"),
            (WantedConfiguration(url="http://extender:8890?a=b"), "and HOST:PORT"),
            (WantedConfiguration(timeout="banana"), "'banana' is not a span of time"),
            (WantedConfiguration(timeout="5"), "'5' is not a span of time"),
            (WantedConfiguration(timeout="-3s"), "-3s, must be more than 0"),
            (WantedConfiguration(timeout="0s"), "0s, must be more than 0"),
            (WantedConfiguration(profiles=(KubeProfile(""),)), "'' is not a valid scheduler name"),
            (
                WantedConfiguration(profiles=(KubeProfile("mem real"),)),
                "'mem real' is not a valid scheduler name",
            ),
            (WantedConfiguration(profiles=(KubeProfile("é"),)), "'é' is not a valid scheduler name"),
            (WantedConfiguration(profiles=(KubeProfile("x" * 64),)), "at most 63 characters"),
            (WantedConfiguration(points=0), "cannot score 0 points less"),
        ],
    )
    def test_what_cannot_be_had_is_refused_in_a_sentence(
        self, wanted: WantedConfiguration, complaint: str
    ) -> None:
        with pytest.raises(UserError, match=complaint):
            kube_config.render(wanted)


class TestWeight:
    @pytest.mark.parametrize("points", [1, 20, 50, 100])
    def test_so_many_points_outweigh_all_that_the_others_can_say(self, points: int) -> None:
        """kube-scheduler adds up 100 × weight of each plugin at most, and score × weight × 10 of the extender."""
        (extender,) = read(WantedConfiguration(points=points)).extenders
        others = 100 * (3 + 2 + 2 + 2 + 1 + 1 + 1)
        assert points * extender.weight * 10 > others
        assert points * (extender.weight - 1) * 10 <= others

    def test_plugins_of_the_profile_count_with_their_own_weights(self) -> None:
        score = PluginSet(
            disabled=(Plugin("ImageLocality"),), enabled=(Plugin("NodeResourcesFit", 5), Plugin("Another"))
        )
        heavy = kube_config.extender_weight(
            WantedConfiguration(profiles=(KubeProfile(plugins={"score": score}),))
        )
        assert heavy.others == 1200 - 100 + 400 + 100

    def test_what_is_said_of_all_points_counts_for_scores_too(self) -> None:
        plugins = {
            "multiPoint": PluginSet(
                disabled=(Plugin("ImageLocality"),), enabled=(Plugin("NodeAffinity", 9), Plugin("NodePorts"))
            ),
            "score": PluginSet(disabled=(Plugin("TaintToleration"),)),
        }
        heavy = kube_config.extender_weight(WantedConfiguration(profiles=(KubeProfile(plugins=plugins),)))
        assert heavy.others == 1200 - 100 + 700 - 300

    def test_the_heaviest_profile_decides(self) -> None:
        alone = KubeProfile("alone", {"score": PluginSet(disabled=(Plugin("*"),))})
        assert kube_config.extender_weight(WantedConfiguration(profiles=(alone,))).weight == 1
        usual = WantedConfiguration(profiles=(alone, KubeProfile("usual")))
        assert kube_config.extender_weight(usual).weight == 1
        assert kube_config.extender_weight(msgspec.structs.replace(usual, points=25)).weight == 5
        heavy = KubeProfile("heavy", {"score": PluginSet(enabled=(Plugin("ImageLocality", 30),))})
        assert kube_config.extender_weight(WantedConfiguration(profiles=(alone, heavy))).weight == 4


class TestSeed:
    def test_its_own_file(self) -> None:
        seed = seed_config.read(SEED, "seed.yaml")
        assert seed.prometheus == seed_config.Asking("http://10.96.0.102:9090", 10, 10)
        assert seed.policies == {"mem-real-usage-scheduler": "mem-real-usage"}
        (doubt,) = seed.doubts
        assert "'colocate scheduler kube-config --with-score-plugins' brings them back" in doubt
        found = read(seed_config.taken_over(seed, WantedConfiguration()))
        assert found.profiles == (LabProfile("mem-real-usage-scheduler"),)
        assert found.extenders[0].weight == 1, "there is no plugin to outweigh"
        tree = yaml.safe_load(kube_config.render(seed_config.taken_over(seed, WantedConfiguration())))
        assert tree["leaderElection"] == {"leaderElect": False}
        assert tree["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}
        assert tree["profiles"] == [
            {"schedulerName": "mem-real-usage-scheduler", "plugins": {"score": {"disabled": [{"name": "*"}]}}}
        ]

    def test_with_the_other_score_plugins(self) -> None:
        seed = seed_config.read(SEED, "seed.yaml", others_score=True)
        assert seed.doubts == ()
        tree = yaml.safe_load(kube_config.render(seed_config.taken_over(seed, WantedConfiguration())))
        assert tree["profiles"] == [{"schedulerName": "mem-real-usage-scheduler"}]
        assert tree["extenders"][0]["weight"] == 5

    def test_all_its_profiles_and_what_is_not_its_own(self) -> None:
        seed = seed_config.read(
            HEAD
            + """
parallelism: 8
extenders: [{urlPrefix: "http://other", filterVerb: filter}]
profiles:
- schedulerName: mem
  plugins: {score: {enabled: [{name: MemRealUsage}]}}
  pluginConfig:
  - {name: MemRealUsage, args: {prometheusApiAddr: "http://prometheus:9090/", queryMetricTimeSeconds: 5}}
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}
- schedulerName: both
  percentageOfNodesToScore: 50
  plugins:
    score: {enabled: [{name: MemRealUsage, weight: 2}, {name: CpuRealUsage}, {name: NodeResourcesFit, weight: 4}]}
    filter: {disabled: [{name: NodePorts}]}
  pluginConfig: [{name: CpuRealUsage, args: {queryMetricIntervalSeconds: 30, colour: red}}]
- schedulerName: plain
""",
            "seed.yaml",
        )
        assert seed.policies == {"mem": "mem-real-usage", "both": "mem-real-usage=2,cpu-real-usage=1"}
        assert seed.prometheus == seed_config.Asking("http://prometheus:9090", 5, 30)
        assert seed.doubts == (
            "profiles[1].pluginConfig[0].args.colour: CpuRealUsage has no such argument, so it is left out",
            "profiles[1].pluginConfig[0].args differs from the profile before it; "
            "the last profile sets Prometheus for all",
        )
        tree = yaml.safe_load(kube_config.render(seed_config.taken_over(seed, WantedConfiguration())))
        assert tree["parallelism"] == 8
        assert [extender["urlPrefix"] for extender in tree["extenders"]] == [
            "http://other",
            "http://127.0.0.1:8890",
        ]
        mem, both, plain = tree["profiles"]
        assert mem == {
            "schedulerName": "mem",
            "pluginConfig": [
                {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}
            ],
        }
        assert both == {
            "schedulerName": "both",
            "percentageOfNodesToScore": 50,
            "plugins": {
                "score": {"enabled": [{"name": "NodeResourcesFit", "weight": 4}]},
                "filter": {"disabled": [{"name": "NodePorts"}]},
            },
        }
        assert plain == {"schedulerName": "plain"}

    @pytest.mark.parametrize("args", ["text", ["a", 1], 7, {"prometheusApiAddr": 3}], ids=str)
    def test_the_arguments_of_another_plugin_may_be_anything(self, args: object) -> None:
        opaque = {"name": "Opaque", "args": args}
        score = {"enabled": [{"name": "MemRealUsage"}]}
        profile = {"schedulerName": "mem", "plugins": {"score": score}, "pluginConfig": [opaque]}
        seed = seed_config.read(f"{HEAD}\nprofiles: {json.dumps([profile])}", "seed.yaml")
        tree = yaml.safe_load(kube_config.render(seed_config.taken_over(seed, WantedConfiguration())))
        assert tree["profiles"] == [{"schedulerName": "mem", "pluginConfig": [opaque]}]

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("{", "this is not YAML"),
            ("- a", "is not a KubeSchedulerConfiguration"),
            ("kind: Pod\napiVersion: v1", "this is a Pod of v1"),
            ("kind: Pod", "this is a Pod without apiVersion; give a KubeSchedulerConfiguration of"),
            ("version: 1", "this is a mapping without apiVersion and kind"),
            (HEAD, "no profile enables MemRealUsage or CpuRealUsage"),
            (HEAD + "profiles: 3", "profiles: 3 is not a list; write it as"),
            (HEAD + "profiles: [a]", r"profiles\[0\]: 'a' is not a mapping; write 'field: value' lines"),
            (
                SEED.replace("- name: MemRealUsage", "- MemRealUsage", 1),
                r"profiles\[0\].plugins.score.enabled\[0\]: 'MemRealUsage' is not a mapping; .* of name, weight",
            ),
            (
                SEED.replace("- name: MemRealUsage", "  name: MemRealUsage", 1),
                r"profiles\[0\].plugins.score.enabled: a mapping is not a list; write it as .* '-' per item",
            ),
            (
                SEED.replace("- name: MemRealUsage", "- name: MemRealUsage\n        weight: x", 1),
                r"enabled\[0\].weight: 'x' is not a whole number",
            ),
            (
                SEED.replace("mem-real-usage-scheduler", "true"),
                "schedulerName: true is not text; put it in quotes",
            ),
            (SEED.replace("  leaderElect: false", "  true"), "leaderElection: true is not a mapping"),
            (SEED + "extenders: true", "extenders: true is not a list"),
            (
                SEED + "extenders: [{urlPrefix: 'http://a', httpTimeout: soon}]",
                "'soon' is not a span of time",
            ),
            (SEED + "profile: 2024-13-40", "this is not YAML .* correct it"),
            (SEED + "a: &a [*a]", "this is not YAML .* correct it"),
            (SEED.replace("http://10.96.0.102:9090", "10.96.0.102"), "is not an http or https address"),
            (
                SEED.replace("queryMetricTimeSeconds: 10", "queryMetricTimeSeconds: soon"),
                r"profiles\[0\].pluginConfig\[0\].args.queryMetricTimeSeconds: 'soon' is not a number",
            ),
            (
                SEED + "- {pluginConfig: [{name: CpuRealUsage, args: text}]}",
                r"profiles\[1\].pluginConfig\[0\].args: 'text' is not a mapping; .* of prometheusApiAddr",
            ),
            (
                SEED.replace("queryMetricTimeSeconds: 10", "queryMetricTimeSeconds: .inf"),
                "inf is not a number of seconds",
            ),
        ],
    )
    def test_another_file_is_refused_in_a_sentence(self, text: str, complaint: str) -> None:
        with pytest.raises(UserError, match=complaint) as refused:
            seed_config.read(text, "seed.yaml")
        assert str(refused.value).startswith("seed.yaml: ")

    @pytest.mark.parametrize(
        "stated", ["leaderElect: true", "leaseDuration: 20s", "resourceName: kube-scheduler"]
    )
    def test_a_second_scheduler_does_not_share_the_lease_of_the_first(self, stated: str) -> None:
        text = SEED.replace("leaderElect: false", stated)
        seed = seed_config.read(text, "seed.yaml", others_score=True)
        assert seed.leader_election is not None
        assert seed.leader_election["resourceName"] == "mem-real-usage-scheduler"
        assert "would share the lease 'kube-scheduler'" in seed.doubts[0]

    def test_the_first_scheduler_and_a_lease_of_its_own_stay_as_they_are(self) -> None:
        first = SEED.replace("leaderElect: false", "leaderElect: true").replace(
            "schedulerName: mem-real-usage-scheduler", "schedulerName: default-scheduler"
        )
        own = SEED.replace("leaderElect: false", "{leaderElect: true, resourceName: mine}")
        for text, left in (
            (first, {"leaderElect": True}),
            (own, {"leaderElect": True, "resourceName": "mine"}),
        ):
            seed = seed_config.read(text, "seed.yaml", others_score=True)
            assert (seed.leader_election, seed.doubts) == (left, ())

    def test_a_password_is_not_printed(self) -> None:
        text = SEED.replace("http://10.96.0.102", "http://me:sesame@10.96.0.102")
        seed = seed_config.read(text, "seed.yaml")
        said = "\n".join((*seed_config.for_our_settings(seed), *seed.doubts))
        assert "sesame" not in said
        assert "Prometheus http://10.96.0.102:9090," in said
        assert "usage.prometheus.username and passwordFile" in said
        with pytest.raises(UserError) as refused:
            seed_config.read(text.replace("http:", "ftp:"), "seed.yaml")
        assert "sesame" not in str(refused.value)

    def test_without_prometheus_it_is_doubted(self) -> None:
        text = SEED.replace("prometheusApiAddr: http://10.96.0.102:9090", "other: 3")
        assert any("prometheusApiAddr" in doubt for doubt in seed_config.read(text, "seed.yaml").doubts)
