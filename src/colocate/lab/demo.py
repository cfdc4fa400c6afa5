"""The steps of the demo: an embedded cluster, an agent process with mock devices, pods, and failures.

Each step does something and returns what was seen, or fails. The command shows it.
"""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from colocate.lab.api import pod_columns, quantities
from colocate.lab.api.objects import Object
from colocate.lab.api.query import ListQuery
from colocate.lab.api.resources import DEPLOYMENTS, EVENTS, NAMESPACES, NODE_METRICS, NODES, PODS
from colocate.lab.cluster import LabCluster
from colocate.lab.demo_commands import DemoFailed, DemoSkipped, ask, begin, end
from colocate.lab.demo_files import MOCK_GPUS, SAY_LIMIT, agent_config, deployment
from colocate.lab.demo_load import HOT, NAME, DemoLoad
from colocate.lab.nodes.shape import LabNodeShape
from colocate.lab.own_folder import group_of
from colocate.lab.pod_runtime import ProcessRuntime
from colocate.lab.pod_worker import PodRecord
from colocate.model.pod import Phase

RESOURCE = "mock/gpu"
DEVICES = 10
REPLICAS = 30
BY_LOAD = 10
MEMORY = "test.com/colocation-memory"
BLOCKS = 3
BLOCK = 512 << 20
GPU_MEMORY = "colocate.dev/gpu-memory"
SHARES = {"infer": 2, "tune": 4}
"""Pods that share a GPU, and the GiB that each requests."""
PATIENCE = 60
GIB = 1 << 30


class Demo:
    """One run of the demo, in its own folder."""

    def __init__(self, root: Path, nodes: list[LabNodeShape]) -> None:
        self.root = root
        self.runtime = ProcessRuntime(self.root / "pods", parent=group_of("demo"))
        # A real kubelet syncs its status every ten seconds, which would make the demo slow.
        self.cluster = LabCluster(self.root, runtime=self.runtime, nodes=nodes, status_sync=0.2)
        self.kubelet = self.cluster.kubelet
        self.kubeconfig = self.root / "kubeconfig"
        self.config = self.root / "agent.yaml"
        self.agent: asyncio.subprocess.Process | None = None
        self._log = self.root / "agent.log"
        self._nodes = nodes
        names = [one.name for shape in nodes for one in shape.each()]
        self.load = DemoLoad(self.root, names) if len(names) > 1 else None
        self._open = AsyncExitStack()

    @property
    def steps(self) -> list[tuple[str, Callable[[], Awaitable[str]]]]:
        """The steps in order: a title, and a function that returns what was seen."""
        told: list[tuple[str, Callable[[], Awaitable[str]]]] = [
            (f"Start a cluster: this machine and {len(self._nodes)} simulated nodes", self._start_cluster),
            (f"Start the agent: {DEVICES} mock devices, {RESOURCE}", self._start_agent),
            (f"Run a pod that asks for 2 {RESOURCE}", self._run_train),
            ("Run a pod that asks for 9 when 8 are free", self._run_greedy),
            (f"Offer idle memory: a pod with {BLOCKS} blocks of {MEMORY}", self._run_colocated),
            ("Share a mock GPU: two pods with 2 and 4 GiB of it", self._share_gpu),
            ("Break a device: colocate mock unhealthy", self._break_device),
            ("Repair it: colocate mock healthy", self._mend_device),
            ("Kill the agent with SIGKILL, and start it again", self._kill_agent),
            ("Restart the kubelet", self._restart_kubelet),
            ("Run short of memory: a debt, and how it is paid back", self._owe),
        ]
        if self._nodes:
            told.insert(4, (f"Roll out a deployment of {REPLICAS}", self._run_web))
        if self.load:
            hot = f"a node is at {HOT} % of its memory"
            told.insert(4, (f"Schedule by real load: {hot}", self._schedule_by_load))
        return told

    # --- steps -----------------------------------------------------------------------------------

    async def _start_cluster(self) -> str:
        await self._open.enter_async_context(self.cluster.running())
        self.cluster.server.write_kubeconfig(self.kubeconfig)
        nodes = self.cluster.store.count(NODES.storage)
        how = "a plain process" if self.runtime.without_cgroups else "a process in its own control group"
        return f"{nodes} nodes are Ready; every pod on this machine will be {how}"

    async def _start_agent(self) -> str:
        self._write_config()
        (self.root / "gpus.yaml").write_text(MOCK_GPUS)
        await self._spawn_agent()
        await self._healthy(DEVICES)
        status = self.kubelet.sync_status()
        self._expect(status.capacity[RESOURCE] == DEVICES, f"capacity is {status.capacity}")
        return f"the node shows capacity {DEVICES}, allocatable {status.allocatable[RESOURCE]}"

    async def _run_train(self) -> str:
        self._create_pod("train", 2, 'echo "I was given $MOCK_GPU"; exec sleep infinity')
        await self._phase("train", Phase.RUNNING)
        record = self.kubelet.pod("default/train")
        said = await self._said(record)
        held = self.held("train")
        self._expect(set(said.removeprefix("I was given ").split(",")) == set(held), f"the pod said: {said}")
        return f"scheduled here, it runs as process {self.pid('train')} and says: {said}"

    async def _run_greedy(self) -> str:
        self._create_pod("greedy", 9, "true")
        await self._until(lambda: bool(self._events("FailedScheduling")), "an event")
        message = self._events("FailedScheduling")[0]
        self._expect(f"Insufficient {RESOURCE}" in message, message)
        return f"it stays Pending: {message}"

    async def _run_colocated(self) -> str:
        if self.runtime.without_cgroups:
            raise DemoSkipped(
                f"no memory is offered, because {self.runtime.without_cgroups}; run the demo as root to see it"
            )
        table = self.kubelet.devices.table
        await self._until(lambda: MEMORY in table.devices, "the agent to offer memory")
        offered = int(json.loads(await self._ask_agent("memory", "status", "-o", "json"))["offered"])
        if offered < BLOCKS:
            raise DemoSkipped(
                f"this machine has {offered} idle blocks of 512 MiB, and the pod wants {BLOCKS}; free some memory"
            )
        await self._until(lambda: len(table.healthy(MEMORY)) >= BLOCKS, f"{BLOCKS} blocks")
        offered = len(table.healthy(MEMORY))
        self.cluster.registry.create(NAMESPACES, "", {"metadata": {"name": "colocation-memory"}})
        self._create_pod("test-pod", BLOCKS, SAY_LIMIT, resource=MEMORY, namespace="colocation-memory")
        await self._phase("test-pod", Phase.RUNNING)
        said = await self._said(self.kubelet.pod("colocation-memory/test-pod"))
        self._expect(said == f"I may use {BLOCKS * BLOCK} bytes", f"the pod said: {said}")
        return f"the node shows {offered} blocks of 512 MiB; the process first says: {said}"

    async def _owe(self) -> str:
        """Make the node short of memory by a larger margin, which leaves half of what the pod holds, and let it
        recover."""
        if not self.held("test-pod"):
            raise DemoSkipped("no pod holds a block, so none can be owed")
        assert self.agent is not None
        before = await self._memory()
        bar = before["bar"]
        missing = bar["published"] + bar["idle"] + BLOCKS * BLOCK // 2
        self._write_config(margin=f"{10 + 100 * missing / bar['capacity']:.2f}%")
        self.agent.send_signal(signal.SIGHUP)
        owing = await self._memory_that(lambda now: int(now["debt"]) > 0, "a debt")
        self._write_config()
        self.agent.send_signal(signal.SIGHUP)
        paid = await self._memory_that(lambda now: not now["debt"] and now["offered"], "the debt to be paid")
        [pod] = paid["pods"]
        self._expect(pod["limit"] == BLOCKS * BLOCK, f"the limit of the pod became {pod['limit']}")
        return (
            f"with a larger margin to be left free, {before['offered']} free blocks are withdrawn, and "
            f"{int(owing['debt']) / GIB:.1f} GiB of what the pod holds are a debt.\nOnline work needs none of it "
            "now, so the pod keeps its limit; with the old margin the debt is paid, and "
            f"{paid['offered']} blocks are offered"
        )

    async def _memory(self) -> dict[str, Any]:
        """The output of `colocate memory status -o json`."""
        told: dict[str, Any] = json.loads(await self._ask_agent("memory", "status", "-o", "json"))
        return told

    async def _memory_that(self, holds: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """Wait for a memory status that meets the condition."""
        for _ in range(PATIENCE * 2):
            if holds(now := await self._memory()):
                return now
            await asyncio.sleep(0.2)
        raise DemoFailed(f"waited for {what}, without success; the last status was {now}")

    def _write_config(self, margin: str = "10%") -> None:
        groups = None if self.runtime.without_cgroups else self.runtime.cgroup_root
        self.config.write_text(agent_config(self.root, RESOURCE, DEVICES, MEMORY, groups, margin))

    async def _share_gpu(self) -> str:
        await self._until(lambda: bool(self.kubelet.devices.table.healthy(GPU_MEMORY)), "the agent's GPUs")
        self.kubelet.sync_status()
        given = []
        for name, amount in SHARES.items():
            script = 'echo "$NVIDIA_VISIBLE_DEVICES"; exec sleep infinity'
            self._create_pod(name, amount, script, resource=GPU_MEMORY)
            await self._phase(name, Phase.RUNNING)
            given.append(await self._said(self.kubelet.pod(f"default/{name}")))
        self._expect(len(set(given)) == 1, f"the pods were given {', '.join(given)}")
        _, _, drawn = (await self._ask_agent("gpu", "status")).partition("\n\n")
        shown = drawn.partition("\n\n")[0]
        return f"both find {given[0]} in NVIDIA_VISIBLE_DEVICES; colocate gpu status draws it:\n{shown}"

    async def _run_web(self) -> str:
        self.cluster.registry.create(DEPLOYMENTS, "default", deployment("web", REPLICAS))

        def running() -> list[Object]:
            return [pod for pod in self.pods() if _runs(pod, "web-")]

        await self._until(lambda: len(running()) == REPLICAS, f"{REPLICAS} pods")
        nodes = {pod["spec"]["nodeName"] for pod in running()}
        return f"{REPLICAS} pods run on {len(nodes)} nodes"

    async def _schedule_by_load(self) -> str:
        load = self.load
        assert load is not None
        await load.start(self.cluster.registry, self.kubeconfig)
        await self._until(lambda: load.ready, "colocate scheduler")

        def running() -> list[Object]:
            return [pod for pod in self.pods() if _runs(pod, "by-load-")]

        async def run(name: str, count: int) -> None:
            before = len(running())
            self.cluster.registry.create(DEPLOYMENTS, "default", deployment(name, count, "100m", NAME))
            await self._until(lambda: len(running()) == before + count, f"{count} pods")

        await run("by-load-first", 1)
        [first] = running()
        words = ("scheduler", "explain", first["metadata"]["name"], "--node", load.hot)
        shown = ("--url", load.url, "--token-file", str(load.token_file))
        _, _, why = (await ask(*words, *shown)).partition("\n\n")
        await run("by-load-more", BY_LOAD - 1)
        nodes = {pod["spec"]["nodeName"] for pod in running()}
        self._expect(load.hot not in nodes, f"pods went to {', '.join(sorted(nodes))}")
        return (
            f"{BY_LOAD} pods avoid {load.hot}, although pods request no more of it than of others; its load is "
            f"simulated.\nThe reason, from colocate scheduler explain:\n{why}"
        )

    async def _break_device(self) -> str:
        await self._ask_agent("mock", "unhealthy", RESOURCE, "gpu-0007")
        await self._healthy(DEVICES - 1)
        status = self.kubelet.sync_status()
        return (
            f"allocatable is {status.allocatable[RESOURCE]} of {status.capacity[RESOURCE]}; the pod goes on"
        )

    async def _mend_device(self) -> str:
        await self._ask_agent("mock", "healthy", RESOURCE, "gpu-0007")
        await self._healthy(DEVICES)
        return f"allocatable is {self.kubelet.sync_status().allocatable[RESOURCE]} again"

    async def _kill_agent(self) -> str:
        before = self.held("train")
        await self._stop_agent(signal.SIGKILL)
        await self._healthy(0)
        lost = self.kubelet.sync_status()
        await self._spawn_agent()
        await self._healthy(DEVICES)
        self._expect(self.held("train") == before, f"train held {before} and now {self.held('train')}")
        return (
            f"without it allocatable was {lost.allocatable[RESOURCE]} of {lost.capacity[RESOURCE]}; "
            f"now {self.kubelet.sync_status().allocatable[RESOURCE]}, and train holds what it held"
        )

    async def _restart_kubelet(self) -> str:
        before = self.pid("train")
        started = self.kubelet.clock.monotonic()
        await self.kubelet.restart()
        await self._healthy(DEVICES)
        took = self.kubelet.clock.monotonic() - started
        self.kubelet.sync_status()
        self._expect(self.pid("train") == before, "train was started again")
        return f"the agent registered again within {took * 1000:.0f} ms; process {before} never noticed"

    # --- what is shown ---------------------------------------------------------------------------

    def pods(self) -> list[Object]:
        """Every pod of the cluster, as the API shows it."""
        return [stored.body for stored in self.cluster.store.items(PODS.storage)]

    def held(self, name: str) -> list[str]:
        """The ids that a pod on this machine holds."""
        table = self.kubelet.devices.table
        uids = {
            record.pod.uid for record in self.kubelet.records.values() if record.pod.metadata.name == name
        }
        return sorted(id for e in table.held.values() if e.pod_uid in uids for id in e.ids)

    def pid(self, name: str) -> int | None:
        for record in self.kubelet.records.values():
            running = self.runtime.running(record.pod, "main") if record.pod.metadata.name == name else None
            if running:
                return running.pid
        return None

    def node_loads(self) -> list[tuple[str, float, float]]:
        """Every node with the used shares of its CPU and memory, as in `kubectl top nodes`."""
        everything = ListQuery({}).selection(NODES.storage)
        sizes = {
            stored.key.name: stored.body["status"]["capacity"]
            for stored in self.cluster.store.items(NODES.storage)
        }
        loads = []
        for told in self.cluster.server.metrics.select(NODE_METRICS, "", everything):
            usage, size = told.body["usage"], sizes[told.key.name]
            shares = [
                float(quantities.parse(usage[one]) / quantities.parse(size[one])) for one in ("cpu", "memory")
            ]
            loads.append((told.key.name, shares[0], shares[1]))
        return loads

    def pod_word(self, name: str) -> str:
        """kubectl's one-word status of a pod: CrashLoopBackOff, Completed, Running."""
        [pod] = [pod for pod in self.pods() if pod["metadata"]["name"] == name]
        return str(pod_columns.cells(pod, self.cluster.clock.time())[2])

    def _events(self, reason: str) -> list[str]:
        events = [stored.body for stored in self.cluster.store.items(EVENTS.storage)]
        return [
            event.get("message") or event.get("note") or "" for event in events if event["reason"] == reason
        ]

    def agent_log(self) -> str:
        """The agent's log, to look at when the demo fails."""
        return self._log.read_text() if self._log.exists() else ""

    # --- life ------------------------------------------------------------------------------------

    async def tend(self) -> None:
        """Restart the agent if it was killed, as a DaemonSet would; sync the node's status."""
        if self.agent is not None and self.agent.returncode is not None:
            await self._spawn_agent()
        self.kubelet.sync_status()

    async def close(self) -> None:
        """Leave no process, socket or control group behind."""
        await self._stop_agent(signal.SIGTERM)
        if self.load:
            await self.load.close()
        await self._open.aclose()

    async def _spawn_agent(self) -> None:
        self.agent = await begin(self._log, "agent", "--config", str(self.config))

    async def _stop_agent(self, number: signal.Signals) -> None:
        if self.agent is not None:
            await end(self.agent, number)
            self.agent = None

    async def _ask_agent(self, *words: str) -> str:
        """Run a command that talks to the agent; returns its output."""
        return await ask(*words, "--socket", str(self.root / "agent.sock"))

    def _create_pod(
        self, name: str, count: int, script: str, *, resource: str = RESOURCE, namespace: str = "default"
    ) -> None:
        container = {
            "name": "main",
            "image": "busybox",
            "command": ["/bin/sh", "-c", script],
            "resources": {"limits": {resource: str(count)}},
        }
        spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
        self.cluster.registry.create(PODS, namespace, {"metadata": {"name": name}, "spec": spec})

    async def _healthy(self, count: int) -> None:
        await self._until(
            lambda: len(self.kubelet.devices.table.healthy(RESOURCE)) == count, f"{count} healthy devices"
        )
        self.kubelet.sync_status()

    async def _phase(self, name: str, phase: Phase) -> None:
        def reached() -> bool:
            return any(
                pod["metadata"]["name"] == name and pod["status"].get("phase") == phase for pod in self.pods()
            )

        await self._until(reached, f"{name} to be {phase}")

    async def _said(self, record: PodRecord) -> str:
        """The first line that a pod wrote."""
        log = self.runtime.log_file(record.pod, "main")
        await self._until(lambda: "\n" in log.read_text(), f"{record.pod.key} to say something")
        return log.read_text().splitlines()[0]

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition, at most for a while, and not if the agent has ended."""
        for _ in range(PATIENCE * 100):
            if holds():
                return
            gone = self.agent is not None and self.agent.returncode is not None
            self._expect(not gone, f"the agent ended while the demo waited for {what}")
            await asyncio.sleep(0.01)
        raise DemoFailed(f"waited {PATIENCE} s for {what}, without success")

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise DemoFailed(otherwise)


def _runs(pod: Object, prefix: str) -> bool:
    return bool(pod["metadata"]["name"].startswith(prefix) and pod["status"].get("phase") == Phase.RUNNING)
