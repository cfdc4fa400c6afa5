"""The process as a whole, in an embedded cluster: bursts, faults around it, what it may do, what it tells."""

import asyncio
import json
import resource
import stat
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from colocate.clock import SystemClock
from colocate.cluster.resources import DEPLOYMENTS, NODES, PODS
from colocate.cluster.usage import queries
from colocate.errors import UserError
from colocate.load.settings import AllHot, FilterSettings, LedgerSettings, LoadSettings
from colocate.model.load import Amount, BoundPod, PerResource, PodFacts, UsageThresholds
from colocate.model.values import Seconds, Size
from colocate.scheduler import client as questions
from colocate.scheduler.client import NotAnswered, Where
from colocate.scheduler.loop.decision_log import DecisionLog, Told
from colocate.scheduler.process import running
from colocate.scheduler.sections import Decisions, Load, Policies
from colocate.scheduler.settings import CallerSettings, SchedulerConfig, ServerEndpoint
from tests.cluster.usage.fake import MEMORY, Answer, contested
from tests.scheduler.asking import POD
from tests.scheduler.pretending import CALM, FAULTS, NAMES, P95, internal_error, pretending
from tests.scheduler.story import NAME, Story, deployment, spread, telling
from tests.support.waiting import until

ONE_HOT = CALM | {"n2": (10.0, 92.0)}


def long_average(story: Story, **more: Any) -> SchedulerConfig:
    """With samples that show a pod minutes after its binding, as in a real cluster."""
    config = story.config(**more)
    usage = msgspec.structs.replace(config.usage, average=Seconds(300), interval=Seconds(5))
    return msgspec.structs.replace(config, usage=usage)


async def prioritized(url: str, *names: str) -> dict[str, int]:
    body = json.dumps({"Pod": POD, "Nodes": None, "NodeNames": list(names)})
    async with aiohttp.ClientSession() as session, session.post(f"{url}/prioritize", data=body) as answer:
        assert answer.status == 200
        return {one["Host"]: one["Score"] for one in await answer.json(content_type=None)}


async def test_a_burst_within_one_interval_of_the_metrics_is_spread() -> None:
    nodes = [f"n{number:02}" for number in range(20)]
    async with (
        pretending(dict.fromkeys(nodes, (10.0, 20.0))) as prometheus,
        telling(prometheus.url, nodes) as story,
        story.scheduling(long_average(story)),
    ):
        await story.deploy("burst", 200)
        placed = spread(await story.pods("burst"))
    assert max(placed.values()) <= 1.3 * 200 / 20, placed


async def test_without_the_ledger_the_same_burst_herds() -> None:
    nodes = [f"n{number:02}" for number in range(20)]
    ledger = LedgerSettings(expiry=0.001, assumed_expiry=0.001)
    uses = dict.fromkeys(nodes, (10.0, 20.0)) | {"n07": (5.0, 15.0)}
    async with pretending(uses) as prometheus, telling(prometheus.url, nodes, points=1) as story:
        load = Load(policy=Policies("mem-real-usage"), ledger=ledger)
        async with story.scheduling(long_average(story, load=load)):
            await story.deploy("burst", 100)
            placed = spread(await story.pods("burst"))
    assert placed["n07"] > 3 * 100 / 20, placed


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_whatever_prometheus_answers_pods_are_scheduled_and_the_next_answer_is_right(
    fault: Answer,
) -> None:
    async with pretending(CALM) as prometheus:
        prometheus.ill(fault)
        async with telling(prometheus.url, NAMES) as story:
            config = story.config()
            impatient = msgspec.structs.replace(
                config.usage.prometheus, timeout=Seconds(0.3), longest_answer=Size(1 << 20)
            )
            usage = msgspec.structs.replace(config.usage, prometheus=impatient, pods=False)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            async with story.scheduling(msgspec.structs.replace(config, usage=usage)) as scheduler:
                await story.deploy("nginx", 9)
                state = json.loads(await questions.ask(Where(url=scheduler.listening.url), "/state"))
                assert all(one["error"] for one in state["samples"])
                prometheus.uses = dict(ONE_HOT)
                prometheus.well()
                await until(lambda: "n2" in scheduler.facts.table.loads, "the first samples")
                assert "n2" not in spread(await story.restart("nginx", 9))
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


async def test_a_tenant_that_claims_a_full_node_attracts_no_pod_and_is_in_the_state() -> None:
    async with pretending(CALM) as prometheus:

        async def claimed(request: web.Request) -> web.StreamResponse:
            body = contested("n2", 95, 0, time.time(), {"n1": 20, "n3": 20})
            return web.Response(body=body, content_type="application/json")

        for query in (MEMORY, P95[1]):
            prometheus.table.do(query, claimed)
        async with telling(prometheus.url, NAMES) as story, story.scheduling(story.config()) as scheduler:
            await until(lambda: "n2" in scheduler.facts.table.loads, "the first samples")
            state = json.loads(await questions.ask(Where(url=scheduler.listening.url), "/state"))
            [memory] = [one for one in state["samples"] if one["name"] == "memory"]
            [collision] = memory["collisions"]
            assert (collision["node"], collision["counted"], collision["other"]) == ("n2", 95, 0)
            assert collision["matcher"] == 'job="node-exporter"'
            await story.deploy("nginx", 6)
            assert "n2" not in spread(await story.pods("nginx"))


async def test_a_restart_of_the_api_server_is_survived() -> None:
    async with (
        pretending(ONE_HOT) as prometheus,
        telling(prometheus.url, NAMES) as story,
        story.scheduling() as scheduler,
    ):
        await story.deploy("before", 3)
        port = int(story.cluster.server.url.rpartition(":")[2])
        await story.cluster.server.stop()
        scores = await prioritized(scheduler.listening.url, *NAMES)
        assert scores["n2"] < scores["n1"], "answers do not wait for the API server"
        await story.cluster.server.start(port=port)
        await story.deploy("after", 6)
        assert "n2" not in spread(await story.pods("after"))
        pods = {pod.name for pod in await story.pods("after")}
        await until(
            lambda: pods <= {key.name for key, _ in scheduler.facts.pods.items()},
            "the new pods to be seen",
        )


async def test_a_thousand_questions_at_once_are_all_answered() -> None:
    async with (
        pretending(ONE_HOT) as prometheus,
        telling(prometheus.url, NAMES) as story,
        story.scheduling() as scheduler,
    ):
        answers = await asyncio.gather(*(prioritized(scheduler.listening.url, *NAMES) for _ in range(1000)))
        assert all(answer["n2"] < answer["n1"] for answer in answers)


async def test_replicas_give_the_same_answers() -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES) as story:
        first = long_average(story)
        second = msgspec.structs.replace(
            first, server=msgspec.structs.replace(first.server, address=ServerEndpoint("127.0.0.1:0"))
        )
        async with story.scheduling(first) as one, story.scheduling(second) as other:
            await story.deploy("nginx", 20)
            await until(
                lambda: len(one.facts.table.pods.bound) == len(other.facts.table.pods.bound) >= 20,
                "both to see all pods",
            )
            tables = [scheduler.facts.table for scheduler in (one, other)]
            for table in tables:
                for assumption in table.ledger.assumptions:
                    table.end(assumption.uid)
            answers = [await prioritized(scheduler.listening.url, *NAMES) for scheduler in (one, other)]
    assert answers[0] == answers[1]


async def test_in_shadow_mode_nothing_is_changed_and_everything_recorded(tmp_path: Path) -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES) as story:
        hot = FilterSettings(enabled=True, thresholds=UsageThresholds(usage=PerResource(65, 80)))
        config = story.config(shadow=True, load=Load(filter=hot))
        async with story.scheduling(config) as scheduler:
            scores = await prioritized(scheduler.listening.url, *NAMES)
            assert set(scores.values()) == {0}
            await story.deploy("nginx", 9)
            assert not scheduler.facts.table.ledger.assumptions
            told = scheduler.decisions.latest(1)[0]
            assert told.shadow
            assert told.explanation.nodes[0].node != "n2"
            assert told.explanation.nodes[0].score


async def test_the_filter_refuses_with_a_reason_that_explain_tells() -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES, filter=True) as story:
        hot = FilterSettings(enabled=True, thresholds=UsageThresholds(usage=PerResource(65, 80)))
        async with story.scheduling(story.config(load=Load(filter=hot))) as scheduler:
            await story.deploy("nginx", 4)
            pods = await story.pods("nginx")
            assert "n2" not in spread(pods)
            told = scheduler.decisions.find(pods[0].name)
            assert told is not None
            assert [one.node for one in told.refused] == ["n2"]
            assert "memory would be at 9" in told.refused[0].reason
            alone = scheduler.decisions.find_node(pods[0].name, "n2")
            assert alone is not None
            assert alone.refused == told.refused


async def test_a_pod_that_is_refused_everywhere_is_explained_listed_and_written(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    hot = FilterSettings(
        enabled=True, thresholds=UsageThresholds(usage=PerResource(65, 15)), all_hot=AllHot.REFUSE
    )
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES, filter=True) as story:
        config = story.config(load=Load(filter=hot), decisions=Decisions(file=file))
        async with story.scheduling(config) as scheduler:
            await story.client.create(DEPLOYMENTS, deployment("nginx", 1, NAME), "default")
            await until(lambda: bool(scheduler.decisions.latest(1)), "the pod to be refused")
            [pod] = await story.pods("nginx")
            where = Where(url=scheduler.listening.url)
            told = questions.decoded(await questions.ask(where, "/explain", pod=f"default/{pod.name}"), Told)
            assert told.explanation.refused
            assert {one.node for one in told.refused} == set(NAMES)
            with pytest.raises(NotAnswered, match="'n9' was not a candidate"):
                await questions.ask(where, "/explain", pod=pod.name, node="n9")
            [listed] = questions.decoded(await questions.ask(where, "/decisions"), list[Told])
            assert listed.explanation.pod == f"default/{pod.name}"
            for number in ("0", "1001", "-1", "0000000019999", "1" + "0" * 5000, "٣"):
                with pytest.raises(UserError, match="write a number from 1 to 1000"):
                    await questions.ask(where, "/decisions", last=number)
    line = json.loads(file.read_text().splitlines()[0])
    assert line["happened"] == "refused"
    assert {one["node"] for one in line["told"]["refused"]} == set(NAMES)


async def test_of_a_pod_that_nobody_judged_it_is_said_what_is_known() -> None:
    async with (
        pretending(CALM) as prometheus,
        telling(prometheus.url, NAMES) as story,
        story.scheduling(story.config(decisions=Decisions(keep=2))) as scheduler,
    ):
        where = Where(url=scheduler.listening.url)
        with pytest.raises(NotAnswered, match="'nobody': this replica has not judged it since it started; "):
            await questions.ask(where, "/explain", pod="nobody")
        await story.deploy("nginx", 3)
        await until(lambda: len(scheduler.facts.table.pods.bound) == 3, "the pods to be seen")
        forgotten = [pod for pod in await story.pods("nginx") if scheduler.decisions.find(pod.name) is None]
        for pod in forgotten:
            said = rf"{pod.name} is on {pod.node}, .*or 2 newer decisions have replaced it"
            with pytest.raises(NotAnswered, match=said):
                await questions.ask(where, "/explain", pod=pod.name)
        assert len(forgotten) == 1


async def test_decisions_are_kept_on_disk_and_the_files_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "log" / "decisions.jsonl"
    kept = Decisions(file=file, file_size=Size(20_000), files=2)
    async with (
        pretending(CALM) as prometheus,
        telling(prometheus.url, NAMES) as story,
        story.scheduling(story.config(decisions=kept)) as scheduler,
    ):
        await story.deploy("nginx", 12)
        await until(
            lambda: all(one.node for one in scheduler.decisions.latest(12)), "all pods to be seen bound"
        )
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["happened"] for line in lines} <= {"judged", "bound"}
    assert lines[-1]["told"]["explanation"]["nodes"]
    assert {path.name for path in file.parent.iterdir()} == {"decisions.jsonl", "decisions.jsonl.1"}
    assert all(path.stat().st_size <= 40_000 for path in file.parent.iterdir())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}
    assert modes == {0o600}, "whose pods are where is not for every user of the machine"


async def test_files_of_decisions_that_everybody_could_read_are_closed_to_them(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    old = [file, tmp_path / "decisions.jsonl.1", tmp_path / "decisions.jsonl.2"]
    for path in old:
        path.write_text("{}\n")
        path.chmod(0o644)
    log = DecisionLog(Decisions(file=file, files=3), LoadSettings(), shadow=False)
    running = asyncio.create_task(log.run())
    await until(lambda: all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in old), "private files")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_is_told_needs_what_questions_need(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open-sesame\n")
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES) as story:
        config = story.config()
        server = msgspec.structs.replace(config.server, callers=CallerSettings(token_file=token))
        async with story.scheduling(msgspec.structs.replace(config, server=server)) as scheduler:
            url = scheduler.listening.url
            with pytest.raises(NotAnswered, match=r"asks for a token; .* --token-file"):
                await questions.ask(Where(url=url), "/snapshot")
            assert await questions.ask(Where(url=url, token_file=token), "/snapshot")


async def test_pods_that_end_or_go_leave_the_table() -> None:
    async with (
        pretending(CALM) as prometheus,
        telling(prometheus.url, NAMES) as story,
        story.scheduling() as scheduler,
    ):
        await story.deploy("nginx", 3)
        bound: Mapping[str, object] = scheduler.facts.table.pods.bound
        await until(lambda: len(bound) == 3, "three pods")
        name = (await story.pods("nginx"))[0].name
        await story.client.delete(PODS, name, "default", grace=0)
        await story.placed("nginx", 3)
        names = {pod.name for pod in await story.pods("nginx")}
        await until(
            lambda: (
                {one.pod.key for one in scheduler.facts.table.pods.bound.values()}
                == {f"default/{name}" for name in names}
            ),
            "the pods that there are",
        )
        await story.client.delete(NODES, "n3")
        await until(lambda: "n3" not in scheduler.facts.table.nodes, "the node to go")


async def test_without_any_source_of_samples_it_does_not_start() -> None:
    async with telling("", NAMES) as story:
        with pytest.raises(UserError, match=r"usage\.prometheus\.url"):
            async with running(story.config(), story.client, SystemClock()):
                pass


async def test_a_prometheus_that_fails_later_leaves_the_last_samples_until_they_expire() -> None:
    async with (
        pretending(ONE_HOT) as prometheus,
        telling(prometheus.url, NAMES) as story,
        story.scheduling() as scheduler,
    ):
        prometheus.ill(internal_error)
        rounds = scheduler.facts.sampled.count
        await until(lambda: scheduler.facts.sampled.count > rounds + 1, "a failed round")
        await story.deploy("nginx", 6)
        assert Counter(spread(await story.pods("nginx")))["n2"] == 0


async def test_what_single_pods_use_is_known_by_their_uids() -> None:
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES) as story:
        config = story.config()
        usage = msgspec.structs.replace(config.usage, pods=True, pods_interval=Seconds(0.1))
        asked = {str(query.signal): query.promql for query in queries(usage).signals}
        async with story.scheduling(msgspec.structs.replace(config, usage=usage)) as scheduler:
            await story.deploy("nginx", 1)
            [pod] = await story.pods("nginx")
            for signal, value in (("pod.cpu", "30"), ("pod.memory", "5000000")):
                series = [
                    {"metric": {"namespace": "default", "pod": name}, "value": [1.7e9, value]}
                    for name in (pod.name, "stranger")
                ]
                body = {"status": "success", "data": {"resultType": "vector", "result": series}}
                prometheus.table.say(asked[signal], json.dumps(body).encode())
            usages = scheduler.facts.table.pods
            await until(lambda: bool(usages.usages), "the pod's use")
            [(uid, used)] = usages.usages.items()
            assert usages.bound[uid].pod.key == f"default/{pod.name}"
            assert used.amount == Amount(30, 5_000_000)


async def test_questions_are_answered_while_a_large_snapshot_is_written() -> None:
    async with (
        pretending(CALM) as prometheus,
        telling(prometheus.url, NAMES) as story,
        story.scheduling() as scheduler,
    ):
        table = scheduler.facts.table
        for number in range(40_000):
            table.bind(BoundPod(PodFacts(f"u{number}", f"default/p{number}"), "n1", 0.0))
        url = scheduler.listening.url
        written = asyncio.create_task(questions.ask(Where(url=url), "/snapshot"))
        answered = 0
        while not written.done():
            await prioritized(url, *NAMES)
            answered += not written.done()
        assert len(json.loads(await written)["pods"]) == 40_000
        assert answered > 1
