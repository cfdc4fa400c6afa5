"""The queries of every preset, and the rules that they need, as Prometheus itself reads them."""

import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from colocate.cluster.usage import Preset, Statistic, UsageSettings, Window, queries, rules
from colocate.cluster.usage.presets import RELABELLING, SERVICE_MONITOR
from colocate.cluster.usage.signals import duration
from colocate.errors import UserError
from colocate.model.values import Seconds
from tests.support import components

EVERYTHING = tuple(
    Window(statistic, Seconds(seconds))
    for statistic in Statistic
    if statistic not in (Statistic.USE, Statistic.POD)
    for seconds in (300.0, 3600.0, 90.0)
)


def promql(settings: UsageSettings) -> dict[str, str]:
    made = queries(settings)
    return {str(query.signal): query.promql for query in made.signals} | {"time": made.time}


def check_rules(path: Path) -> None:
    done = subprocess.run(
        [str(components.find("promtool")), "check", "rules", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("matchers", ["", 'cluster="prod"'])
@pytest.mark.parametrize("average", [0.0, 300.0])
@pytest.mark.parametrize("preset", Preset)
def test_prometheus_can_parse_every_query(
    preset: Preset, average: float, matchers: str, tmp_path: Path
) -> None:
    made = promql(
        UsageSettings(
            preset=preset, average=Seconds(average), windows=EVERYTHING, pods=True, matchers=matchers
        )
    )
    assert len(made) == 2 + 2 * len(EVERYTHING) + 2 + 1
    assert all(matchers in query for query in made.values())
    recorded = [{"record": f"q{number}", "expr": query} for number, query in enumerate(made.values())]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    check_rules(path)


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("seconds", [300.0, 2.5])
def test_prometheus_accepts_the_rule_file(seconds: float, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(rules(Preset.REAL_USAGE, seconds))
    check_rules(path)


def test_the_rules_record_what_the_preset_asks_for() -> None:
    [group] = yaml.safe_load(rules(Preset.REAL_USAGE))["groups"]
    asked = promql(UsageSettings(preset=Preset.REAL_USAGE))
    assert [rule["record"] for rule in group["rules"]] == [asked["cpu"], asked["memory"]]


def test_the_former_name_of_a_preset_is_still_read() -> None:
    assert msgspec.convert({"preset": "seed"}, UsageSettings).preset is Preset.REAL_USAGE
    with pytest.raises(msgspec.ValidationError, match="'seeds'"):
        msgspec.convert({"preset": "seeds"}, UsageSettings)


@pytest.mark.parametrize("preset", [Preset.NODE_EXPORTER, Preset.KUBE_PROMETHEUS_STACK])
def test_the_other_presets_need_no_rules(preset: Preset) -> None:
    assert rules(preset) == ""


def test_what_adds_the_label_is_yaml() -> None:
    assert yaml.safe_load(RELABELLING)["relabel_configs"][0]["target_label"] == "node"
    assert yaml.safe_load(SERVICE_MONITOR)["relabelings"][0]["targetLabel"] == "node"


def test_a_query_of_the_users_own_goes_over_the_presets() -> None:
    made = promql(UsageSettings(queries={"cpu": "my_cpu", "time": ""}))
    assert made == {"cpu": "my_cpu", "memory": "node_mem_usage_avg_5m", "time": ""}


def test_a_query_for_a_signal_that_is_not_asked_for_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"queries: cpus is not one of the signals; these are cpu, memory, time"
    ):
        queries(UsageSettings(queries={"cpus": "my_cpu"}))


@pytest.mark.parametrize("window", [Window(Statistic.P95, Seconds(0)), Window(Statistic.USE, Seconds(60))])
def test_a_window_that_cannot_be_is_refused(window: Window) -> None:
    with pytest.raises(UserError, match="cannot be asked for; give one of deviation, avg, p50"):
        queries(UsageSettings(windows=(window,)))


def test_the_percentile_of_what_is_used_is_the_other_one_of_what_is_available() -> None:
    made = promql(UsageSettings(preset=Preset.NODE_EXPORTER, windows=(Window(Statistic.P95, Seconds(3600)),)))
    assert made["memory.p95.1h"] == (
        "100 * (1 - quantile_over_time(0.05, node_memory_MemAvailable_bytes[1h])"
        " / node_memory_MemTotal_bytes)"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(300, "5m"), (3600, "1h"), (90, "90s"), (0.5, "500ms"), (2.5, "2500ms"), (0, "1ms")]
)
def test_durations_are_written_as_prometheus_reads_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


STEADY = "0+15x20"
"""Half a core, told every 30 seconds."""
ENDED, BEGUN = "0+15x6 stale", "_x6 0+15x14"
"""The same, by the two lives of a container that is started again."""
GIB = 1 << 30
HELD = f"{GIB}+0x20"


def container(**labels: str) -> str:
    """The labels of one of cAdvisor's series, with what is said otherwise; an empty one is not there."""
    stated = {
        "namespace": "d",
        "pod": "p",
        "container": "main",
        "id": "/1",
        "image": "i",
        "name": "c1",
        **labels,
    }
    return "{" + ", ".join(f'{name}="{value}"' for name, value in stated.items() if value) + "}"


def says(metric: str, signal: str, expected: float, series: dict[str, str], folder: Path) -> str:
    """What Prometheus has against it that the pod uses so much after six minutes, give or take a fifteenth."""
    query = promql(UsageSettings(pods=True))[signal]
    about = f"abs({query} - {expected:g}) <= bool {expected / 15:g}"
    test = {
        "interval": "30s",
        "input_series": [{"series": metric + labels, "values": values} for labels, values in series.items()],
        "promql_expr_test": [
            {
                "expr": about,
                "eval_time": "6m",
                "exp_samples": [{"labels": '{namespace="d", pod="p"}', "value": 1}],
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump({"tests": [test]}))
    done = subprocess.run(
        [str(components.find("promtool")), "test", "rules", str(path)], capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


TWICE = [
    pytest.param({"prometheus_replica": "a"}, {"prometheus_replica": "b"}, id="two replicas"),
    pytest.param({"job": "kubelet"}, {"job": "cadvisor"}, id="two jobs"),
    pytest.param({"job": "kubelet"}, {"job": "cadvisor", "id": "/docker/1"}, id="two jobs, other groups"),
    pytest.param(
        {"job": "kubelet"}, {"job": "cadvisor", "id": "", "name": ""}, id="two jobs, one without groups"
    ),
    pytest.param({}, {"image": ""}, id="once without an image"),
    pytest.param({"job": "kubelet", "cpu": "total"}, {"job": "cadvisor"}, id="two jobs, one without CPUs"),
    pytest.param({}, {"container": "", "image": "", "name": "", "id": "/"}, id="its whole group"),
    pytest.param({}, {"container": "POD", "id": "/2", "name": "c2"}, id="its sandbox"),
]


@pytest.mark.needs("promtool")
@pytest.mark.parametrize(("one", "other"), TWICE)
def test_what_is_told_twice_of_a_pod_counts_once(
    one: dict[str, str], other: dict[str, str], tmp_path: Path
) -> None:
    cpu = {container(**one): STEADY, container(**other): STEADY}
    assert not says("container_cpu_usage_seconds_total", "pod.cpu", 500, cpu, tmp_path)
    memory = {container(**one): HELD, container(**other): HELD}
    assert not says("container_memory_working_set_bytes", "pod.memory", GIB, memory, tmp_path)


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("replicas", [("",), ("a", "b")], ids=["one", "pair"])
def test_containers_of_a_pod_are_summed(replicas: tuple[str, ...], tmp_path: Path) -> None:
    both = [
        container(
            prometheus_replica=replica, container=name, id=f"/{name}", name=name, container_label_of=name
        )
        for replica in replicas
        for name in ("main", "sidecar")
    ]
    assert not says(
        "container_cpu_usage_seconds_total", "pod.cpu", 1000, dict.fromkeys(both, STEADY), tmp_path
    )
    held = dict.fromkeys(both, HELD)
    assert not says("container_memory_working_set_bytes", "pod.memory", 2 * GIB, held, tmp_path)


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("replicas", [("",), ("a", "b")], ids=["one", "pair"])
def test_the_lives_of_a_container_add_up_to_its_cpu_and_its_memory_is_that_of_one(
    replicas: tuple[str, ...], tmp_path: Path
) -> None:
    cpu: dict[str, str] = {}
    memory: dict[str, str] = {}
    for replica in replicas:
        lives = [container(prometheus_replica=replica, id=f"/{life}", name=life) for life in ("c1", "c2")]
        cpu |= dict(zip(lives, (ENDED, BEGUN), strict=True))
        memory |= dict.fromkeys(lives, HELD)
    assert not says("container_cpu_usage_seconds_total", "pod.cpu", 500, cpu, tmp_path)
    assert not says("container_memory_working_set_bytes", "pod.memory", GIB, memory, tmp_path)


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("replicas", [("",), ("a", "b")], ids=["one", "pair"])
def test_what_is_told_of_each_cpu_by_itself_adds_up(replicas: tuple[str, ...], tmp_path: Path) -> None:
    each = [
        container(prometheus_replica=replica, cpu=cpu) for replica in replicas for cpu in ("cpu00", "cpu01")
    ]
    cpu = dict.fromkeys(each, STEADY)
    assert not says("container_cpu_usage_seconds_total", "pod.cpu", 1000, cpu, tmp_path)
