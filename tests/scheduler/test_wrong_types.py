"""Whatever is in the place of a value in a file that somebody gives: it is used, or refused in a sentence."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from colocate.cli import scheduler_pod_file, scheduler_questions, scheduler_tables
from colocate.config.file import Underlay, build_document
from colocate.errors import UserError
from colocate.load import PolicyName, compare, decide, explain_all, mix, snapshot, top
from colocate.load.api_objects import pod_facts
from colocate.load.tolerations import Toleration, open_to
from colocate.model.load import (
    Access,
    Aggregate,
    Aggregation,
    Amount,
    BoundPod,
    NodeFacts,
    NodeLoad,
    PodUsage,
    Taint,
    Usage,
)
from colocate.scheduler.kube import configuration as kube_config
from colocate.scheduler.kube import seed as seed_config
from colocate.scheduler.kube.configuration import TlsFiles, WantedConfiguration
from colocate.scheduler.kube.extender import read_kube_scheduler
from colocate.scheduler.kube.seed import over_seed
from colocate.scheduler.settings import SCHEDULER, SchedulerConfig
from tests.load.facts import GIB, NOW, SIZE, load, pod, table

T = TypeVar("T")
Steps = tuple[str | int, ...]
"""The way to a node of a tree."""
SEED = yaml.safe_load((Path(__file__).parents[1] / "data" / "seeds" / "001-scheduler.yaml").read_text())
SEED["extenders"] = [{"urlPrefix": "http://x:1", "filterVerb": "f", "httpTimeout": "1s", "weight": 1}]
SEED["profiles"][0]["plugins"]["score"]["enabled"].append({"name": "NodeResourcesFit", "weight": 2})
SEED["profiles"][0]["plugins"]["multiPoint"] = {"enabled": [{"name": "CpuRealUsage", "weight": 3}]}
SEED["profiles"][0]["pluginConfig"].append({"name": "NodeResourcesFit", "args": {"scoringStrategy": {}}})
PRINTED = yaml.safe_load(
    kube_config.render(
        WantedConfiguration(
            url="https://x:1", filter=True, tls=TlsFiles("/ca.crt", "/tls.crt", "/tls.key", "extender")
        )
    )
)
POD = {
    "metadata": {
        "name": "p",
        "namespace": "default",
        "uid": "runs",
        "labels": {"a": "b"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": True}],
    },
    "spec": {
        "schedulerName": "s",
        "priority": 9000,
        "containers": [
            {"name": "c", "resources": {"requests": {"cpu": "1", "memory": 5}, "limits": {"cpu": 2.5}}}
        ],
        "initContainers": [{"name": "i", "restartPolicy": "Always"}],
        "overhead": {"cpu": "100m"},
        "tolerations": [{"key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"}],
    },
}
MAKER = {"metadata": {"name": "d"}, "spec": {"jobTemplate": {"spec": {"template": POD}}}}


def _snapshot() -> Any:
    made = table({"a": load(10, 20), "b": load(50, 60, deviation=3), "silent": NodeLoad()})
    hour = (Aggregate(Aggregation.P95, 3600, 70),)
    made.add_nodes([NodeFacts("c", SIZE, SIZE, access=Access(True, (Taint("gpu", "NoSchedule", "a100"),)))])
    made.observe({"c": NodeLoad(Usage(5, NOW, 1, hour), Usage(5, NOW, 1, hour))}, NOW)
    for uid, name in (("runs", "a"), ("other", "b")):
        made.bind(BoundPod(pod(uid, 1000, GIB, owner="default/ReplicaSet/r"), name, NOW - 30))
    made.observe_pods({"runs": PodUsage(Amount(10, GIB), NOW, prod=True)})
    decide(made, pod("under-way"), ["a", "b"], NOW)
    return msgspec.json.decode(snapshot.encode(snapshot.take(made)))


SNAPSHOT = _snapshot()

scalars = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 7, 2**31, 2**70, 0.0, 1.5, -0.5, 1e308])
    | st.sampled_from(["", "x", "0", "MemRealUsage", "*", "1s", "balanced", "http://me:secret@x"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "a", "weight", "spec"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def paths(tree: Any, before: Steps = ()) -> Iterator[Steps]:
    yield before
    if isinstance(tree, Mapping):
        for name, inner in tree.items():
            yield from paths(inner, (*before, name))
    elif isinstance(tree, list):
        for index, inner in enumerate(tree):
            yield from paths(inner, (*before, index))


def put(tree: Any, path: Steps, value: Any) -> Any:
    if not path:
        return value
    changed = deepcopy(tree)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return changed


def changed(tree: Any) -> st.SearchStrategy[Any]:
    """The tree with any other value in the place of one of its nodes."""
    return st.builds(put, st.just(tree), st.sampled_from(list(paths(tree))), values)


def use_seed(text: str) -> None:
    seed = seed_config.read(text, "seed.yaml")
    kube_config.render(seed_config.taken_over(seed, WantedConfiguration()))
    assert list(seed_config.for_our_settings(seed))

    def read(said: Mapping[str, Any]) -> SchedulerConfig:
        return build_document(
            SCHEDULER, b"version: 1", "scheduler.yaml", {}, (), Underlay(said, "--from")
        ).config

    over_seed(seed, read)


def use_printed(text: str) -> None:
    found = read_kube_scheduler(text, "kube-scheduler.yaml")
    assert found.least_weight >= 1
    assert all(extender.seconds and extender.tls for extender in found.extenders)


def use_pod(file: Path) -> None:
    given = scheduler_pod_file.read(file)
    made = table({"a": load(10, 20)})
    wanted = made.settings.policy_of(given.pod.spec.scheduler_name)
    names, _ = open_to(given.tolerations, made.nodes)
    decide(made, pod_facts(given.pod), names, NOW, mix=wanted)


def use_snapshot(blob: bytes) -> None:
    facts = snapshot.without(scheduler_questions.decoded(blob, "facts.json"), pod("runs"))
    made = snapshot.restore(facts)
    names, _ = open_to([Toleration(operator="Exists")], made.nodes)
    assert list(scheduler_tables.top(top(made)))
    for policy in PolicyName:
        answer = decide(made, pod("new"), names, made.now, mix=mix(policy), assume=False)
        assert list(
            scheduler_tables.explanation(explain_all(answer.decision, made.settings, answer.candidates))
        )
    decide(made, pod("new"), names, made.now, mix=made.settings.policy_of("s"), assume=False)
    compared = compare(made, pod("new"), names, mix("balanced"), mix("oversell"), made.now)
    assert list(scheduler_tables.comparison(compared))


def refusal(use: Callable[[T], None], what: T) -> str:
    """The sentence by which it is refused; "" where it is used. Any other exception is a fault."""
    try:
        use(what)
    except UserError as error:
        return str(error)
    return ""


@given(changed(SEED))
def test_a_file_of_the_seeds_is_used_or_refused(tree: Any) -> None:
    assert "\n" not in refusal(use_seed, yaml.safe_dump(tree))


@given(changed(PRINTED))
def test_a_printed_configuration_is_used_or_refused(tree: Any) -> None:
    assert "\n" not in refusal(use_printed, yaml.safe_dump(tree))


@given(changed(POD) | changed(MAKER))
def test_a_pod_is_used_or_refused(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "pod.yaml"
    file.write_text(yaml.safe_dump(tree))
    assert "\n" not in refusal(use_pod, file)


@given(changed(SNAPSHOT))
def test_a_snapshot_is_used_or_refused(tree: Any) -> None:
    assert "\n" not in refusal(use_snapshot, msgspec.json.encode(tree))


def test_all_of_them_are_used_as_they_are(tmp_path: Path) -> None:
    use_seed(yaml.safe_dump(SEED))
    use_printed(yaml.safe_dump(PRINTED))
    use_snapshot(msgspec.json.encode(SNAPSHOT))
    for tree in (POD, MAKER):
        file = tmp_path / "pod.yaml"
        file.write_text(yaml.safe_dump(tree))
        use_pod(file)
