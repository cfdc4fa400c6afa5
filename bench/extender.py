"""The scheduler extender: what a question of kube-scheduler costs, against a handler that only echoes its body.

The echo is an aiohttp server. Each is in a process of its own, asked in turn by this one over a connection that stays
open, as kube-scheduler asks. Prioritize is asked about 500 names of a cluster of 5000 nodes, which is what a
kube-scheduler at its defaults sends there, and about all 5000 for comparison, without a bar; filter and prioritize,
one after the other, about 500 whole nodes. Their CPU time is the kernel's count. Both are asked in short turns, each
of ours compared with the one of the echo right after it: what disturbs the machine for longer disturbs both. Each
question is about another pod.
"""

import itertools
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import uvloop

from bench.child import child
from bench.extender_questions import Question, questions_about_names, questions_about_nodes
from bench.http_caller import Caller
from bench.ratio import Figure, Ratio, Row
from colocate.errors import ColocateError

CLUSTER = 5000
NAMES = 500
"""The nodes that a kube-scheduler at its defaults looks for in a cluster of this size."""
NODES = 500
TURN = 10
"""Questions to one side before it is the other's turn."""
TURNS = 120

ECHO = "an aiohttp handler that echoes the body"
OF_NAMES = (
    Ratio("prioritize at 500 names of 5000, p50", ECHO, 2.0),
    Ratio("prioritize at 500 names of 5000, p99", ECHO, 4.0),
    Ratio("prioritize at 500 names of 5000, CPU", ECHO, 2.0),
)
OF_ALL_NAMES = (
    Ratio("prioritize at 5000 names, p50", ECHO, None),
    Ratio("prioritize at 5000 names, p99", ECHO, None),
    Ratio("prioritize at 5000 names, CPU", ECHO, None),
)
OF_NODES = (
    Ratio("filter + prioritize at 500 whole nodes, p50", ECHO, 2.5),
    Ratio("filter + prioritize at 500 whole nodes, p99", ECHO, 4.0),
    Ratio("filter + prioritize at 500 whole nodes, CPU", ECHO, 5.0),
)
RATIOS = OF_NAMES + OF_ALL_NAMES + OF_NODES


class Turn(msgspec.Struct, frozen=True):
    """What was seen of a server in one turn."""

    seconds: list[float]
    cpu: float
    """Seconds, of one question."""


class Side(msgspec.Struct, frozen=True):
    """One of the two servers."""

    caller: Caller
    process: int
    pods: Iterator[int] = msgspec.field(default_factory=lambda: itertools.count(1))

    async def ask(self, questions: Sequence[Question]) -> Turn:
        """Ask all questions some times; those asked together count as one."""
        seconds = []
        before = _cpu_seconds(self.process)
        for _ in range(TURN):
            pod = next(self.pods)
            bodies = [(question.path, question.of_pod(pod)) for question in questions]
            started = time.perf_counter()
            for path, body in bodies:
                await self.caller.post(path, body)
            seconds.append(time.perf_counter() - started)
        return Turn(seconds, (_cpu_seconds(self.process) - before) / TURN)


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
            *await _compared(OF_NAMES, *sides, questions_about_names(NAMES, CLUSTER)),
            *await _compared(OF_ALL_NAMES, *sides, questions_about_names(CLUSTER, CLUSTER)),
            *await _compared(OF_NODES, *sides, questions_about_nodes(NODES)),
        ]


async def _compared(
    ratios: Sequence[Ratio], ours: Side, echo: Side, questions: Sequence[Question]
) -> list[Row]:
    for side in (ours, echo):
        await side.ask(questions)
    turns = [(await ours.ask(questions), await echo.ask(questions)) for _ in range(TURNS)]
    return [
        _row(
            ratios[0],
            [(statistics.median(one.seconds), statistics.median(other.seconds)) for one, other in turns],
        ),
        _row(ratios[1], [(_p99(one for one, _ in turns), _p99(other for _, other in turns))]),
        _row(ratios[2], [(one.cpu, other.cpu) for one, other in turns]),
    ]


def _row(ratio: Ratio, pairs: Sequence[tuple[float, float]]) -> Row:
    """The median of the ratios of pairs, ours and the echo's."""
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return ratio.row(
        statistics.median(one / other for one, other in pairs),
        Figure("ours", ours * 1e3, "ms"),
        Figure("echo", theirs * 1e3, "ms"),
    )


def _p99(turns: Iterable[Turn]) -> float:
    return statistics.quantiles([second for turn in turns for second in turn.seconds], n=100)[98]


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
