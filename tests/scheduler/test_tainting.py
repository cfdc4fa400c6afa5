"""Heat as taints: only our own are touched, by one writer at a time, a few a minute, and gone at the end."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.cluster.resources import LEASES, NODES
from colocate.load import NodeRow
from colocate.load.settings import Staleness
from colocate.load.terms import Freshness
from colocate.model.load import Taint
from colocate.scheduler import client as questions
from colocate.scheduler.client import NotAnswered, Where
from colocate.scheduler.loop.taints import EFFECT, keys, level_of, with_level
from colocate.scheduler.sections import TaintsOnStop
from colocate.scheduler.settings import CallerSettings, Server, ServerEndpoint
from colocate.telemetry import Event
from tests.scheduler.pretending import CALM, NAMES, ONE_HOT, internal_error, pretending
from tests.scheduler.story import spread, telling
from tests.support.logs import logged, told
from tests.support.waiting import until

FOREIGN = {
    "key": "example.com/maintenance",
    "value": "soon",
    "effect": "NoSchedule",
    "timeAdded": "2026-01-01T00:00:00Z",
}

foreign_keys = st.text(min_size=1) | st.text().map("colocate.dev/load-".__add__) | st.sampled_from(keys(4))
others = st.lists(
    st.fixed_dictionaries(
        {"key": foreign_keys, "effect": st.sampled_from(["NoSchedule", "NoExecute", EFFECT])}
    ).filter(lambda taint: taint["effect"] != EFFECT or taint["key"] not in keys(4))
)


@given(others, st.integers(0, 4), st.integers(0, 4))
def test_taints_of_others_stay_as_and_where_they_are(
    foreign: list[dict[str, str]], before: int, after: int
) -> None:
    changed = with_level(with_level(foreign, before), after)
    assert changed[: len(foreign)] == foreign
    assert changed == with_level(changed, after)
    assert level_of(msgspec.convert(changed, tuple[Taint, ...])) == after


@pytest.mark.parametrize(
    "odd",
    [
        [Taint("colocate.dev/load-2", EFFECT)],
        [Taint(key, EFFECT) for key in (*keys(4), "colocate.dev/load-4")],
    ],
)
def test_a_set_that_is_no_levels_is_known_for_one(odd: list[Taint]) -> None:
    assert level_of(odd) == -1


async def test_foreign_taints_survive_and_odd_ones_of_ours_are_mended() -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        await story.client.patch(NODES, "n2", {"spec": {"taints": [FOREIGN]}})
        odd = {"key": "colocate.dev/load-3", "effect": EFFECT}
        await story.client.patch(NODES, "n1", {"spec": {"taints": [odd]}})
        async with story.scheduling(story.tainting()):
            await story.hot("n2", 4)
            await story.hot("n1", 0)
            assert (await story.taints("n2"))[0] == FOREIGN
        assert await story.taints("n2") == [FOREIGN]


@pytest.mark.parametrize("shadow", [False, True])
async def test_how_hot_nodes_are_is_told_to_whoever_asks(shadow: bool) -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        config = msgspec.structs.replace(story.tainting(), shadow=shadow)
        async with story.scheduling(config) as scheduler:
            tainting = scheduler.tainting
            assert tainting is not None
            await until(lambda: tainting.shown()["n2"] == 4, "the heat of n2")
            where = Where(url=scheduler.listening.url)
            rows = questions.decoded(await questions.ask(where, "/top"), list[NodeRow])
            assert [row.node for row in rows if row.heat] == ["n2"]
            assert {row.heat for row in rows} == {0, 4}


async def test_of_a_pod_that_was_never_judged_the_taints_are_told() -> None:
    async with (
        pretending(ONE_HOT) as prometheus,
        telling(prometheus.url, NAMES, extender=False) as story,
        story.scheduling(story.tainting()) as scheduler,
    ):
        await story.deploy("nginx", 1, "default-scheduler")
        [pod] = await story.pods("nginx")
        await until(lambda: bool(scheduler.facts.table.pods.bound), "the pod to be seen")
        where = Where(url=scheduler.listening.url)
        for name in (pod.name, f"default/{pod.name}"):
            with pytest.raises(
                NotAnswered, match=rf"{pod.name} is on {pod.node}, .*kube-scheduler does not ask this process"
            ):
                await questions.ask(where, "/explain", pod=name)
        with pytest.raises(
            NotAnswered,
            match="no decision is kept for the pod 'nobody': kube-scheduler does not ask this process",
        ):
            await questions.ask(where, "/explain", pod="nobody")


async def test_taints_may_be_kept_for_the_next_start() -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        async with story.scheduling(story.tainting(on_stop=TaintsOnStop.KEEP)):
            await story.hot("n2", 4)
        assert await story.heat("n2") == 4
        prometheus.uses["n2"] = (10.0, 87.0)
        async with story.scheduling(story.tainting()) as scheduler:
            assert scheduler.tainting is not None
            await until(lambda: scheduler.tainting is not None and scheduler.tainting.lease.held, "the lease")
            assert scheduler.tainting.planned().changes == (), (
                "87 % is not well below 90 %: hysteresis outlives us"
            )


async def test_hot_nodes_keep_their_taints_when_prometheus_dies() -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        config = story.tainting()
        soon = msgspec.structs.replace(config.load, staleness=Staleness(after=1))
        async with story.scheduling(msgspec.structs.replace(config, load=soon)) as scheduler:
            await story.hot("n2", 4)
            prometheus.ill(internal_error)
            table = scheduler.facts.table
            await until(lambda: table.terms("n2").freshness is Freshness.EXPIRED, "the samples to expire")
            assert scheduler.tainting is not None
            assert scheduler.tainting.planned().changes == ()
            assert await story.heat("n2") == 4


async def test_few_are_written_a_minute_and_the_hottest_first() -> None:
    nodes = [f"n{number:02}" for number in range(12)]
    uses = dict.fromkeys(nodes, (10.0, 20.0)) | dict.fromkeys(nodes[:5], (10.0, 75.0))
    uses["n03"] = (10.0, 95.0)
    async with (
        pretending(uses) as prometheus,
        telling(prometheus.url, nodes, extender=False) as story,
        story.scheduling(story.tainting(per_minute=2)) as scheduler,
    ):
        await story.hot("n03", 4)
        tainting_ = scheduler.tainting
        assert tainting_ is not None
        await until(lambda: tainting_.planned().changes == (), "the minute's writes to be used up")
        shown = scheduler.facts
        await until(lambda: sum(level_of(n.spec.taints) > 0 for n in shown.nodes) == 2, "both to be seen")
        heats = [await story.heat(name) for name in nodes]
        assert sorted(heats)[-2:] == [2, 4]
        assert sum(map(bool, heats)) == 2
        assert tainting_.planned().waiting == 3


async def test_of_two_replicas_one_writes_and_stops_at_once_when_the_lease_is_lost() -> None:
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        first = story.tainting(on_stop=TaintsOnStop.KEEP)
        elsewhere = msgspec.structs.replace(first.server, address=ServerEndpoint("127.0.0.1:0"))
        second = msgspec.structs.replace(first, server=elsewhere)
        async with story.scheduling(first) as one, story.scheduling(second) as other:
            writers = [one.tainting, other.tainting]
            await until(lambda: any(w is not None and w.lease.held for w in writers), "a writer")
            assert sum(w is not None and w.lease.held for w in writers) == 1
            thief = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 600}}
            await story.client.patch(LEASES, "colocate-load-taints", thief, "kube-system")
            await until(lambda: not any(w is not None and w.lease.held for w in writers), "both to wait")
            prometheus.uses["n2"] = (10.0, 95.0)
            for scheduler in (one, other):
                await scheduler.facts.sampled.beyond(scheduler.facts.sampled.count + 3)
            assert await story.heat("n2") == 0, "a process without the lease writes nothing"


async def test_a_restart_of_the_api_server_is_survived() -> None:
    async with (
        pretending(CALM) as prometheus,
        telling(prometheus.url, NAMES, extender=False) as story,
        story.scheduling(story.tainting()) as scheduler,
    ):
        writer = scheduler.tainting
        assert writer is not None
        await until(lambda: writer.lease.held, "the lease")
        port = int(story.cluster.server.url.rpartition(":")[2])
        await story.cluster.server.stop()
        prometheus.uses["n2"] = (10.0, 95.0)
        await until(lambda: bool(writer.planned().changes), "something to write")
        await story.cluster.server.start(port=port)
        await story.hot("n2", 4)


async def test_in_shadow_mode_nothing_is_written_and_each_change_is_told_once() -> None:
    uses = dict.fromkeys(("n1", "n2"), (10.0, 95.0)) | dict.fromkeys(("n3", "n4", "n5", "n6"), (10.0, 20.0))
    async with pretending(uses) as prometheus, telling(prometheus.url, list(uses), extender=False) as story:
        shadow = msgspec.structs.replace(story.tainting(), shadow=True)
        with logged() as logs:
            async with story.scheduling(shadow) as scheduler:
                await until(lambda: len(told(logs, Event.TAINTS_CHANGED)) == 2, "both changes")
                rounds = scheduler.facts.sampled.count
                await until(lambda: scheduler.facts.sampled.count > rounds + 3, "more rounds")
        changes = told(logs, Event.TAINTS_CHANGED)
        assert sorted((one["node"], one["before"], one["after"], one["shadow"]) for one in changes) == [
            ("n1", 0, 4, True),
            ("n2", 0, 4, True),
        ]
        assert [await story.heat(name) for name in uses] == [0] * 6


async def test_who_is_in_shadow_does_not_keep_another_from_writing() -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        elsewhere = Server(address=ServerEndpoint("127.0.0.1:0"), callers=CallerSettings(anyone=True))
        shadow = msgspec.structs.replace(story.tainting(), shadow=True, server=elsewhere)
        with logged() as logs:
            async with story.scheduling(shadow):
                await until(lambda: bool(told(logs, Event.TAINTS_CHANGED)), "the shadow's change")
                async with story.scheduling(story.tainting()):
                    await story.hot("n2", 4)


async def test_the_herd_is_bounded_by_taints_too() -> None:
    nodes = [f"n{number:02}" for number in range(20)]
    uses = dict.fromkeys(nodes, (10.0, 20.0)) | dict.fromkeys(nodes[:5], (10.0, 95.0))
    async with (
        pretending(uses) as prometheus,
        telling(prometheus.url, nodes, extender=False) as story,
        story.scheduling(story.tainting()),
    ):
        for name in nodes[:5]:
            await story.hot(name, 4)
        await story.deploy("burst", 150, "default-scheduler")
        placed = spread(await story.pods("burst"))
    assert set(placed) == set(nodes[5:])
    assert max(placed.values()) <= 1.3 * 150 / 15, placed


async def test_nodes_that_no_pod_can_use_do_not_leave_the_coolest_one_alone() -> None:
    nodes = [f"n{number:02}" for number in range(12)]
    uses = dict.fromkeys(nodes, (10.0, 72.0)) | dict.fromkeys(nodes[:3], (10.0, 20.0)) | {"n03": (10.0, 50.0)}
    keeping = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    async with pretending(uses) as prometheus, telling(prometheus.url, nodes, extender=False) as story:
        for name in nodes[:2]:
            await story.client.patch(NODES, name, {"spec": {"taints": [keeping]}})
        await story.client.patch(NODES, nodes[2], {"spec": {"unschedulable": True}})
        async with story.scheduling(story.tainting()):
            await story.hot("n03", 2)


async def test_a_node_that_has_just_come_and_has_no_sample_yet_is_not_written_as_the_hottest() -> None:
    hot = dict.fromkeys(NAMES, (10.0, 95.0))
    async with (
        pretending(hot) as prometheus,
        telling(prometheus.url, (*NAMES, "new"), extender=False) as story,
        story.scheduling(story.tainting()) as scheduler,
    ):
        for name in NAMES:
            await story.hot(name, 4)
        tainting = scheduler.tainting
        assert tainting is not None
        await until(lambda: not tainting.planned().changes, "all to be written")
        assert tainting.shown()["new"] < 4
