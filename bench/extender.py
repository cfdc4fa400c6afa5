"""The scheduler extender: what a question of kube-scheduler costs, against a handler that only echoes its body.

Both are aiohttp servers, each in a process of its own, asked in turn by this one over a connection that stays
open, as kube-scheduler asks. Prioritize is asked about 5000 names; filter and prioritize, one after the other,
about 500 whole nodes. Their CPU time is the kernel's count.
"""

import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import uvloop

from bench.child import child
from bench.extender_questions import Question, questions_about_names, questions_about_nodes
from bench.http_caller import Caller
from bench.ratio import Figure, Ratio, Row
from colocate.errors import ColocateError

NAMES = 5000
NODES = 500
BATCH = 20
"""Questions to one side before it is the other's turn."""
ROUNDS = 60

ECHO = "an aiohttp handler that echoes the body"
OF_NAMES = (
    Ratio("prioritize at 5000 names, p50", ECHO, 2.5),
    Ratio("prioritize at 5000 names, p99", ECHO, 4.0),
    Ratio("prioritize at 5000 names, CPU", ECHO, 5.0),
)
OF_NODES = (
    Ratio("filter + prioritize at 500 whole nodes, p50", ECHO, 2.5),
    Ratio("filter + prioritize at 500 whole nodes, p99", ECHO, 4.0),
    Ratio("filter + prioritize at 500 whole nodes, CPU", ECHO, 5.0),
)
RATIOS = OF_NAMES + OF_NODES


class Side(msgspec.Struct):
    """One of the two servers, and what was seen of it."""

    caller: Caller
    process: int
    seconds: list[float] = []
    cpu: float = 0.0

    async def ask(self, questions: Sequence[Question], times: int) -> None:
        """Ask all questions so many times; those asked together count as one."""
        before = _cpu_seconds(self.process)
        for _ in range(times):
            started = time.perf_counter()
            for question in questions:
                await self.caller.post(question.path, question.body)
            self.seconds.append(time.perf_counter() - started)
        self.cpu += _cpu_seconds(self.process) - before

    def forget(self) -> None:
        self.seconds = []
        self.cpu = 0.0


def bench() -> list[Row]:
    return uvloop.run(_bench())


async def _bench() -> list[Row]:
    # Connected once both are up: a connection on which nothing is asked for long is closed.
    async with (
        _server("ours") as (ours, our_port),
        _server("echo") as (echo, echo_port),
        Caller.connected(our_port) as to_ours,
        Caller.connected(echo_port) as to_echo,
    ):
        sides = Side(to_ours, ours), Side(to_echo, echo)
        return [
            *await _compared(OF_NAMES, *sides, questions_about_names(NAMES)),
            *await _compared(OF_NODES, *sides, questions_about_nodes(NODES)),
        ]


async def _compared(
    ratios: Sequence[Ratio], ours: Side, echo: Side, questions: Sequence[Question]
) -> list[Row]:
    for side in (ours, echo):
        await side.ask(questions, BATCH)
        side.forget()
    for _ in range(ROUNDS):
        await ours.ask(questions, BATCH)
        await echo.ask(questions, BATCH)
    return [
        _row(ratios[0], _percentile(ours, 50), _percentile(echo, 50)),
        _row(ratios[1], _percentile(ours, 99), _percentile(echo, 99)),
        _row(ratios[2], ours.cpu / len(ours.seconds), echo.cpu / len(echo.seconds)),
    ]


def _row(ratio: Ratio, ours: float, theirs: float) -> Row:
    return ratio.row(ours / theirs, Figure("ours", ours * 1e3, "ms"), Figure("echo", theirs * 1e3, "ms"))


def _percentile(side: Side, percent: int) -> float:
    return statistics.quantiles(side.seconds, n=100)[percent - 1]


def _cpu_seconds(process: int) -> float:
    """How long a process has been on a CPU, counted in nanoseconds and not in the ticks of its `stat`."""
    return (
        sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{process}/task").glob("*/schedstat"))
        / 1e9
    )


@asynccontextmanager
async def _server(kind: str) -> AsyncIterator[tuple[int, int]]:
    """A server's process id, and its port."""
    async with child("-c", f"from bench.extender_servers import serve; serve({kind!r})") as process:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise ColocateError(f"the server {kind!r} ended before it listened; see above")
        yield process.pid, int(line)
