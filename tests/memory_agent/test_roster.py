"""Which pod of the API is which pod of the kubelet, whatever a tenant writes into its own. No I/O."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.memory.agent.objects import ApiPod
from colocate.memory.agent.roster import held_by_unknown, roster, who_holds
from colocate.model.checkpoint import NO_TOPOLOGY, Entry
from colocate.model.holdings import Holding, Holdings, holdings_of
from colocate.model.records import ListedPod

RESOURCE = "test.com/colocation-memory"
MIRROR = "kubernetes.io/config.mirror"
VICTIM = "11111111-2222-3333-4444-555555555555"
FILE = "0123456789abcdef0123456789abcdef"
"""The uid that a kubelet makes for a static pod."""


def pod(uid: str, name: str, *, claims: str | None = None, blocks: int = 1, **metadata: Any) -> ApiPod:
    annotations = {} if claims is None else {MIRROR: claims}
    namespace, _, bare = name.rpartition("/")
    marks = {"name": bare, "namespace": namespace, "uid": uid, "annotations": annotations, **metadata}
    main = {"name": "main", "resources": {"limits": {RESOURCE: str(blocks), "memory": "1Ti"}}}
    return msgspec.convert({"metadata": marks, "spec": {"containers": [main]}}, ApiPod)


REAL = pod(VICTIM, "shop/database", blocks=3)
NODE_OWNED = {"ownerReferences": [{"kind": "Node", "controller": True}]}


def test_a_pod_with_a_victims_uid_in_its_annotation_is_not_the_victim() -> None:
    thief = pod("t", "tenant/thief", claims=VICTIM, blocks=20, **NODE_OWNED)
    for pods in ([REAL, thief], [thief, REAL]):
        known = roster(pods, {}, frozenset({VICTIM}))
        assert known.pods == {VICTIM: REAL}
        assert not known.static, "nor does it make the victim immune from eviction"
        (collision,) = known.collisions
        assert str(collision) == f"tenant/thief claims to be pod {VICTIM}, which is shop/database"


def test_a_pod_that_the_api_has_under_its_own_uid_is_that_pod_even_where_the_kubelet_names_another() -> None:
    thief = pod("t", "tenant/thief", claims=VICTIM)
    assert roster([thief, REAL], {VICTIM: "tenant/thief"}, frozenset()).pods == {VICTIM: REAL}


def test_a_mirror_is_its_static_pod_where_the_kubelets_records_say_so() -> None:
    mirror = pod("m", "kube-system/proxy", claims=FILE)
    known = roster([mirror], {FILE: "kube-system/proxy"}, frozenset({FILE}))
    assert known.pods == {FILE: mirror}
    (who,) = known.identities(RESOURCE)
    assert (who.uid, who.key, who.static) == (FILE, "kube-system/proxy", True)
    assert not known.collisions


def test_of_several_pods_that_claim_a_static_pods_uid_the_one_that_the_kubelet_names_counts() -> None:
    mirror = pod("m", "kube-system/proxy", claims=FILE)
    thief = pod("t", "tenant/proxy", claims=FILE, blocks=20)
    known = roster([thief, mirror], {FILE: "kube-system/proxy"}, frozenset({FILE}))
    assert known.pods == {FILE: mirror}
    assert [each.claimants for each in known.collisions] == [(thief,)]


def test_of_several_pods_that_claim_a_uid_without_proof_none_counts() -> None:
    thieves = [pod("s", "tenant/a", claims=FILE), pod("t", "other/b", claims=FILE)]
    known = roster(thieves, {}, frozenset({FILE}))
    assert not known.pods
    (collision,) = known.collisions
    assert "tenant/a, other/b claim to be" in str(collision)
    assert "nothing proves which" in str(collision)


def test_a_lone_mirror_without_proof_counts_for_nothing_and_is_no_collision() -> None:
    """As those of static pods that hold no blocks, of which every control plane has some."""
    known = roster([pod("m", "kube-system/etcd", claims=FILE)], {}, frozenset({FILE}))
    assert not known.identities(RESOURCE), "nor is the request of a pod that does not run taken from the node"
    assert not known.collisions


def test_an_annotation_does_not_make_a_pod_static_that_the_kubelet_runs_under_its_own_uid() -> None:
    crafty = pod("own-uid", "tenant/crafty", claims=FILE)
    known = roster([crafty], {"own-uid": "tenant/crafty"}, frozenset({"own-uid"}))
    (who,) = known.identities(RESOURCE)
    assert (who.uid, who.static) == ("own-uid", False)


@pytest.mark.parametrize(
    "claims", [f"{VICTIM}/..", "..", "", "x/../..", "a\0b", "a" * 300, "ü", "-", "a b", "a\n"]
)
def test_a_claim_that_no_pod_can_have_for_a_uid_is_none(claims: str) -> None:
    thief = pod("t", "tenant/thief", claims=claims)
    assert thief.claimed_uid == ""
    assert not roster([thief], {claims: "tenant/thief"}, frozenset({claims})).pods


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz"), st.sampled_from([None, *"abcdefgh"]))
    ),
    st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["n/x", "n/y", "n/z", "m/x"])),
    st.frozensets(st.sampled_from("abcdefgh")),
)
def test_whatever_is_annotated_a_pod_is_itself_and_a_mirror_is_what_is_proven(
    drawn: list[tuple[str, str, str | None]], proven: dict[str, str], run: frozenset[str]
) -> None:
    pods = list({uid: pod(uid, f"n/{name}", claims=claims) for uid, name, claims in drawn}.values())
    known = roster(pods, proven, run)
    for each in pods:
        if not each.is_mirror:
            assert known.pods[each.uid] is each
            assert each.uid not in known.static
    for uid in known.static:
        assert known.pods[uid].key == proven[uid]
        assert known.pods[uid].claimed_uid == uid
    for uid, each in known.pods.items():
        assert each.uid == uid or uid in known.static


# --- the proof -----------------------------------------------------------------------------------


def entry(uid: str, *ids: str, container: str = "main") -> Entry:
    return Entry(uid, container, RESOURCE, {NO_TOPOLOGY: ids}, b"")


def listed(name: str, *ids: str, container: str = "main") -> ListedPod:
    return ListedPod("n", name, {container: {RESOURCE: frozenset(ids)}})


@pytest.mark.parametrize(
    ("listing", "entries"),
    [
        ([listed("p", "CM-0000")], [entry("u", "CM-0000"), entry("v", "CM-0000")]),
        ([listed("p", "CM-0000"), listed("q", "CM-0001")], [entry("u", "CM-0000", "CM-0001")]),
        ([listed("p", "CM-0000"), listed("q", "CM-0000")], [entry("u", "CM-0000")]),
        ([listed("p", "CM-0000", container="other")], [entry("u", "CM-0000")]),
        ([], [entry("u", "CM-0000")]),
        ([listed("p", "CM-0000")], []),
    ],
    ids=["two uids", "two names", "one id of two", "another container", "no name", "no uid"],
)
def test_records_that_do_not_agree_prove_nothing(listing: list[ListedPod], entries: list[Entry]) -> None:
    assert not Holdings(holdings_of(listing, entries, RESOURCE)).proven


def test_records_that_agree_prove_whose_uid_it_is() -> None:
    found = Holdings(holdings_of([listed("p", "CM-0000")], [entry(FILE, "CM-0000")], RESOURCE))
    assert found.proven == {FILE: "n/p"}


@pytest.mark.parametrize("uid", [f"{VICTIM}/..", "", "..", "a\0"])
def test_a_uid_in_the_checkpoint_that_leads_elsewhere_is_no_pods_and_its_blocks_are_not_free(
    uid: str,
) -> None:
    found = Holdings(holdings_of([], [entry(uid, "CM-0007")], RESOURCE))
    assert found.pods == (Holding(ids=("CM-0007",)),)
    assert held_by_unknown(found, {}) == ("CM-0007",)


def test_blocks_of_a_static_pod_that_only_podresources_knows_are_held_and_its_mirrors_word_is_not_taken() -> (
    None
):
    mirror = pod("m", "n/p", claims=VICTIM)
    holdings = Holdings(holdings_of([listed("p", "CM-0000")], None, RESOURCE))
    known = roster([mirror, REAL], holdings.proven, frozenset({VICTIM}))
    held = who_holds(holdings, known, RESOURCE, api_knows=True, running={VICTIM})
    assert held == {}
    assert held_by_unknown(holdings, held) == ("CM-0000",)
