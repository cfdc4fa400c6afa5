"""What a container gets: by its limit, wishes, namespace, devices, memory and role, and what becomes of it later."""

import pytest

from colocate.cpus import (
    BurstLevel,
    ContainerRole,
    CpuAllocator,
    CpuMode,
    CpuRefused,
    CpuRequest,
    CpuSettings,
    NamedPool,
    PoolKind,
    PoolRung,
    parse_wishes,
    spread_of,
    wishes_of,
)
from colocate.errors import UserError
from colocate.model.cpu_shapes import HYGON, CpuShape, machine
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass
from tests.cpus.asking import Ask, guaranteed, shared, taken, wishing

GIB = 1 << 30
ALLOWED = CpuSettings(wish_namespaces=("default",))


@pytest.fixture
def hygon() -> CpuAllocator:
    return CpuAllocator(machine(HYGON), ALLOWED)


def warnings(allocator: CpuAllocator, request: CpuRequest) -> str:
    change = allocator.assign(request)
    assert change.assignment is not None
    return " ".join(change.assignment.warnings)


class TestLimits:
    def test_the_roomiest_pool_is_taken_where_every_pool_is_short(self, hygon: CpuAllocator) -> None:
        taken(hygon, hygon.tree.machine.cpus - CpuSet.parse("0-3"))
        change = hygon.assign(shared(6, pod="burst", limit=80_000))
        assert str(change.cpus) == "0-3"
        assert change.assignment is not None
        assert change.assignment.short == 2000
        assert "2 CPUs short" in " ".join(hygon.explain(("burst", "main")))

    def test_a_cpuset_smaller_than_the_limit_is_named(self, hygon: CpuAllocator) -> None:
        hygon.assign(shared(6, pod="burst", limit=80_000))
        hygon.assign(shared(6, pod="calm", limit=8_000))
        assert hygon.below_limit() == [("burst", "main")]
        assert "Its limit is 80 CPUs, and it can run on 8 only" in " ".join(hygon.explain(("burst", "main")))
        assert "limit" not in " ".join(hygon.explain(("calm", "main")))

    @pytest.mark.parametrize(
        ("burst", "limit", "size"),
        [
            ("ccx", 80, 8),
            ("numa", 80, 16),
            ("numa", 8, 8),
            ("numa", 9, 16),
            ("node", 16, 16),
            ("node", 17, 64),
            ("node", 80, 128),
            ("node", None, 128),
            ("numa", None, 16),
        ],
    )
    def test_burst_says_how_far_a_container_may_spread(
        self, burst: str, limit: int | None, size: int
    ) -> None:
        milli = None if limit is None else limit * 1000
        by_setting = CpuAllocator(machine(HYGON), CpuSettings(burst=BurstLevel(burst)))
        assert len(by_setting.assign(shared(6, limit=milli)).cpus) == size
        by_wish = CpuAllocator(machine(HYGON))
        assert len(by_wish.assign(shared(6, limit=milli, wishes=parse_wishes(f"burst={burst}"))).cpus) == size


class TestSystem:
    def test_a_wider_burst_is_advised_only_where_it_would_help(self, hygon: CpuAllocator) -> None:
        hygon.assign(shared(6, pod="narrow", limit=80_000))
        assert "burst=node gives it more" in " ".join(hygon.explain(("narrow", "main")))
        hygon.assign(shared(200, pod="wide", limit=200_000))
        told = " ".join(hygon.explain(("wide", "main")))
        assert "it can run on 128 only." in told
        assert "burst=" not in told

    def test_reserved_cpus_are_for_the_system_alone(self) -> None:
        settings = CpuSettings(reserved=CpuSet.parse("0,64"))
        allocator = CpuAllocator(machine(HYGON), settings)
        system = allocator.assign(shared(1, namespace="kube-system"))
        assert str(system.cpus) == "0,64"
        for n in (1, 8, 20, 126):
            assert allocator.assign(shared(n, pod="p")).cpus.isdisjoint(system.cpus)
            allocator.release(("p", "main"))
        assert str(allocator.assign(guaranteed(6)).cpus) == "1-3,65-67"

    def test_a_reserve_by_size_is_rounded_up_to_whole_cpus(self) -> None:
        allocator = CpuAllocator(machine(HYGON), CpuSettings(reserved_size=750))
        assert str(allocator.sets.reserved) == "0"

    def test_a_full_reserve_sends_the_next_to_the_others(self) -> None:
        allocator = CpuAllocator(machine(HYGON), CpuSettings(reserved_size=750))
        allocator.assign(shared(0.8, namespace="kube-system"))
        more = shared(0.5, namespace="kube-system")
        assert "full" in warnings(allocator, more)
        assert CpuSet.parse("0").isdisjoint(allocator.cpus_of(allocator.assignments[more.key]))

    def test_what_asks_for_nothing_runs_on_all_shared_cpus_and_always_has_one(
        self, hygon: CpuAllocator
    ) -> None:
        idle = hygon.assign(shared(0, pod="idle", qos=QosClass.BEST_EFFORT))
        assert len(idle.cpus) == 128
        for place in range(40):
            hygon.assign(guaranteed(4, pod=f"pod-{place}"))
        assert hygon.cpus_of(hygon.assignments["idle", "main"])

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            (CpuSettings(reserved=CpuSet.parse("0"), reserved_size=1), "give one of them"),
            (CpuSettings(reserved=CpuSet.parse("200")), "200"),
            (CpuSettings(reserved_size=128_000), "leave at least one"),
            (CpuSettings(reserved_size=-1), "cannot be reserved"),
            (CpuSettings(pools=(NamedPool(name="a", namespaces=("x",)),)), "give its CPUs or a size"),
            (
                CpuSettings(
                    pools=(
                        NamedPool(name="a", size=2, namespaces=("x",)),
                        NamedPool(name="b", size=2, namespaces=("x",)),
                    )
                ),
                "has two pools",
            ),
            (
                CpuSettings(
                    reserved=CpuSet.parse("3"),
                    pools=(NamedPool(name="a", cpus=CpuSet.parse("3-5"), namespaces=()),),
                ),
                "CPUs 3 are reserved",
            ),
            (
                CpuSettings(
                    pools=(
                        NamedPool(name="a", size=2, namespaces=()),
                        NamedPool(name="a", size=2, namespaces=()),
                    )
                ),
                "two pools have the name a",
            ),
            (CpuSettings(pools=(NamedPool(name="", size=2, namespaces=("x",)),)), "a pool has no name"),
        ],
    )
    def test_settings_that_cannot_be_are_one_sentence(self, settings: CpuSettings, said: str) -> None:
        with pytest.raises(UserError, match=said):
            CpuAllocator(machine(HYGON), settings)

    def test_isolated_cpus_are_not_there_for_sizes(self) -> None:
        topology = machine(CpuShape(ccx_cores=(2, 2), isolated=CpuSet.parse("0-4")))
        pool = NamedPool(name="a", size=2, namespaces=("x",))
        with pytest.raises(UserError, match="3 are neither named nor isolated"):
            CpuAllocator(topology, CpuSettings(reserved_size=1000, pools=(pool,)))
        assert len(CpuAllocator(topology, CpuSettings(pools=(pool,))).sets.ordinary) == 1


class TestNamedPools:
    settings = CpuSettings(
        pools=(
            NamedPool(name="db", cpus=CpuSet.parse("0-7,64-71"), namespaces=("mysql", "redis")),
            NamedPool(name="batch", size=12, namespaces=("jobs",)),
        ),
        wish_namespaces=("mysql",),
    )

    def test_their_cpus_are_for_their_namespaces_alone(self) -> None:
        allocator = CpuAllocator(machine(HYGON), self.settings)
        mysql = allocator.assign(shared(4, namespace="mysql"))
        assert str(mysql.cpus) == "0-7,64-71"
        assert mysql.mems == (0,)
        jobs = allocator.assign(shared(4, namespace="jobs"))
        assert len(jobs.cpus) == 12
        assert spread_of(allocator.tree, jobs.cpus)[:3] == (1, 1, 2)
        for request in (shared(100), shared(0), guaranteed(8), shared(1, wishes=wishing(opt_out=True))):
            assert allocator.assign(request).cpus.isdisjoint(mysql.cpus | jobs.cpus)

    def test_guaranteed_containers_have_cpus_of_the_pool_alone(self) -> None:
        allocator = CpuAllocator(machine(HYGON), self.settings)
        allocator.assign(shared(2, pod="calm", namespace="mysql"))
        alone = allocator.assign(guaranteed(8, namespace="mysql"))
        assert len(alone.cpus) == 8
        assert alone.cpus <= CpuSet.parse("0-7,64-71")
        assert allocator.cpus_of(allocator.assignments["calm", "main"]).isdisjoint(alone.cpus)
        assert "not free" in warnings(allocator, guaranteed(8, namespace="mysql"))

    def test_a_full_pool_says_so(self) -> None:
        allocator = CpuAllocator(machine(HYGON), self.settings)
        assert "2 CPUs fewer" in warnings(allocator, shared(14, namespace="jobs"))


class TestWishes:
    def test_a_fractional_or_burstable_request_is_never_rounded_up(self, hygon: CpuAllocator) -> None:
        for request, why in [
            (guaranteed(2.5, wishes=wishing(exclusive=True)), "no whole number"),
            (shared(2, wishes=wishing(exclusive=True)), "not guaranteed"),
        ]:
            assert why in warnings(hygon, request)
            assert hygon.assignments[request.key].mode is CpuMode.SHARED
            assert why in " ".join(hygon.explain(request.key))

    def test_privileged_wishes_need_an_allowed_namespace(self) -> None:
        allocator = CpuAllocator(
            machine(HYGON), CpuSettings(exclusive_guaranteed=False, wish_namespaces=("trusted",))
        )
        for wish in ("exclusive", "isolated", "strict"):
            refused = guaranteed(2, wishes=parse_wishes(wish))
            assert f"may not wish for {wish}" in warnings(allocator, refused)
            assert allocator.assignments[refused.key].mode is CpuMode.SHARED
        allowed = guaranteed(2, namespace="trusted", wishes=wishing(exclusive=True))
        assert warnings(allocator, allowed) == ""
        assert allocator.assignments[allowed.key].mode is CpuMode.EXCLUSIVE

    def test_shared_wins_over_the_default_of_guaranteed_containers(self, hygon: CpuAllocator) -> None:
        change = hygon.assign(guaranteed(4, wishes=wishing(shared=True)))
        assert len(change.cpus) == 8

    def test_isolated_cpus_are_given_on_request_and_to_nobody_else(self) -> None:
        topology = machine(CpuShape(sockets=2, ccx_cores=(4, 4), isolated=CpuSet.parse("4-7,20-23")))
        allocator = CpuAllocator(topology, ALLOWED)
        for request in (
            shared(1),
            shared(20),
            shared(0),
            guaranteed(6),
            shared(1, wishes=wishing(opt_out=True)),
        ):
            assert allocator.assign(request).cpus.isdisjoint(topology.isolated)
        isolated = allocator.assign(guaranteed(4, wishes=wishing(isolated=True)))
        assert isolated.cpus <= topology.isolated
        assert len(isolated.cpus) == 4
        assert "5 isolated CPUs, and 4 are free" in warnings(
            allocator, guaranteed(5, wishes=wishing(isolated=True))
        )

    @pytest.mark.parametrize("ask", [shared, guaranteed])
    def test_strict_is_refused_rather_than_spilled(self, ask: Ask, hygon: CpuAllocator) -> None:
        strict = wishing(strict=True)
        change = hygon.assign(ask(8, wishes=strict))
        assert spread_of(hygon.tree, change.cpus)[2] == 1
        before = hygon.state()
        with pytest.raises(CpuRefused, match="no CCX has them free"):
            hygon.assign(ask(9, wishes=strict))
        ccxs = [pool.cpus for pool in hygon.tree.kind(PoolKind.CCX)]
        taken(hygon, CpuSet.of(cpus.first for cpus in ccxs) - change.cpus)
        with pytest.raises(CpuRefused):
            hygon.assign(ask(8, wishes=strict))
        hygon.release(("taken", "taken"))
        assert hygon.state() == before

    def test_spread_takes_the_roomiest_and_pack_what_fits_best(self) -> None:
        allocator = CpuAllocator(machine(HYGON))
        first = allocator.assign(shared(2))
        assert allocator.assign(shared(2)).cpus == first.cpus
        assert allocator.assign(shared(2, wishes=wishing(spread=True))).cpus != first.cpus
        spread = CpuAllocator(machine(HYGON), CpuSettings(spread=True))
        first = spread.assign(shared(2))
        assert spread.assign(shared(2)).cpus != first.cpus
        assert spread.assign(shared(2, wishes=wishing(pack=True))).cpus in [
            first.cpus,
            CpuSet.parse("16-19,80-83"),
        ]

    @pytest.mark.parametrize("ask", [shared, guaranteed])
    def test_affinity_is_beside_another_container_of_the_pod(self, ask: Ask, hygon: CpuAllocator) -> None:
        hygon.assign(ask(3, "db", pod="pod", wishes=wishing(spread=True)))
        taken(hygon, CpuSet.parse("0-3,64-67") - hygon.cpus_of(hygon.assignments["pod", "db"]))
        near = hygon.assign(ask(4, "web", pod="pod", wishes=wishing(affinity="db", spread=True)))
        db = {
            cpu.node
            for cpu in hygon.tree.topology.cpus
            if cpu.id in hygon.cpus_of(hygon.assignments["pod", "db"])
        }
        web = {cpu.node for cpu in hygon.tree.topology.cpus if cpu.id in near.cpus}
        assert web == db
        assert "no container nobody" in warnings(hygon, ask(1, pod="pod", wishes=wishing(affinity="nobody")))

    def test_a_tenant_who_opts_out_does_not_get_out_of_its_pool(self) -> None:
        pool = NamedPool(name="jobs", cpus=CpuSet.parse("4-7"), namespaces=("jobs",))
        settings = CpuSettings(reserved=CpuSet.parse("0"), pools=(pool,))
        allocator = CpuAllocator(machine(HYGON), settings)
        for number, namespace in enumerate(("default", "jobs")):
            for cpu in (0, 1, 4):
                wished = shared(cpu, f"{number}-{cpu}", namespace=namespace, wishes=wishing(opt_out=True))
                cpus = allocator.assign(wished).cpus
                assert cpus <= pool.cpus if namespace == "jobs" else cpus.isdisjoint(pool.cpus)
        again, _ = CpuAllocator.restored(machine(HYGON), settings, allocator.state())
        assert again.cpusets == allocator.cpusets
        assert "may not leave its pool jobs" in warnings(
            allocator, shared(1, "told", namespace="jobs", wishes=wishing(opt_out=True))
        )

    def test_who_opts_out_runs_on_all_cpus_but_exclusive_ones(self) -> None:
        allocator = CpuAllocator(machine(HYGON), CpuSettings(reserved=CpuSet.parse("0")))
        alone = allocator.assign(guaranteed(8))
        out = allocator.assign(guaranteed(4, wishes=wishing(opt_out=True)))
        assert out.cpus == allocator.tree.machine.cpus - alone.cpus
        assert out.mems == ()

    def test_annotations_speak_for_a_pod_or_a_container(self) -> None:
        annotations = {"colocate.dev/cpus": "spread", "colocate.dev/cpus.db": "exclusive, strict"}
        assert wishes_of(annotations, "web") == (wishing(spread=True), ())
        assert wishes_of(annotations, "db") == (wishing(exclusive=True, strict=True), ())
        assert wishes_of({}, "db") == (wishing(), ())

    @pytest.mark.parametrize(
        "text",
        [
            "nonsense",
            "exclusive=1",
            "burst=galaxy",
            "affinity=",
            "exclusive,shared",
            "isolated, shared",
            "spread,pack",
            "opt-out,strict",
            "opt-out,affinity=db",
            "x" * 300,
            "\x1b[31m",
        ],
    )
    def test_wishes_that_cannot_be_understood_are_left_out_with_a_warning(self, text: str) -> None:
        with pytest.raises(UserError) as refused:
            parse_wishes(text)
        assert "\n" not in str(refused.value)
        assert "\x1b" not in str(refused.value)
        wishes, why = wishes_of({"colocate.dev/cpus": text}, "db")
        assert wishes == wishing()
        assert len(why) == 1


class TestDevicesAndMemory:
    @pytest.mark.parametrize("ask", [shared, guaranteed])
    def test_a_container_sits_beside_its_device(self, ask: Ask, hygon: CpuAllocator) -> None:
        for n, nodes in [(4, {5}), (16, {5}), (20, {5, 4})]:
            change = hygon.assign(ask(n, pod="gpu", beside=(5,)))
            assert set(change.mems) == nodes, n
            hygon.release(("gpu", "main"))
        # Beside the device at the price of a larger rung: two CPUs are free on each CCX of node 5.
        taken(hygon, CpuSet.parse("40-42,104-106,44-46,108-110"))
        assert set(hygon.assign(ask(4, beside=(5,))).mems) == {5}

    def test_a_device_without_room_or_beside_no_cpu_is_no_reason_to_fail(self, hygon: CpuAllocator) -> None:
        taken(hygon, hygon.tree.by_name["numa 5"].cpus)
        assert hygon.tree.distance(5, hygon.assign(guaranteed(4, pod="a", beside=(5,))).mems[0]) == 16
        nearest = hygon.assign(shared(4, pod="b", beside=(5,)))
        assert hygon.tree.distance(5, nearest.mems[0]) == 16
        assert "no NUMA node with CPUs" in warnings(hygon, shared(1, beside=(77,)))

    def test_memory_follows_the_cpus_and_is_checked(self, hygon: CpuAllocator) -> None:
        full = hygon.assign(shared(2, pod="full", memory=60 * GIB))
        assert full.mems == (0,)
        # Node 0 has 4 GiB left: a CCX elsewhere has room for both.
        other = hygon.assign(shared(2, memory=10 * GIB))
        assert other.mems == (1,)
        alone = hygon.assign(guaranteed(2, memory=10 * GIB))
        assert alone.mems != (0,)

    def test_memory_beyond_the_nodes_of_the_cpus_adds_the_nearest(self, hygon: CpuAllocator) -> None:
        request = guaranteed(4, memory=100 * GIB)
        change = hygon.assign(request)
        assert change.mems == (0, 1)
        assert "nearest others are added" in " ".join(hygon.explain(request.key))
        huge = guaranteed(4, memory=10_000 * GIB)
        assert "No NUMA nodes have room" in warnings(hygon, huge)

    def test_memory_without_cpus_is_added_last(self) -> None:
        allocator = CpuAllocator(machine(CpuShape(sockets=2, memory_only=(256 * GIB,))))
        assert allocator.assign(shared(1, memory=120 * GIB)).mems == (0, 1)
        allocator = CpuAllocator(machine(CpuShape(sockets=2, memory_only=(256 * GIB,))))
        assert allocator.assign(shared(1, memory=200 * GIB)).mems == (0, 1, 2)

    def test_pin_memory_false_leaves_it_alone(self) -> None:
        allocator = CpuAllocator(machine(HYGON), CpuSettings(pin_memory=False))
        for request in (shared(4, memory=GIB), guaranteed(4, memory=GIB), shared(20)):
            assert allocator.assign(request).mems == ()


class TestLife:
    def test_init_containers_hand_their_cpus_on_and_sidecars_keep_theirs(self, hygon: CpuAllocator) -> None:
        init = hygon.assign(guaranteed(8, "init", pod="p", role=ContainerRole.INIT))
        side = hygon.assign(guaranteed(2, "side", pod="p", role=ContainerRole.SIDECAR))
        hygon.end(("p", "init"))
        stranger = hygon.assign(guaranteed(8, pod="stranger"))
        assert stranger.cpus.isdisjoint(init.cpus)
        assert hygon.assign(shared(4, pod="other")).cpus.isdisjoint(init.cpus)
        app = hygon.assign(guaranteed(6, "app", pod="p"))
        assert app.cpus <= init.cpus
        assert app.cpus.isdisjoint(side.cpus)
        second = hygon.assign(guaranteed(4, "second", pod="p"))
        assert init.cpus - app.cpus <= second.cpus
        assert hygon.cpus_of(hygon.assignments["p", "side"]) == side.cpus

    def test_what_init_containers_leave_over_can_be_handed_back(self, hygon: CpuAllocator) -> None:
        init = hygon.assign(guaranteed(8, "init", pod="p", role=ContainerRole.INIT))
        hygon.end(("p", "init"))
        hygon.assign(guaranteed(2, "app", pod="p"))
        assert len(hygon.occupancy().exclusive) == 8
        hygon.hand_back("p")
        assert len(hygon.occupancy().exclusive) == 2
        assert len(init.cpus) == 8
        hygon.release_pod("p")
        assert hygon.state() == CpuAllocator(machine(HYGON)).state()

    def test_a_container_that_restarts_in_its_sandbox_gets_its_cpus_again(self, hygon: CpuAllocator) -> None:
        request = guaranteed(4, pod="p")
        first = hygon.assign(request)
        hygon.end(request.key)
        others = [hygon.assign(guaranteed(4, pod=f"other-{n}")) for n in range(20)]
        assert all(other.cpus.isdisjoint(first.cpus) for other in others)
        assert hygon.assign(request).cpus == first.cpus

    def test_exclusive_containers_grow_and_shrink_in_place(self, hygon: CpuAllocator) -> None:
        before = hygon.assign(guaranteed(4, pod="p"))
        grown = hygon.resize(guaranteed(12, pod="p"))
        assert before.cpus <= grown.cpus
        assert spread_of(hygon.tree, grown.cpus) == (1, 1, 2, 0)
        shrunk = hygon.resize(guaranteed(6, pod="p"))
        assert shrunk.cpus <= grown.cpus
        assert spread_of(hygon.tree, shrunk.cpus) == (1, 1, 1, 0)
        halved = hygon.resize(guaranteed(2.5, pod="p"))
        assert halved.assignment is not None
        assert halved.assignment.mode is CpuMode.SHARED
        assert not halved.cpus.isdisjoint(shrunk.cpus)
        assert len(hygon.occupancy().exclusive) == 0

    @pytest.mark.parametrize("count", [4, 6, 12])
    def test_a_running_container_keeps_its_cpus_beside_what_init_containers_left(
        self, count: int, hygon: CpuAllocator
    ) -> None:
        side = hygon.assign(guaranteed(4, "side", pod="p", role=ContainerRole.SIDECAR))
        hygon.assign(guaranteed(4, pod="other"))
        init = hygon.assign(guaranteed(8, "init", pod="p", role=ContainerRole.INIT))
        hygon.end(("p", "init"))
        sized = hygon.resize(guaranteed(count, "side", pod="p", role=ContainerRole.SIDECAR, memory=1))
        assert side.cpus <= sized.cpus
        assert len(sized.cpus) == count
        assert sized.cpus <= side.cpus | init.cpus

    def test_the_fewest_places_are_claimed_only_where_they_are(self, hygon: CpuAllocator) -> None:
        hygon.assign(guaranteed(4, pod="p"))
        assert "the fewest that can hold them now" in " ".join(hygon.explain(("p", "main")))
        hygon.assign(guaranteed(4, pod="other"))
        grown = hygon.resize(guaranteed(8, pod="p"))
        assert spread_of(hygon.tree, grown.cpus)[2] == 2
        told = " ".join(hygon.explain(("p", "main")))
        assert "the fewest" not in told
        assert "It keeps CPUs that it had" in told

    def test_shared_containers_move_only_as_far_as_they_must(self, hygon: CpuAllocator) -> None:
        for n in range(5):
            hygon.assign(shared(6, pod=f"other-{n}"))
        before = hygon.assign(shared(4, pod="p"))
        assert hygon.resize(shared(6, pod="p")).cpus == before.cpus
        grown = hygon.resize(shared(10, pod="p"))
        assert grown.assignment is not None
        assert grown.assignment.rung == PoolRung.NUMA
        shrunk = hygon.resize(shared(3, pod="p"))
        assert shrunk.cpus <= grown.cpus
        assert len(shrunk.cpus) == 8

    def test_a_refused_resize_changes_nothing(self, hygon: CpuAllocator) -> None:
        hygon.assign(guaranteed(6, pod="p", wishes=wishing(strict=True)))
        before = hygon.state()
        with pytest.raises(CpuRefused):
            hygon.resize(guaranteed(12, pod="p", wishes=wishing(strict=True)))
        assert hygon.state() == before

    def test_others_are_told_when_their_cpus_change(self, hygon: CpuAllocator) -> None:
        hygon.assign(shared(4, pod="near"))
        hygon.assign(shared(0, pod="idle"))
        change = hygon.assign(guaranteed(4, pod="alone", beside=(0,)))
        told = {update.key[0]: update.cpus for update in change.updates}
        assert set(told) <= {"near", "idle"}
        assert told["idle"] == hygon.tree.machine.cpus - change.cpus
        assert all(cpus.isdisjoint(change.cpus) for cpus in told.values())
        back = hygon.release(("alone", "main"))
        assert {update.key[0] for update in back.updates} == set(told)

    def test_shared_requests_keep_their_cpus_from_exclusive_ones(self, hygon: CpuAllocator) -> None:
        for n in range(16):
            hygon.assign(shared(5, pod=f"shared-{n}", wishes=wishing(spread=True)))
        alone = hygon.assign(guaranteed(48, pod="alone"))
        assert len(alone.cpus) == 48
        for n in range(16):
            assert len(hygon.cpus_of(hygon.assignments[f"shared-{n}", "main"])) >= 5
        assert "not free" in warnings(hygon, guaranteed(1))

    def test_a_request_of_less_than_nothing_is_refused(self, hygon: CpuAllocator) -> None:
        with pytest.raises(UserError, match="asks for a negative amount"):
            hygon.assign(shared(-1))
        with pytest.raises(UserError, match="no container main of pod nobody"):
            hygon.explain(("nobody", "main"))
        assert hygon.release(("nobody", "main")).updates == ()
        assert hygon.end(("nobody", "main")).assignment is None

    def test_a_request_beyond_the_machine_shares_all_of_it(self, hygon: CpuAllocator) -> None:
        for request in (shared(10_000), guaranteed(10_000)):
            change = hygon.assign(request)
            assert len(change.cpus) == 128
            assert change.assignment is not None
            assert change.assignment.short > 0
