"""The section about CPUs: what is wrong with it is one sentence, and cri-resource-manager's file is read."""

import pytest

from colocate.agent.configuration import build
from colocate.cpus import BurstLevel, CpuSettings, CpuWishes, NamedPool
from colocate.cpus.placer.part import made_machine
from colocate.cpus.placer.section import CpuPolicy
from colocate.errors import UserError
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass

SEED = b"""policy:
  Active: topology-aware
  ReservedResources:
    CPU: 750m
"""


def sentence(text: str) -> str:
    with pytest.raises(UserError) as refused:
        build(text.encode(), "file")
    return str(refused.value)


def test_the_defaults_place_by_topology_and_reserve_nothing() -> None:
    section = build(b"version: 1", "file").config.cpus
    assert section.places
    assert section.settings() == CpuSettings()


def test_everything_that_is_said_counts() -> None:
    section = build(
        b"""
version: 1
cpus:
  policy: none
  reservedCpus: "0,64"
  reservedNamespaces: [kube-system, monitoring]
  pools: [{name: batch, size: 8, namespaces: [batch]}, {name: db, cpus: "8-15", namespaces: [db]}]
  wishNamespaces: [db]
  exclusiveGuaranteed: false
  burst: numa
  spread: true
  pinMemory: false
  defaults: {burstable: burst=node, bestEffort: opt-out, namespaces: {db: "exclusive, strict"}}
""",
        "file",
    ).config.cpus
    assert not section.places
    assert section.settings() == CpuSettings(
        reserved=CpuSet.parse("0,64"),
        reserved_namespaces=("kube-system", "monitoring"),
        pools=(
            NamedPool(name="batch", size=8, namespaces=("batch",)),
            NamedPool(name="db", cpus=CpuSet.parse("8-15"), namespaces=("db",)),
        ),
        wish_namespaces=("db",),
        exclusive_guaranteed=False,
        burst=BurstLevel.NUMA,
        spread=True,
        pin_memory=False,
    )
    assert {qos: section.defaults.wishes("web", qos) for qos in QosClass} == {
        QosClass.GUARANTEED: CpuWishes(),
        QosClass.BURSTABLE: CpuWishes(burst=BurstLevel.NODE),
        QosClass.BEST_EFFORT: CpuWishes(opt_out=True),
    }
    assert section.defaults.wishes("db", QosClass.BURSTABLE) == CpuWishes(exclusive=True, strict=True)
    assert section.defaults.strict_namespaces() == {"db"}


@pytest.mark.parametrize(
    ("cpus", "said"),
    [
        ("policy: static", "cpus.policy: 'static' is not known here; choose one of topology, none"),
        ("reserved: lots", "cpus.reserved: 'lots' is not an amount of CPUs; write it like 750m or 2"),
        ("reserved: -1", "cpus.reserved: -1000m CPUs cannot be reserved; give 0 to 16384 CPUs"),
        ("reserved: 99999", "cpus.reserved: 99999000m CPUs cannot be reserved; give 0 to 16384 CPUs"),
        ("{reserved: 1, reservedCpus: '0'}", "cpus.reservedCpus: reserved is also given; remove one of them"),
        (
            "reservedCpus: 0-",
            "cpus.reservedCpus: '0-' is not a list of CPUs such as 0-3,64-67",
        ),
        ("reservedCpus: 3", "cpus.reservedCpus: 3 is not text; put it in quotes"),
        (
            "pools: [{name: a, namespaces: [x]}]",
            "cpus.pools[0]: a pool has either cpus or a size above 0; give one of them",
        ),
        (
            "pools: [{name: a, size: 1, namespaces: [x]}, {name: b, size: 1, namespaces: [x]}]",
            "cpus.pools[1].namespaces: 'x' has the pool a already",
        ),
        (
            "{reservedCpus: '0', pools: [{name: a, cpus: 0-3, namespaces: [x]}]}",
            "cpus.pools[0].cpus: some of them are reserved, or in another pool; take them out",
        ),
        (
            "defaults: {guaranteed: exclusive}",
            "cpus.defaults.guaranteed: exclusive, isolated and strict are for namespaces that may wish for them; "
            "use namespaces",
        ),
        (
            "defaults: {namespaces: {web: strict}}",
            "cpus.defaults.namespaces.web: only wishNamespaces may have exclusive, isolated or strict; add it "
            "there, or take the wish out",
        ),
        ("stateFolder: here", "cpus.stateFolder: 'here' is not an absolute path; begin it with '/'"),
        ("burst: socket", "cpus.burst: 'socket' is not known here; choose one of ccx, numa, node"),
    ],
)
def test_what_is_wrong_is_one_sentence(cpus: str, said: str) -> None:
    assert sentence(f"version: 1\ncpus:\n  {cpus}") == f"file: {said}"


def test_the_seeds_fallback_is_read() -> None:
    section = build(SEED, "fallback.cfg").config.cpus
    assert section.policy is CpuPolicy.TOPOLOGY
    assert section.settings() == CpuSettings(reserved_size=750)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("policy: {Active: none}", "policy", CpuPolicy.NONE),
        (
            "policy: {Active: topology-aware, ReservedResources: {CPU: 'cpuset:0,64'}}",
            "reserved_cpus",
            "0,64",
        ),
        ("policy: {Active: topology-aware, ReservedResources: {CPU: 2}}", "reserved", 2000),
        ("policy: {topology-aware: {PinMemory: false, PinCPU: true}}", "pin_memory", False),
        ("policy: {topology-aware: {PreferSharedCPUs: true}}", "exclusive_guaranteed", False),
        (
            "policy: {topology-aware: {ReservedPoolNamespaces: [kube-system, x]}}",
            "reserved_namespaces",
            ("kube-system", "x"),
        ),
        ("policy: {Active: none}\nlogger: {Debug: resource-manager}", "policy", CpuPolicy.NONE),
    ],
)
def test_what_both_mean_is_taken_over(text: str, field: str, value: object) -> None:
    assert getattr(build(text.encode(), "fallback.cfg").config.cpus, field) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy: {Active: balloons}", "policy.Active: 'balloons' is not known here"),
        (
            "policy: {ReservedResources: {Memory: 1Gi}}",
            "policy.ReservedResources.Memory: only CPUs can be reserved",
        ),
        ("policy: {AvailableResources: {CPU: 4}}", "policy.AvailableResources: it has no meaning here"),
        ("policy: {topology-aware: {PinCPU: false}}", "write 'Active: none'"),
        ("policy: {topology-aware: {PinMemory: maybe}}", "'maybe' is not true or false"),
        (
            "policy: {topology-aware: {ColocatePods: true}}",
            "policy.topology-aware.ColocatePods: it has no meaning here",
        ),
        ("policy: {Active: none}\nrdt: {}", "rdt: only the policy of a fallback.cfg is read"),
        ("policy: topology-aware", "policy: 'topology-aware' is not a mapping"),
        ("policy: {Active: [x]}", "policy.Active"),
    ],
)
def test_what_has_no_meaning_here_is_refused_by_name(text: str, said: str) -> None:
    assert said in sentence(text)


def test_a_made_machine_is_a_shape_or_a_dump() -> None:
    assert made_machine("") is None
    made = made_machine("hygon")
    assert made is not None
    assert len(made.cpus) == 128
    with pytest.raises(UserError, match=r"cpus.topology: 'round' is no shape; .* or the path of a dump"):
        made_machine("round")
