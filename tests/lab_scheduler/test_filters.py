"""Every filter, with kube-scheduler's words for its no."""

from typing import Any

import pytest

from colocate.lab.api.objects import Object
from colocate.lab.scheduler.filters import FilterCause, check
from colocate.lab.scheduler.requests import Account, PodRequests

from .lab import GPU, node, node_facts, pod, pod_facts, taint

CORDONED = "node(s) were unschedulable"
SELECTOR = "node(s) didn't match Pod's node affinity/selector"


def reasons(pod_body: Object, node_body: Object, account: Account | None = None) -> tuple[str, ...]:
    rejection = check(pod_facts(pod_body), node_facts(node_body), account or Account())
    return rejection.reasons if rejection else ()


def test_a_plain_pod_goes_to_a_plain_node() -> None:
    assert reasons(pod(), node()) == ()


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    cordoned = node()
    cordoned["spec"]["unschedulable"] = True
    assert reasons(pod(), cordoned) == (CORDONED,)
    tolerating = pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert reasons(tolerating, cordoned) == ()


def test_a_pod_with_a_node_name_goes_nowhere_else() -> None:
    assert reasons(pod(nodeName="n"), node("n")) == ()
    assert reasons(pod(nodeName="m"), node("n")) == ("node(s) didn't match the requested node name",)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (None, False),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "a", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "a", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "a", "operator": "Equal", "value": "1"}, True),
        ({"key": "a", "value": "1"}, True),
        ({"key": "a", "operator": "Equal", "value": "2"}, False),
        ({"key": "a", "operator": "Equal"}, False),
        ({"key": "b", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
    ],
)
def test_taints_and_tolerations(toleration: Object | None, tolerated: bool) -> None:
    wishes = pod(tolerations=[toleration] if toleration else [])
    expected = () if tolerated else ("node(s) had untolerated taint {a: 1}",)
    assert reasons(wishes, node(taints=[taint("a", value="1")])) == expected


@pytest.mark.parametrize(
    ("effect", "kept_away"), [("NoSchedule", True), ("NoExecute", True), ("PreferNoSchedule", False)]
)
def test_which_taints_keep_away(effect: str, kept_away: bool) -> None:
    said = reasons(pod(), node(taints=[taint("a", effect)]))
    assert said == (("node(s) had untolerated taint {a: }",) if kept_away else ())


def test_the_first_taint_that_is_not_tolerated_is_named() -> None:
    wishes = pod(tolerations=[{"key": "a", "operator": "Exists"}])
    tainted = node(taints=[taint("a"), taint("b", "PreferNoSchedule"), taint("c", value="x"), taint("d")])
    assert reasons(wishes, tainted) == ("node(s) had untolerated taint {c: x}",)


def _required(*terms: Object) -> Object:
    selector = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}


def _expression(key: str, operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        (_expression("zone", "In", "z1", "z2"), True),
        (_expression("zone", "In", "z2"), False),
        (_expression("absent", "In", "z1"), False),
        (_expression("zone", "NotIn", "z2"), True),
        (_expression("zone", "NotIn", "z1"), False),
        (_expression("absent", "NotIn", "z1"), True),
        (_expression("zone", "Exists"), True),
        (_expression("absent", "Exists"), False),
        (_expression("zone", "DoesNotExist"), False),
        (_expression("absent", "DoesNotExist"), True),
        (_expression("cores", "Gt", "63"), True),
        (_expression("cores", "Gt", "64"), False),
        (_expression("cores", "Lt", "65"), True),
        (_expression("cores", "Lt", "64"), False),
        (_expression("zone", "Gt", "1"), False),
        (_expression("absent", "Lt", "1"), False),
        (_expression("cores", "Gt", "many"), False),
        (_expression("cores", "Gt"), False),
        (_expression("zone", "Resembles", "z1"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["m"]}]}, True),
        ({"matchFields": [{"key": "metadata.uid", "operator": "NotIn", "values": ["m"]}]}, False),
        ({}, False),
    ],
)
def test_required_node_affinity(term: Object, matches: bool) -> None:
    wishes = pod(affinity=_required(term))
    target = node("n", labels={"zone": "z1", "cores": "64"})
    assert reasons(wishes, target) == (() if matches else (SELECTOR,))


def test_one_term_is_enough_but_all_of_its_requirements_count() -> None:
    target = node("n", labels={"zone": "z1"})
    no, yes = _expression("zone", "In", "z2"), _expression("zone", "In", "z1")
    assert reasons(pod(affinity=_required(no, yes)), target) == ()
    both = {"matchExpressions": no["matchExpressions"] + yes["matchExpressions"]}
    assert reasons(pod(affinity=_required(both)), target) == (SELECTOR,)
    assert reasons(pod(affinity=_required()), target) == (SELECTOR,), "no term at all matches nothing"


@pytest.mark.parametrize(
    ("selector", "matches"), [({"zone": "z1"}, True), ({"zone": "z2"}, False), ({"a": ""}, False), ({}, True)]
)
def test_node_selector(selector: dict[str, str], matches: bool) -> None:
    said = reasons(pod(nodeSelector=selector), node(labels={"zone": "z1"}))
    assert said == (() if matches else (SELECTOR,))


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({"cpu": "1", "memory": "1Gi"}, ()),
        ({"cpu": "1001m"}, ("Insufficient cpu",)),
        ({"memory": "8193Mi"}, ("Insufficient memory",)),
        ({"cpu": "2", "memory": "9Gi"}, ("Insufficient cpu", "Insufficient memory")),
        ({GPU: "2"}, ()),
        ({GPU: "3"}, (f"Insufficient {GPU}",)),
        ({"test.com/unknown": "1"}, ("Insufficient test.com/unknown",)),
        ({"ephemeral-storage": "1"}, ("Insufficient ephemeral-storage",)),
        ({"cpu": "0", "test.com/unknown": "0"}, ()),
    ],
)
def test_resources(requests: Object, expected: tuple[str, ...]) -> None:
    account = Account()
    account.enter("other", PodRequests({"cpu": 3000, "memory": 8 * 1024**3, GPU: 2}))
    assert reasons(pod(requests=requests), node(gpu="4"), account) == expected


def test_the_number_of_pods() -> None:
    account = Account()
    account.enter("other", PodRequests())
    assert reasons(pod(), node(pods="2"), account) == ()
    assert reasons(pod(requests={"cpu": "9"}), node(pods="1"), account) == (
        "Too many pods",
        "Insufficient cpu",
    )
    silent = node()
    del silent["status"]["allocatable"]["pods"]
    assert reasons(pod(), silent) == ("Too many pods",), "as for kube-scheduler"


def test_resources_that_an_extender_counts_are_passed_over() -> None:
    wishes = pod_facts(pod(requests={GPU: "3"}))
    assert check(wishes, node_facts(), Account(), frozenset({GPU})) is None
    assert check(wishes, node_facts(), Account()) is not None


@pytest.mark.parametrize(
    ("given", "cause", "curable"),
    [
        ({"requests": {"cpu": "3"}}, FilterCause.RESOURCES, True),
        ({"requests": {"cpu": "5"}}, FilterCause.RESOURCES, False),
        ({"nodeSelector": {"a": "b"}}, FilterCause.LABELS, False),
        ({"nodeName": "m"}, FilterCause.NAME, False),
    ],
)
def test_what_a_rejection_comes_from_and_whether_preemption_may_help(
    given: Any, cause: FilterCause, curable: bool
) -> None:
    account = Account()
    account.enter("other", PodRequests({"cpu": 2000}))
    rejection = check(pod_facts(pod(**given)), node_facts(), account)
    assert rejection is not None
    assert (rejection.cause, rejection.curable) == (cause, curable)


def test_the_first_filter_speaks_for_a_node() -> None:
    bad = node(taints=[taint("a")], cpu="0")
    bad["spec"]["unschedulable"] = True
    wishes = pod(requests={"cpu": "1"}, nodeSelector={"x": "y"})
    assert reasons(wishes, bad) == (CORDONED,)
    bad["spec"]["unschedulable"] = False
    assert reasons(wishes, bad) == ("node(s) had untolerated taint {a: }",)
    bad["spec"]["taints"] = []
    assert reasons(wishes, bad) == (SELECTOR,)
