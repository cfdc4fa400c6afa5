"""The memory of an idle agent with one mock resource that a kubelet listens to.

Compared with a Python process that has done nothing but `import grpc.aio`. Both are started afresh for every
sample. The ratio is that of resident memory: the proportional one, a figure here, depends on who else on the
machine has the same libraries loaded, and this bench does.
"""

import asyncio
import json
import signal
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bench.child import child
from bench.listening_kubelet import ListeningKubelet, listening_kubelet
from bench.measure import side_by_side
from bench.memory import MEGABYTE, Memory, memory_at_rest
from bench.ratio import Figure, Ratio, Row

UNWANTED = (
    *(
        "aiohttp",
        "httptools",
        "colocate.cpus.placer.placer",
        "colocate.lab",
        "colocate.runtime",
        "colocate.testing",
    ),
    *("numpy", "pydantic", "pynvml", "rich"),
)
"""What an idle agent must not load: none of it serves one, and each costs megabytes."""

RESIDENT = Ratio("memory of an idle agent", "a bare `import grpc.aio` process", 1.8)
MODULES = Ratio("unwanted modules in an idle agent", f"the {len(UNWANTED)} that are unwanted", 0.0)
RATIOS = (RESIDENT, MODULES)

_ROUNDS = 5
_RESOURCE = "mock/idle"

_BARE = "import grpc.aio, sys; print('ready', flush=True); sys.stdin.read()"
_AGENT = "from colocate.cli.main import main; main()"
_TELLING = (
    f"import atexit, json, sys; atexit.register(lambda: print(json.dumps(sorted(sys.modules)))); {_AGENT}"
)


def bench() -> list[Row]:
    return uvloop.run(_bench())


async def _bench() -> list[Row]:
    async with listening_kubelet() as kubelet:
        config = kubelet.paths.root / "agent.yaml"
        config.write_text(
            f"version: 1\nkubelet: {{root: {kubelet.paths.root}}}\n"
            f"control: {{socket: {kubelet.paths.root / 'agent.sock'}}}\n"
            f"mock: {{resources: [{{name: {_RESOURCE}, count: 8}}]}}\n"
        )
        agents: list[Memory] = []
        bares: list[Memory] = []

        async def ours() -> float:
            agents.append(await _agent_memory(_AGENT, kubelet, config))
            return agents[-1].resident

        async def theirs() -> float:
            async with child("-c", _BARE) as process:
                assert process.stdout is not None
                await process.stdout.readline()
                bares.append(await memory_at_rest(process.pid))
            return bares[-1].resident

        measured = await side_by_side(ours, theirs, warm_up=0, at_least=_ROUNDS, seconds=0)
        modules = await _modules(kubelet, config)
    loaded = [name for name in UNWANTED if name in modules]
    agent, bare = (statistics.median(m.proportional for m in side) for side in (agents, bares))
    return [
        RESIDENT.row(
            measured.ratio,
            Figure("agent", measured.ours / MEGABYTE, "MB"),
            Figure("bare", measured.theirs / MEGABYTE, "MB"),
            Figure("proportional: agent", agent / MEGABYTE, "MB"),
            Figure("bare", bare / MEGABYTE, "MB"),
            Figure("ratio", agent / bare),
            Figure("rounds", measured.rounds),
        ),
        MODULES.row(
            len(loaded) / len(UNWANTED),
            Figure("unwanted", ", ".join(loaded) or "none"),
            Figure("loaded in all", len(modules)),
        ),
    ]


async def _agent_memory(code: str, kubelet: ListeningKubelet, config: Path) -> Memory:
    async with _agent(code, kubelet, config) as process:
        return await memory_at_rest(process.pid)


async def _modules(kubelet: ListeningKubelet, config: Path) -> list[str]:
    """Every module that an agent has loaded by its end."""
    async with _agent(_TELLING, kubelet, config) as process:
        process.send_signal(signal.SIGTERM)
        out, _ = await process.communicate()
    modules: list[str] = json.loads(out)
    return modules


@asynccontextmanager
async def _agent(
    code: str, kubelet: ListeningKubelet, config: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """An agent that has registered and sent its list."""
    async with child("-c", code, "agent", "--config", str(config), "--log-level", "warning") as process:
        await kubelet.listed(1)
        yield process
    await kubelet.forget()
