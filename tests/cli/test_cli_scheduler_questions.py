"""`colocate scheduler serve` as a process, and the commands that ask it or a snapshot."""

import asyncio
import json
import os
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.running import COMMAND, PATIENCE, colocate, on_terminal
from tests.load.facts import NOW, SIZE, load, pod, table
from tests.scheduler.pretending import pretending
from tests.scheduler.story import Story, deployment, spread, telling

from colocate.errors import UserError
from colocate.load import LoadTable, snapshot
from colocate.model.load import Access, BoundPod, NodeFacts, Taint
from colocate.scheduler import client as questions
from colocate.scheduler.client import Where
from colocate.scheduler.sections import Load

SEED = Path(__file__).parents[1] / "data" / "seeds" / "001-scheduler.yaml"
NAMES = ("n1", "n2", "n3")
USES = {"n1": (10.0, 20.0), "n2": (10.0, 92.0), "n3": (10.0, 30.0)}


class Serving:
    """A scheduler in a process of its own, beside a cluster."""

    def __init__(self, story: Story, process: asyncio.subprocess.Process) -> None:
        self.story = story
        self.url = f"http://127.0.0.1:{story.port}"
        self.process = process

    async def ask(self, *words: str) -> str:
        ended = await colocate("scheduler", *words, "--url", self.url)
        assert ended.code == 0, ended.err
        return ended.out

    async def event(self, name: str) -> dict[str, Any]:
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := await self.process.stderr.readline():
                event: dict[str, Any] = json.loads(line)
                if event["event"] == name:
                    return event
        raise AssertionError(f"no {name} before the end of the log")


@asynccontextmanager
async def serving(folder: Path, *flags: str, files: int = 0, **config: Any) -> AsyncIterator[Serving]:
    """`files` is how many the process may have open, where that is to be bounded."""
    async with pretending(USES) as prometheus, telling(prometheus.url, NAMES) as story:
        file = folder / "scheduler.yaml"
        settings = {
            "version": 1,
            "log": {"format": "json"},
            "server": {"address": f"127.0.0.1:{story.port}", "callers": {"anyone": True}},
            "usage": {"prometheus": {"url": prometheus.url}, "interval": "200ms", "average": "3s"},
        }
        file.write_text(yaml.safe_dump(settings | config))
        kubeconfig = folder / "kubeconfig"
        story.cluster.server.write_kubeconfig(kubeconfig)
        words = ("scheduler", "serve", "--config", str(file), "--kubeconfig", str(kubeconfig), *flags)
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *words,
            stderr=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if not name.startswith("COLOCATE_")},
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files)) if files else None,
        )
        made = Serving(story, process)
        try:
            await made.event("scheduler.ready")
            yield made
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                await process.communicate()
        assert process.returncode == 0


async def test_why_a_pod_went_where_it_went_and_not_elsewhere(tmp_path: Path) -> None:
    async with serving(tmp_path, decisions={"nodes": 2}) as scheduler:
        await scheduler.story.deploy("nginx", 6)
        pods = await scheduler.story.pods("nginx")
        assert "n2" not in spread(pods)

        said = await scheduler.ask("explain", f"default/{pods[0].name}")
        assert said.startswith(f"default/{pods[0].name}\n")
        assert "judged by balanced" in said
        assert "of 3 candidates" in said
        told = json.loads(await scheduler.ask("explain", pods[0].name, "-o", "json"))
        assert {node["node"] for node in told["explanation"]["nodes"]} == {"n1", "n3"}

        latest = (await scheduler.ask("decisions", "--last", "3")).splitlines()
        assert latest[0].split()[:5] == ["DAY", "TIME", "(UTC)", "POD", "BEST"]
        assert len(latest) == 4

        lost = await scheduler.ask("explain", pods[0].name, "--node", "n2")
        assert "peak memory 92.0 %" in lost
        assert len([line for line in lost.splitlines() if line[:1].isdigit()]) == 2, "it, and the best"
        every = json.loads(await scheduler.ask("explain", pods[0].name, "--all", "-o", "json"))
        assert {node["node"] for node in every["explanation"]["nodes"]} == set(NAMES)
        ended = await colocate(
            "scheduler", "explain", pods[0].name, "--node", "this-machine", "--url", scheduler.url
        )
        assert ended.code == 1
        assert "'this-machine' was not a candidate" in ended.err

        ended = await colocate("scheduler", "explain", "default/nobody", "--url", scheduler.url)
        assert (ended.code, ended.out) == (1, "")
        assert "no decision is kept for the pod 'default/nobody'" in ended.err

        for words, said in (
            (("decisions", "--last", "0"), "last is '0'; write a number from 1 to 1000"),
            (("explain", ""), "the pod is missing; give one as NAMESPACE/NAME"),
        ):
            ended = await colocate("scheduler", *words, "--url", scheduler.url)
            assert (ended.code, ended.out, ended.err) == (2, "", f"colocate: {said}\n")
        with pytest.raises(UserError, match="all is 'maybe'; write true or false"):
            await questions.ask(Where(url=scheduler.url), "/explain", pod=pods[0].name, all="maybe")


async def test_from_a_snapshot_the_same_follows_without_a_cluster(tmp_path: Path) -> None:
    file, pod = tmp_path / "snapshot.json", tmp_path / "pod.yaml"
    pod.write_text(yaml.safe_dump(deployment("nginx", 1, "any")))
    async with serving(tmp_path) as scheduler:
        await scheduler.story.deploy("nginx", 3)
        live = await scheduler.ask("top")
        await scheduler.ask("snapshot", str(file))
    assert live.splitlines()[1].split()[0] == "n2", "the fullest first"

    async def offline(*words: str) -> str:
        ended = await colocate("scheduler", *words, "--snapshot", file)
        assert ended.code == 0, ended.err
        return ended.out

    assert (await offline("top")).splitlines()[1].split()[0] == "n2"
    scored = json.loads(await offline("score", "--pod", str(pod), "-o", "json"))
    order = [node["node"] for node in scored["nodes"]]
    assert order.index("n1") < order.index("n2")
    assert "mem-real-usage" in await offline("score", "--pod", str(pod), "--policy", "mem-real-usage")
    compared = await offline("compare", "balanced", "mem-real-usage", "--pod", str(pod))
    assert "balanced and mem-real-usage agree on a best node" in compared
    assert "BALANCED" in compared
    narrow = await on_terminal(
        *("scheduler", "compare", "balanced", "mem-real-usage", "--pod", pod, "--snapshot", file)
    )
    assert max(map(len, narrow.out.splitlines())) <= 80
    assert narrow.out.split() == compared.split()


async def test_a_snapshot_scores_a_pod_by_the_policy_of_its_scheduler(tmp_path: Path) -> None:
    load = Load(policies={"seed": "mem-real-usage", "default-scheduler": "target-load-packing"})
    file, pod = tmp_path / "snapshot.json", tmp_path / "pod.yaml"
    file.write_bytes(snapshot.encode(snapshot.take(LoadTable(load.settings(60.0)))))

    async def policy(*flags: str, **spec: str) -> str:
        pod.write_text(yaml.safe_dump({"metadata": {"name": "p"}, "spec": spec}))
        ended = await colocate("scheduler", "score", "--pod", pod, "--snapshot", file, "-o", "json", *flags)
        assert ended.code == 0, ended.err
        [part] = json.loads(ended.out)["mix"]
        return str(part["policy"])

    assert await policy(schedulerName="seed") == "mem-real-usage"
    assert await policy(schedulerName="another") == "balanced"
    assert await policy() == "target-load-packing", "the API server would enter default-scheduler"
    assert await policy("--policy", "oversell", schedulerName="seed") == "oversell"


async def test_a_pod_with_fields_that_are_null_is_read_as_the_extender_reads_it(tmp_path: Path) -> None:
    file, pod = tmp_path / "snapshot.json", tmp_path / "pod.yaml"
    file.write_bytes(snapshot.encode(snapshot.take(LoadTable(Load().settings(60.0)))))
    pod.write_text("metadata:\n  name: p\n  labels:\nspec:\n  containers:\n  - {name: c, resources: null}\n")
    ended = await colocate("scheduler", "score", "--pod", pod, "--snapshot", file)
    assert ended.code == 0, ended.err
    for wrong in ("spec: &all [*all]", "metadata: true\nspec: {}"):
        pod.write_text(wrong)
        ended = await colocate("scheduler", "score", "--pod", pod, "--snapshot", file)
        assert (ended.code, ended.err.count("\n")) == (2, 1)


async def test_a_pod_that_runs_is_scored_as_if_it_did_not(tmp_path: Path) -> None:
    file, asked = tmp_path / "snapshot.json", tmp_path / "pod.yaml"
    made = table({"its": load(50, 50), "equal": load(50, 50)})
    made.bind(BoundPod(pod("runs", 6000), "its", NOW))
    file.write_bytes(snapshot.encode(snapshot.take(made)))
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "6"}}}], "nodeName": "its"}

    async def scores(tree: dict[str, Any]) -> set[int]:
        asked.write_text(yaml.safe_dump(tree))
        ended = await colocate("scheduler", "score", "--pod", asked, "--snapshot", file, "-o", "json")
        assert ended.code == 0, ended.err
        return {node["score"] for node in json.loads(ended.out)["nodes"]}

    assert len(await scores({"metadata": {"name": "runs"}, "spec": spec})) == 1
    assert len(await scores({"metadata": {"name": "other", "uid": "runs"}, "spec": spec})) == 1
    assert len(await scores({"metadata": {"name": "other"}, "spec": spec})) == 2
    template = {"metadata": {"name": "runs"}, "spec": {"template": {"spec": spec}}}
    assert len(await scores(template)) == 2, "a deployment of that name makes another"


async def test_nodes_that_do_not_take_the_pod_are_no_candidates(tmp_path: Path) -> None:
    file, asked = tmp_path / "snapshot.json", tmp_path / "pod.yaml"
    made = table({"worker": load(50, 50), "other": load(60, 60), "idle": load(0, 0), "control": load(0, 0)})
    control = Taint("node-role.kubernetes.io/control-plane", "NoSchedule")
    made.add_nodes(
        [
            NodeFacts("idle", SIZE, SIZE, access=Access(cordoned=True)),
            NodeFacts("control", SIZE, SIZE, access=Access(taints=(control,))),
        ]
    )
    file.write_bytes(snapshot.encode(snapshot.take(made)))

    async def ask(*words: str, **spec: Any) -> str:
        asked.write_text(yaml.safe_dump({"metadata": {"name": "p"}, "spec": spec}))
        ended = await colocate("scheduler", *words, "--pod", asked, "--snapshot", file)
        assert ended.code == 0, ended.err
        return ended.out

    said = await ask("score")
    assert "1 of 2 candidates was best" in said
    assert said.splitlines()[-2:] == [
        "no candidate idle: it is cordoned",
        "no candidate control: the pod does not tolerate its taint node-role.kubernetes.io/control-plane:NoSchedule",
    ]
    tolerant = [{"key": control.key, "operator": "Exists"}]
    told = json.loads(await ask("score", "-o", "json", tolerations=tolerant))
    assert [node["node"] for node in told["nodes"]] == ["control", "worker", "other"]
    assert told["closed"] == [{"node": "idle", "reason": "it is cordoned"}]
    compared = await ask("compare", "balanced", "oversell", tolerations=tolerant)
    assert compared.splitlines()[-1] == "no candidate idle: it is cordoned"


async def test_serving_from_the_seeds_own_file(tmp_path: Path) -> None:
    async with pretending(USES) as prometheus, telling(prometheus.url, NAMES) as story:
        seed = tmp_path / "MemRealUsage-scheduler-conf.yaml"
        seed.write_text(SEED.read_text().replace("http://10.96.0.102:9090", prometheus.url))
        config = tmp_path / "scheduler.yaml"
        server = f"{{address: '127.0.0.1:{story.port}', callers: {{anyone: true}}}}"
        config.write_text(f"version: 1\nserver: {server}\n")
        kubeconfig = tmp_path / "kubeconfig"
        story.cluster.server.write_kubeconfig(kubeconfig)
        words = ["--config", config, "--from", seed, "--kubeconfig", kubeconfig]
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "scheduler", "serve", *map(str, words), stderr=asyncio.subprocess.PIPE
        )
        made = Serving(story, process)
        try:
            doubt = await made.event("config.doubtful")
            shown = ("--url", "http://any:password@extender:8890", "--write", tmp_path / "kube.yaml")
            printed = await colocate("scheduler", "kube-config", "--from", seed, *shown)
            assert printed.err == f"warning: {doubt['reason']}\n"
            await made.event("scheduler.ready")
            await story.deploy("nginx", 4)
            pods = await story.pods("nginx")
            assert "n2" not in spread(pods)
            told = json.loads(await made.ask("explain", pods[0].name, "-o", "json"))
            assert [part["policy"] for part in told["explanation"]["mix"]] == ["mem-real-usage"]
        finally:
            process.send_signal(signal.SIGTERM)
            await process.communicate()


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("version: 1", "usage.prometheus.url: no source of samples is configured"),
        ("version: 1\nusage: {prometheus: {url: 'no address'}}", "usage: "),
        ("version: 1\nload: {policy: best}", "'best' in the policies"),
        ("version: 1\nload: {policies: {mine: balanced=x}}", "load.policies.mine"),
        ("version: 1\nload: {ledger: {window: 5}}", "usage.shownAfter"),
        ("version: 1\nload: {staleness: {after: soon}}", "a number; write it like 0.5"),
        ("version: 1\ntaints: {perMinute: 0}", "taints.perMinute"),
        ("version: 1\ntaints: {heat: {steps: [90, 60]}}", "must be one to four rising percentages"),
        ("version: 1\nact: [magic]", "choose one of extender, taints"),
        ("version: 1\nact: []", "act: the list is empty"),
        ("version: 1\ndecisions: {keep: 0}", "decisions.keep"),
        ("version: 1\nusage: {windows: [{statistic: pod, span: 1h}]}", "usage: windows"),
    ],
)
async def test_a_bad_configuration_is_one_sentence_and_exit_code_2(
    tmp_path: Path, config: str, complaint: str
) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(config)
    ended = await colocate("scheduler", "serve", "--config", file, "--server", "http://127.0.0.1:9")
    assert ended.code == 2, ended.err
    assert complaint in ended.err
    assert ended.err.count("\n") == 1


async def test_what_cannot_be_asked_is_one_sentence(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    for words, code, said in (
        (
            ["explain", "a/b", "--url", "http://127.0.0.1:9"],
            1,
            "cannot reach the scheduler at http://127.0.0.1:9 (connection refused);",
        ),
        (["top", "--snapshot", nothing], 2, "cannot read"),
        (["top", "--url", "nowhere"], 2, "is not an address"),
        (
            ["compare", "best", "balanced", "--pod", nothing, "--snapshot", nothing],
            2,
            "'best' in the policies",
        ),
        (["serve"], 2, "--config: no configuration is given"),
        (["serve", "--from", SEED, "--act", "magic"], 2, "--act: 'magic'"),
    ):
        ended = await colocate("scheduler", *words)
        assert (ended.code, ended.out) == (code, ""), ended.err
        assert said in ended.err
        assert ended.err.count("\n") == 1
