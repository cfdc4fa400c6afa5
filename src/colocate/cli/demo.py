"""`colocate demo`: try Colocate on this machine, without a cluster."""

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from textwrap import indent

from colocate.cli.commands import Commands
from colocate.cli.main import GROUPS
from colocate.cli.memory_status import drawn
from colocate.errors import ColocateError, UserError
from colocate.lab.nodes.shape import LabNodeShape, from_file, generated
from colocate.memory.agent.control import REPORT, AskReport
from colocate.memory.agent.report import MemoryReport
from colocate.model.device import Health
from colocate.model.figures import amount
from colocate.wire import control_socket as control

try:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from colocate.lab.demo import RESOURCE, Demo
    from colocate.lab.demo_commands import INDENT, DemoSkipped
    from colocate.lab.own_folder import own_folder
except ImportError as missing:
    raise UserError(
        "the demo needs more packages; install rich and cryptography, or the extra 'lab' of kube-colocate"
    ) from missing

_PAUSE = 1.5
_COLOURS = ("cyan", "magenta", "yellow", "blue")
_MOST_PODS = 8
_BAR = 10
_HOT = 0.8
_COMMAND = sys.argv[0] if os.access(sys.argv[0], os.X_OK) else "colocate"
"""The command as it can be pasted into another terminal, whose PATH may lack it."""
_SOCKET = control.AGENT.variable


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "demo",
        help=GROUPS["demo"],
        description="Run an embedded cluster with this machine and simulated nodes, an agent with mock "
        "devices, and pods as real processes. It runs until Ctrl-C, so that you can use kubectl "
        "from another terminal.",
        epilog="Ctrl-C ends it and leaves nothing behind.",
    )
    parser.add_argument("--once", action="store_true", help="run the demo, check it, and exit 0 or 1")
    parser.add_argument(
        "--speed", type=float, default=1.0, metavar="N", help="how fast the demo runs on a terminal (1)"
    )
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="how many simulated nodes (3)")
    parser.add_argument(
        "--nodes-file", type=Path, metavar="FILE", help="simulated nodes from a YAML file instead"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not args.speed > 0:
        raise UserError("--speed: must be greater than 0, such as 2 for twice as fast")
    nodes = from_file(args.nodes_file) if args.nodes_file else generated(args.nodes)
    return asyncio.run(_tell(args.once, args.speed, nodes))


async def _tell(once: bool, speed: float, nodes: list[LabNodeShape]) -> int:
    console = Console(highlight=False)
    task = asyncio.current_task()
    assert task is not None
    # SIGTERM cleans up as Ctrl-C does.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with own_folder("demo") as root:
        return await _story(Demo(root, nodes), console, once, speed)


async def _story(demo: Demo, console: Console, once: bool, speed: float) -> int:
    story = Story(demo, console, live=console.is_terminal and not once)
    try:
        with story.shown():
            for title, step in demo.steps:
                await story.step(title, step)
                if story.is_live:
                    await asyncio.sleep(_PAUSE / speed)
            story.end(once)
            if not once:
                await _go_on(demo, story)
    except ColocateError as error:
        story.fail(str(error))
        return 1
    except asyncio.CancelledError:
        return 0
    finally:
        await demo.close()
    return 0


async def _go_on(demo: Demo, story: "Story") -> None:
    while True:
        await asyncio.sleep(0.25)
        await demo.tend()
        await story.look()
        story.refresh()


class Story:
    """Progress of the demo: lines on a pipe, a live view on a terminal."""

    def __init__(self, demo: Demo, console: Console, *, live: bool) -> None:
        self._demo = demo
        self._console = console
        self._live = _live(console) if live else None
        self._size = console.size
        self._told: list[RenderableType] = []
        self._started = time.monotonic()
        self._closing: list[str] = []
        self._steps = 0
        self._skipped = 0
        self._memory: MemoryReport | None = None

    @property
    def is_live(self) -> bool:
        return self._live is not None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        if self._live:
            self._live.start()
        try:
            yield
        finally:
            if self._live:
                self._live.stop()

    async def step(self, title: str, do: Callable[[], Awaitable[str]]) -> None:
        """Run a step, and print its name and result above the live view."""
        begun = time.monotonic()
        mark, colour = "✓", "green"
        try:
            seen = await do()
        except DemoSkipped as skipped:
            mark, colour, seen = "–", "yellow", f"skipped: {skipped}"
            self._skipped += 1
        self._steps += 1
        took = f"  {time.monotonic() - begun:.1f} s"
        self._tell(Text.assemble((f"{mark} ", colour), (title, "bold"), (took, "dim")), seen)
        await self.look()
        self.refresh()

    def _tell(self, title: Text, seen: str) -> None:
        """On a pipe the line unchanged; on a terminal wrapped."""
        self._console.print(title)
        if self._live is None:
            self._console.print(indent(seen, " " * INDENT), soft_wrap=True)
        else:
            below = Padding(seen, (0, 0, 0, INDENT))
            self._console.print(below)
            self._told += [title, below]

    async def look(self) -> None:
        """Ask the agent about memory; without an answer, keep the last one."""
        try:
            self._memory = await control.ask(self._demo.root / "agent.sock", REPORT, AskReport())
        except ColocateError:
            return

    def end(self, once: bool) -> None:
        if once:
            self._console.print(self._board())
            took = f"in {time.monotonic() - self._started:.1f} s"
            done = f"{self._steps - self._skipped} of {self._steps} steps worked"
            worked = f"{done}, {self._skipped} skipped" if self._skipped else "Everything worked"
            self._console.print(f"{worked}, {took}.")
            return
        self._closing = list(self._hints())
        if self._live is None:
            self._console.print("\n".join(self._closing), soft_wrap=True)
            self._console.file.flush()
        self.refresh()

    def _hints(self) -> Iterator[str]:
        yield "Try it from another terminal:"
        # Short enough for a narrow terminal: a wrapped path cannot be pasted.
        yield f"  cd {shlex.quote(str(Path.cwd()))}; D={self._demo.root}"
        yield f"  export KUBECONFIG=$D/kubeconfig {_SOCKET}=$D/agent.sock"
        yield "  kubectl get nodes; kubectl top nodes; kubectl logs train; kubectl apply -f examples/pod.yaml"
        yield f"  {_COMMAND} mock unhealthy {RESOURCE} gpu-0004"
        if self._memory:
            yield f"  {_COMMAND} memory status"
        if load := self._demo.load:
            yield f"  {_COMMAND} scheduler top --url {load.url} --token-file $D/{load.token_file.name}"
        if self._demo.agent:
            yield f"  kill -9 {self._demo.agent.pid}   # the agent; it is started again"
        yield "Ctrl-C ends the demo and leaves nothing behind."

    def fail(self, reason: str) -> None:
        self._console.print(Text.assemble(("✗ ", "red"), reason))
        log = self._demo.agent_log()
        if log:
            sys.stderr.write(f"the agent's log:\n{log}")

    def refresh(self) -> None:
        if self._live:
            if self._console.size != self._size:
                self._begin_anew()
            closing = [Text(line, "dim") for line in self._shown_hints()]
            self._live.update(Group(self._board(), *closing), refresh=True)

    def _begin_anew(self) -> None:
        """After a resize the terminal has rewrapped its lines, and the position of the live view is lost."""
        assert self._live is not None
        self._size = self._console.size
        self._live.stop()
        self._console.clear()
        for one in self._told:
            self._console.print(one)
        self._live = _live(self._console)
        self._live.start()

    def _shown_hints(self) -> list[str]:
        width = self._console.width
        return [part for line in self._closing for part in continued(line, width)]

    def _board(self) -> RenderableType:
        parts: list[RenderableType] = [self._devices(), *self._memory_bar()]
        # Leave out what would push the hints off a small terminal: first the loads, then pods.
        room = self._room() - len(parts)
        loads = self._demo.node_loads()
        pods = max(1, min(_MOST_PODS, room - 3))
        parts += [Text(), self._pods(pods)]
        if loads and room - 3 - pods >= len(loads) + 2:
            parts += [Text(), _loads(loads)]
        # At most as wide as a readable line, and never wider than the terminal, which may be resized.
        width = min(100, self._console.width)
        return Panel(Group(*parts), title="this-machine", title_align="left", width=width)

    def _room(self) -> int:
        """Lines inside the panel."""
        if self._live is None:
            return 100
        width = max(1, self._console.width)
        hints = sum(-(-len(line) // width) for line in self._shown_hints())
        return self._console.height - hints - 3

    def _memory_bar(self) -> list[RenderableType]:
        report = self._memory
        if report is None:
            return []
        told = f"{report.offered} free, {report.held} held"
        debt = f"   debt {amount(report.debt)}" if report.debt else ""
        width = max(10, min(40, self._console.width - 50))
        bar = Text.from_ansi(drawn(report.bar.parts(), self._console.is_terminal, width))
        figures = _row(3)
        figures.add_row(Text("memory", "bold"), f"blocks {told}{debt}", _cut(bar))
        return [figures]

    def _devices(self) -> RenderableType:
        kubelet = self._demo.kubelet
        table = kubelet.devices.table if hasattr(kubelet, "devices") else None
        colours = self._colour_of_ids()
        strip = Text()
        for id, device in sorted(table.devices.get(RESOURCE, {}).items()) if table else ():
            healthy = device.health is Health.HEALTHY
            mark = "■" if id in colours else ("□" if healthy else "✗")
            strip.append(f"{mark} ", colours.get(id, "white") if healthy else "red")
        status = kubelet.status
        figures = _row(4)
        figures.add_row(
            Text(RESOURCE, "bold"),
            f"capacity {status.capacity.get(RESOURCE, '–')}",
            f"allocatable {status.allocatable.get(RESOURCE, '–')}",
            _cut(strip),
        )
        return figures

    def _pods(self, most: int) -> RenderableType:
        pods = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
        for column in ("pod", "status", "pid", "devices"):
            pods.add_column(column, no_wrap=column != "devices")
        shown = [pod for pod in self._demo.pods() if not pod["metadata"].get("ownerReferences")]
        for index, pod in enumerate(shown[-most:]):
            name = pod["metadata"]["name"]
            word = self._demo.pod_word(name)
            style = "green" if word in ("Running", "Completed") else "red" if "Error" in word else "yellow"
            pods.add_row(
                name,
                Text(word, style),
                str(self._demo.pid(name) or ""),
                _cut(Text(" ".join(self._demo.held(name)), _COLOURS[index % len(_COLOURS)])),
            )
        others = len(self._demo.pods()) - len(shown)
        return Group(pods, Text(f"… and {others} of deployments")) if others else pods

    def _colour_of_ids(self) -> dict[str, str]:
        shown = [pod for pod in self._demo.pods() if not pod["metadata"].get("ownerReferences")]
        return {
            id: _COLOURS[index % len(_COLOURS)]
            for index, pod in enumerate(shown[-_MOST_PODS:])
            for id in self._demo.held(pod["metadata"]["name"])
        }


def _live(console: Console) -> Live:
    return Live(console=console, auto_refresh=False, transient=False)


def continued(line: str, width: int) -> list[str]:
    """A command in as many lines as needed, which can still be pasted; other lines unchanged."""
    if len(line) <= width or not line.startswith(" "):
        return [line]
    lines = ["  "]
    for word in line.partition("   #")[0].split():
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else lines[-1] + word
        if len(longer) + len(" \\") > width and lines[-1].strip():
            lines[-1] += " \\"
            lines.append(f"      {word}")
        else:
            lines[-1] = longer
    return lines


def _row(columns: int) -> Table:
    """Figures side by side in one line; the last one is cut if there is no room."""
    row = Table.grid(padding=(0, 3))
    for number in range(columns):
        row.add_column(no_wrap=number < columns - 1)
    return row


def _cut(text: Text) -> Text:
    """Text in one line, cut if there is no room."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _loads(loads: list[tuple[str, float, float]]) -> RenderableType:
    """The load of every node, as kubectl top shows it."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for column in ("node", "cpu", "memory", ""):
        table.add_column(column)
    for name, cpu, memory in loads:
        cells = min(_BAR, round(memory * _BAR))
        colour = "red" if memory >= _HOT else "green"
        bar = Text("█" * cells + "░" * (_BAR - cells), colour)
        table.add_row(name, f"{int(cpu * 100)} %", f"{int(memory * 100)} %", bar)
    return table
