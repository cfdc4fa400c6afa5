"""A real Prometheus and real node-exporters, each of which sees a machine as busy as the test wants.

    async with Metrics(folder) as metrics:
        await metrics.node("a", memory_percent=90)
        await metrics.node("b")
        await metrics.settled()                      # Prometheus' rules say so, too
        await metrics.node("a", memory_percent=20)   # changes what is there
        await metrics.exporter("b").stop()           # and start() again
        await metrics.stop()                         # Prometheus; and start() again, on the same port

The recording rules are those of the preset `seed`, with a window of seconds instead of minutes. Every exporter
listens on a loopback address of its own, so that nodes can be told apart by address.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import yaml

from colocate.cluster.usage import KnownNode, Preset, rules
from colocate.model.load import Amount
from tests.support import components

CPUS = 4
MEMORY = 16 << 30
CAPACITY = Amount(CPUS * 1000, MEMORY)
SCRAPE = 0.5
"""Seconds between scrapes, and between evaluations of rules."""
WINDOW = 3.0
"""Seconds that the rules average over."""
_TICK = 0.05
_CLOSE = 5.0


class Process:
    """A program that runs until it is told to stop, with its words in a file."""

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        # They end with us, even where a test run is killed.
        self._command = ["setpriv", "--pdeathsig", "KILL", _program(name), *arguments]
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._running is None, "it runs already"
        with self._log.open("ab") as log:
            # A small share of a small machine: the tests want it, too.
            environ = os.environ | {"GOMAXPROCS": "1"}
            self._running = subprocess.Popen(self._command, stdout=log, stderr=log, env=environ)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it; at once with SIGKILL."""
        if self._running is not None:
            self._running.send_signal(how)
            try:
                self._running.wait(10)
            except subprocess.TimeoutExpired:
                self._running.kill()
                self._running.wait()
            self._running = None

    @property
    def runs(self) -> bool:
        return self._running is not None

    def check(self) -> None:
        """Fail with its last words where it has ended by itself."""
        if self._running is not None and self._running.poll() is not None:
            raise AssertionError(f"{self._command[3]} has ended: {self._log.read_text()[-2000:]}")


class FakeProc:
    """A /proc with just what node-exporter reads for CPU and memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "self").mkdir()
        self.memory_percent = 20.0
        self.cpu_percent = 10.0
        self._busy = self._idle = 0.0
        self._then = time.monotonic()
        self.tick()

    def tick(self) -> None:
        """Let the counters be where they are by now."""
        now = time.monotonic()
        passed, self._then = now - self._then, now
        self._busy += passed * self.cpu_percent / 100
        self._idle += passed * (1 - self.cpu_percent / 100)
        # User, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice: in hundredths of seconds.
        times = f"{self._busy * 100:.0f} 0 0 {self._idle * 100:.0f} 0 0 0 0 0 0"
        lines = [f"cpu  {times}", *(f"cpu{number} {times}" for number in range(CPUS))]
        ends = ["intr 0", "ctxt 1", "btime 1700000000", "processes 1", "procs_running 1", "procs_blocked 0"]
        self._write("stat", "\n".join([*lines, *ends, ""]))
        total = MEMORY >> 10
        available = round(total * (1 - self.memory_percent / 100))
        self._write(
            "meminfo",
            f"MemTotal: {total} kB\nMemFree: {available // 2} kB\nMemAvailable: {available} kB\n",
        )

    def _write(self, name: str, text: str) -> None:
        fresh = self.folder / f".{name}"
        fresh.write_text(text)
        fresh.replace(self.folder / name)


class Exporter:
    """node-exporter on one pretended machine."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name = name
        self.ip = f"127.0.0.{10 + number}"
        self.address = f"{self.ip}:{free_port(self.ip)}"
        folder.mkdir()
        self.proc = FakeProc(folder / "proc")
        (folder / "sys").mkdir()
        self.process = Process(
            "node-exporter",
            [
                f"--web.listen-address={self.address}",
                f"--path.procfs={self.proc.folder}",
                f"--path.sysfs={folder / 'sys'}",
                "--collector.disable-defaults",
                "--collector.cpu",
                "--collector.meminfo",
                "--collector.stat",
            ],
            folder / "log",
        )

    @property
    def known(self) -> KnownNode:
        """The node that this exporter is on, as a cluster would describe it."""
        return KnownNode(self.name, (self.ip, self.name), CAPACITY)

    async def start(self) -> None:
        self.process.start()
        await answers(f"http://{self.address}/metrics", self.process)

    async def stop(self) -> None:
        self.process.stop()


class Metrics:
    """One Prometheus and the exporters that it scrapes."""

    def __init__(
        self,
        folder: Path,
        node_label: str = "node",
        web: Mapping[str, object] | None = None,
        more_rules: Mapping[str, str] | None = None,
        relabelling: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """`node_label` is the label that names a target's node; empty for none, so that only `instance` does.

        `more_rules` are recording rules, PromQL by name; `relabelling` is done to all that is scraped. `web` is
        Prometheus' web configuration: TLS and passwords. Readiness is then asked for by the caller.
        """
        self.folder = folder
        self._node_label = node_label
        self._relabelling = relabelling
        self._exporters: dict[str, Exporter] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._port = free_port("127.0.0.1")
        self._guarded = web is not None
        self.url = f"http{'s' if web and 'tls_server_config' in web else ''}://127.0.0.1:{self._port}"
        self._over = threading.Event()
        self._ticking = threading.Thread(target=self._tick, daemon=True)
        (folder / "targets").mkdir(parents=True)
        self.rules = folder / "rules.yaml"
        self.rules.write_text(rules(Preset.REAL_USAGE, WINDOW, SCRAPE))
        more = [{"record": name, "expr": promql} for name, promql in (more_rules or {}).items()]
        (folder / "more-rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "more", "rules": more}]}))
        config = folder / "prometheus.yaml"
        config.write_text(yaml.safe_dump(self._config()))
        arguments = [
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
            # Else a target waits five more seconds for its first scrape.
            "--scrape.discovery-reload-interval=100ms",
        ]
        if web is not None:
            (folder / "web.yaml").write_text(yaml.safe_dump(dict(web)))
            arguments.append(f"--web.config.file={folder / 'web.yaml'}")
        self._process = Process("prometheus", arguments, folder / "log")

    def _config(self) -> dict[str, Any]:
        interval = f"{SCRAPE * 1000:.0f}ms"
        return {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": [str(self.rules), str(self.folder / "more-rules.yaml")],
            "scrape_configs": [
                {
                    "job_name": "node-exporter",
                    "file_sd_configs": [{"files": [str(self.folder / "targets" / "*.json")]}],
                    "metric_relabel_configs": [dict(rule) for rule in self._relabelling],
                }
            ],
        }

    async def __aenter__(self) -> "Metrics":
        self._ticking.start()
        await self.start()
        return self

    async def __aexit__(
        self, type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._ticking.join(_CLOSE)
        self._process.stop(signal.SIGKILL)
        for exporter in self._exporters.values():
            exporter.process.stop(signal.SIGKILL)

    async def start(self) -> None:
        """Start Prometheus, again where it was stopped: the port and the data are those that it had."""
        self._process.start()
        if not self._guarded:
            await answers(f"{self.url}/-/ready", self._process)

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._process.stop(how)

    async def node(
        self,
        name: str,
        memory_percent: float | None = None,
        cpu_percent: float | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Exporter:
        """A node that is so busy: a new one, or the one that there is. `labels` are its target's further ones."""
        exporter = self._exporters.get(name)
        if exporter is None:
            exporter = Exporter(name, len(self._exporters), self.folder / f"node-{name}")
        if memory_percent is not None:
            exporter.proc.memory_percent = memory_percent
        if cpu_percent is not None:
            exporter.proc.cpu_percent = cpu_percent
        if name not in self._exporters:
            await exporter.start()
            self._exporters[name] = exporter
            self._labels[name] = {self._node_label: name} if self._node_label else {}
        if labels is not None:
            self._labels[name] |= labels
        self.scrape(name, exporter.address, self._labels[name])
        return exporter

    def exporter(self, name: str) -> Exporter:
        return self._exporters[name]

    def known(self) -> list[KnownNode]:
        """All nodes, as a cluster would describe them, whether their exporters run or not."""
        return [exporter.known for exporter in self._exporters.values()]

    async def query(self, promql: str) -> dict[str, float]:
        """Values by node: by the node label of each series, else by its exporter."""
        names = {exporter.address: exporter.name for exporter in self._exporters.values()}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/api/v1/query", params={"query": promql}) as response,
        ):
            answer = await response.json()
        assert answer["status"] == "success", answer
        found = [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]
        return {
            labels.get(self._node_label) or names.get(labels.get("instance", ""), ""): value
            for labels, value in found
        }

    async def settled(self, within: float = 4.0) -> None:
        """Return once Prometheus' rules say of every running exporter what the test has set."""
        wanted = {name: one.proc for name, one in self._exporters.items() if one.process.runs}

        async def said() -> bool:
            memory = await self.query("node_mem_usage_avg_5m")
            cpu = await self.query("node_cpu_usage_avg_5m")
            return all(
                abs(memory.get(name, -100) - proc.memory_percent) < within
                and abs(cpu.get(name, -100) - proc.cpu_percent) < within
                for name, proc in wanted.items()
            )

        async with asyncio.timeout(60):
            while not await said():
                self._process.check()
                await asyncio.sleep(_TICK)

    def scrape(self, name: str, address: str, labels: Mapping[str, str]) -> None:
        """Let Prometheus scrape what is at this address."""
        target = {"targets": [address], "labels": dict(labels)}
        # Prometheus reads the folder when a file is moved into it: never half of one.
        fresh = self.folder / f"target-{name}"
        fresh.write_text(json.dumps([target]))
        fresh.replace(self.folder / "targets" / f"{name}.json")

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            for exporter in list(self._exporters.values()):
                exporter.proc.tick()


async def answers(url: str, process: Process, seconds: float = 60) -> None:
    """Return once the process answers at this address."""
    async with asyncio.timeout(seconds), aiohttp.ClientSession() as session:
        while True:
            process.check()
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.02)


def free_port(ip: str) -> int:
    with socket.socket() as probe:
        probe.bind((ip, 0))
        port: int = probe.getsockname()[1]
        return port


def _program(name: str) -> str:
    found = components.find(name)
    assert found is not None, f"{name} is not here"
    return found
