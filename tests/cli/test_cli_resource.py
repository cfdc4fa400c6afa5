"""`colocate resource` as a person uses it: a process against an embedded cluster, with kubectl beside it."""

import argparse
import asyncio
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from tests.cli.running import COMMAND, PATIENCE, Ended, colocate
from tests.support import components
from tests.support.plugins import FAN, Fans
from tests.support.waiting import until

from colocate.cli import resource
from colocate.cli.resource import EXIT_CODES
from colocate.clock import ManualClock, SystemClock
from colocate.devices.resources.observe import ResourceLook
from colocate.errors import Unavailable
from colocate.host.identity import this_machine
from colocate.kubelet import Plugins
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.cluster import MACHINE, LabCluster
from colocate.lab.nodes.shape import LabNodeShape
from colocate.testing import TestNode

HAND = "example.com/hand"
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "extended-resources.md"


class Skipping(SystemClock):
    """The machine's time, of which a test may leave some out."""

    skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped


class Lab:
    """An embedded cluster in this process, with a kubelet that syncs often, and the command line beside it."""

    def __init__(self, cluster: LabCluster, clock: Skipping, folder: Path) -> None:
        self.cluster = cluster
        self.clock = clock
        self.kubeconfig = folder / "kubeconfig"
        # This machine may have a kubelet of its own, which is none of this cluster's.
        elsewhere = {"COLOCATE_KUBELET_ROOT": str(folder / "no-kubelet")}
        self.environment = {"KUBECONFIG": str(self.kubeconfig)} | elsewhere
        self.node = TestNode(cluster.kubelet, ManualClock())

    async def resource(self, *words: str, stdin: str = "") -> Ended:
        return await colocate("resource", *words, stdin=stdin, **self.environment)

    def amounts(self, name: str, node: str = MACHINE) -> tuple[str | None, str | None]:
        status = self.cluster.registry.get(NODES, "", node).body["status"]
        return status["capacity"].get(name), status["allocatable"].get(name)

    async def plugin(self) -> Plugins:
        """Two fans, served in the machine's time."""
        return await self.node.serve(Fans("fan-0", "fan-1"), clock=SystemClock())

    async def dead_plugin(self) -> None:
        group = await self.plugin()
        await until(lambda: self.amounts(FAN) == ("2", "2"), "the plugin's devices")
        await self.node.kill(group)
        await until(lambda: self.amounts(FAN) == ("2", "0"), "its end to show")


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    folder, clock = Path(tempfile.mkdtemp(prefix="colo-")), Skipping()
    cluster = LabCluster(folder, nodes=[LabNodeShape(name="other")], status_sync=0.2, clock=clock)
    async with cluster.running():
        lab = Lab(cluster, clock, folder)
        cluster.server.write_kubeconfig(lab.kubeconfig)
        yield lab
        await lab.node.close()
    shutil.rmtree(folder)


async def test_list_shows_every_resource_of_every_node_in_every_form(lab: Lab) -> None:
    await lab.plugin()
    await until(lambda: lab.amounts(FAN) == ("2", "2"), "the plugin's devices")
    for node in (MACHINE, "other"):
        advertised = await lab.resource("advertise", node, f"{HAND}=3", "--yes")
        assert advertised.code == 0, advertised.err
    synced = {("3", "3")}
    await until(lambda: {lab.amounts(HAND), lab.amounts(HAND, "other")} == synced, "the kubelets' next sync")
    ended = await lab.resource("list")
    rows = [line.split() for line in ended.out.splitlines()]
    assert rows[0] == ["NODE", "RESOURCE", "CAPACITY", "ALLOCATABLE", "REQUESTED", "STATE"]
    assert [MACHINE, FAN, "2", "2", "0", "alive"] in rows
    assert rows[-1][:4] == ["(2", "nodes)", HAND, "6"]
    wide = (await lab.resource("list", "--node", MACHINE, "-o", "wide")).out
    assert "colocate wrote its capacity last" in wide
    found = json.loads((await lab.resource("list", "-o", "json")).out)
    assert found == yaml.safe_load((await lab.resource("list", "-o", "yaml")).out)
    assert {(one["node"], one["name"], one["capacity"]) for one in found} == {
        (MACHINE, FAN, 2),
        (MACHINE, HAND, 3),
        ("other", HAND, 3),
    }


async def test_a_cluster_without_any_says_so_and_bad_words_are_one_sentence(lab: Lab) -> None:
    assert (await lab.resource("list")).out == "no node has any extended resource\n"
    assert (await lab.resource("list", "--node", "other")).out == "node other has no extended resource\n"
    for words, said in [
        (["list", "--node", "nowhere"], "there is no node 'nowhere'"),
        (["list", "--node", ""], "the name of the node is empty"),
        (["remove", "", FAN], "the name of the node is empty"),
        (["advertise", "", f"{FAN}=1"], "the name of the node is empty"),
        (["list", "--watch", "-o", "json"], "--watch prints tables"),
        (["advertise", "other", "fan=1"], "it needs a domain"),
        (["advertise", "other", f"{FAN}=1"], "Add --yes"),
        (["remove", "other", FAN], "has no extended resource"),
        (["remove", "other", FAN, "--timeout", "soon"], "--timeout: 'soon' is not"),
        (["remove", "other", FAN, "--timeout", "0"], "is not more than 0"),
    ]:
        ended = await lab.resource(*words)
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
        assert said in ended.err


async def test_a_folder_is_of_the_node_that_is_named_where_nodes_share_a_kernel(lab: Lab) -> None:
    if not this_machine().boot_id:
        pytest.skip("this machine has no boot id")
    await lab.plugin()
    await lab.resource("advertise", "other", f"{FAN}=2", "--yes")
    await until(lambda: lab.amounts(FAN) == ("2", "2"), "the plugin's devices")

    def share_kernel(body: Object) -> None:
        body["status"]["nodeInfo"] = lab.cluster.registry.get(NODES, "", MACHINE).body["status"]["nodeInfo"]

    lab.cluster.registry.force(NODES, lab.cluster.registry.get(NODES, "", "other"), share_kernel)
    root, by_kubelet = str(lab.cluster.kubelet.paths.root), "podresources of this node"

    async def shown(*flags: str, **environ: str) -> dict[str, bool]:
        """The nodes that are shown, and whether each was judged by what this machine's kubelet says."""
        environ["KUBECONFIG"] = str(lab.kubeconfig)
        ended = await colocate("resource", "list", *flags, "-o", "json", **environ)
        return {one["node"]: by_kubelet in one["reason"] for one in json.loads(ended.out)}

    assert await shown("--kubelet-root", root) == {MACHINE: False, "other": False}
    assert await shown("--kubelet-root", root, "--node", MACHINE) == {MACHINE: True}
    assert await shown("--node", MACHINE, COLOCATE_KUBELET_ROOT=root) == {MACHINE: False}
    named = await shown(COLOCATE_KUBELET_ROOT=root, NODE_NAME=MACHINE)
    assert named == {MACHINE: True, "other": False}


async def test_the_help_and_the_documentation_word_the_exit_codes_alike() -> None:
    help = await colocate("resource", "remove", "--help")
    for text in (help.out, DOCUMENTATION.read_text()):
        assert EXIT_CODES in " ".join(text.split())


async def test_a_removal_ends_in_time_even_if_the_server_does_not_answer() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with server:
        at = f"http://127.0.0.1:{port}"
        ended = await colocate("resource", "remove", "n1", FAN, "--yes", "--timeout", "1s", "--server", at)
    assert ended.code == 1
    assert ended.err == (
        f"colocate: could not remove {FAN} from node n1 within 1 s: nothing was changed (the API server has not "
        f"answered); give it more time with --timeout\n"
    )


async def test_a_server_that_does_not_answer_is_one_sentence() -> None:
    ended = await colocate("resource", "list", "--server", "http://127.0.0.1:9")
    assert ended.code == 1
    assert ended.err.startswith("colocate: cannot list nodes")
    assert "Traceback" not in ended.err


async def test_the_story_a_killed_plugin_is_stale_too_early_is_told_and_then_it_goes_for_good(
    lab: Lab,
) -> None:
    await lab.dead_plugin()
    listed = (await lab.resource("list")).out
    assert "stale, ≤ 5m left" in listed, "a single look cannot count down"
    dry = await lab.resource("remove", MACHINE, FAN, "--dry-run")
    assert dry.code == 0
    assert '{"op":"remove","path":"/status/capacity/example.com~1fan"}' in dry.out
    assert "nothing was changed" in dry.out
    assert lab.amounts(FAN)[0] == "2"
    early = await lab.resource("remove", MACHINE, FAN, "--now", "--yes")
    assert early.code == 1
    assert "the kubelet will put it back with its next sync" in early.out
    assert "it is back, with capacity 2" in early.out
    assert "run this again without --now" in early.err
    assert lab.amounts(FAN)[0] == "2"
    lab.clock.skipped = 300
    ended = await lab.resource("remove", MACHINE, FAN, "--yes")
    assert ended.code == 0, ended.err
    assert "is gone from node this-machine, and has stayed away" in ended.out
    assert lab.amounts(FAN) == (None, None)


async def test_a_holder_is_named_and_kubectl_can_follow_the_remedy(lab: Lab) -> None:
    await lab.resource("advertise", "other", f"{HAND}=3", "--yes")
    container = {"name": "main", "image": "any", "resources": {"limits": {HAND: "2"}}}
    body = {"metadata": {"name": "train"}, "spec": {"nodeName": "other", "containers": [container]}}
    lab.cluster.registry.create(PODS, "default", body)
    refused = await lab.resource("remove", "other", HAND, "--yes")
    assert refused.code == 1
    assert "held by default/train (2)" in refused.err
    note = await lab.resource("advertise", "other", f"{HAND}=1", "--dry-run")
    assert "pods there request 2 of it" in note.out


@pytest.mark.needs("kubectl")
async def test_what_kubectl_has_patched_in_is_known_by_its_name(lab: Lab) -> None:
    kubectl = components.find("kubectl")
    assert kubectl is not None
    patch = json.dumps([{"op": "add", "path": "/status/capacity/example.com~1hand", "value": "3"}])
    help = await asyncio.create_subprocess_exec(*[kubectl, "patch", "--help"], stdout=asyncio.subprocess.PIPE)
    if b" --subresource" not in (await help.communicate())[0]:
        pytest.skip("this kubectl cannot patch a subresource")
    process = await asyncio.create_subprocess_exec(
        *[kubectl, "patch", "node", "other", "--subresource=status", "--type=json", "-p", patch],
        env={**os.environ, "KUBECONFIG": str(lab.kubeconfig)},
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    assert "kubectl-patch wrote its capacity last" in (await lab.resource("list", "-o", "wide")).out


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, lab: Lab, *words: str) -> None:
        self._lab = lab
        self._words = words
        self.seen = ""

    async def __aenter__(self) -> "Terminal":
        self._master, slave = pty.openpty()
        self.process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *self._words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, **self._lab.environment, "COLUMNS": "120"},
        )
        os.close(slave)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    async def shows(self, words: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.seen.count(words) < times:
                assert await self._read(), f"it ended without {words!r}: {self.seen}"

    async def ends(self) -> int:
        async with asyncio.timeout(PATIENCE):
            while await self._read():
                pass
            return await self.process.wait()

    async def _read(self) -> bool:
        try:
            piece = await asyncio.to_thread(os.read, self._master, 4096)
        except OSError:  # What a terminal says when nobody is left on its other side.
            piece = b""
        self.seen += piece.decode(errors="replace")
        return bool(piece)


async def test_on_a_terminal_it_asks_and_shows_a_bar_and_stops_at_ctrl_c(lab: Lab) -> None:
    await lab.dead_plugin()
    async with Terminal(lab, "resource", "remove", MACHINE, FAN) as terminal:
        await terminal.shows("[y/N]")
        terminal.type("y\n")
        await terminal.shows("s until the kubelet forgets example.com/fan")
        assert "░ at most " in terminal.seen
        terminal.process.send_signal(signal.SIGINT)
        assert await terminal.ends() == 130
        assert "interrupted: nothing was changed (the kubelet has not forgotten it)" in terminal.seen
        assert "Traceback" not in terminal.seen
    async with Terminal(lab, "resource", "remove", MACHINE, FAN) as terminal:
        await terminal.shows("[y/N]")
        terminal.type("n\n")
        assert await terminal.ends() == 2
        assert "nothing was changed" in terminal.seen
    async with Terminal(lab, "resource", "list", "--watch") as terminal:
        await terminal.shows("stale, ≤ ")
        await terminal.shows("\x1b[H\x1b[JNODE", times=2)
        terminal.process.send_signal(signal.SIGINT)
        assert await terminal.ends() == 130
    assert lab.amounts(FAN) == ("2", "0")


async def test_a_watch_goes_on_where_the_server_was_away_for_a_while(lab: Lab) -> None:
    await lab.dead_plugin()
    server = lab.cluster.server
    port = int(server.url.rpartition(":")[2])
    async with Terminal(lab, "resource", "list", "--watch") as terminal:
        await terminal.shows("stale, ≤ ")
        await server.stop()
        await terminal.shows("; trying again")
        shown = terminal.seen.count("stale, ≤ ")
        await server.start("127.0.0.1", port)
        await terminal.shows("stale, ≤ ", times=shown + 1)
        terminal.process.send_signal(signal.SIGINT)
        assert await terminal.ends() == 130
        assert "Traceback" not in terminal.seen


async def test_what_a_server_says_while_it_is_watched_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([None, Unavailable("\x1b]0;title\x07 \x9b2J")])

    @asynccontextmanager
    async def observing(args: argparse.Namespace) -> AsyncIterator[tuple[None, None]]:
        yield None, None

    async def look(*asked: object) -> list[ResourceLook]:
        if (error := next(answers, KeyboardInterrupt())) is not None:
            raise error
        return []

    monkeypatch.setattr(resource, "_observing", observing)
    monkeypatch.setattr(resource, "_look", look)
    monkeypatch.setattr(resource, "_WATCH_EVERY", 0)
    monkeypatch.setattr(resource, "_print", lambda *what: None)
    with pytest.raises(KeyboardInterrupt):
        await resource._show(argparse.Namespace(node=None, watch=True, output="table"))
    assert capsys.readouterr().out == "\\x1b]0;title\\x07 \\x9b2J; trying again\n"


def test_tests_in_the_background_can_press_ctrl_c() -> None:
    """A shell's background job inherits an ignored SIGINT; programs that tests start must not."""
    this = f"{__file__}::test_on_a_terminal_it_asks_and_shows_a_bar_and_stops_at_ctrl_c"
    of_one = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "60",
        this,
    ]
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *of_one], capture_output=True, text=True
    )
    assert "1 passed" in done.stdout, done.stdout
