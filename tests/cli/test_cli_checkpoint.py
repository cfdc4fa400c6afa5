"""`colocate checkpoint` as an operator uses it: exit codes, sentences, and a kubelet that runs or does not."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.running import Ended, checkpoint, colocate, on_terminal
from tests.support.plugins import FAN, Fans
from tests.support.waiting import until

from colocate.kubelet import Plugins, Settings
from colocate.kubelet.checkpoint import parse, render
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.cluster import MACHINE, LabCluster
from colocate.lab.pod_runtime import SimulatedRuntime
from colocate.model.checkpoint import Checkpoint, Entry, Format
from colocate.testing import TestNode

DATA = Path(__file__).parent.parent / "data"
CASES = json.loads((DATA / "conformance/checkpoints.json").read_text())["cases"]
SEED = DATA / "seeds/003-checkpoint.json"
RECORDING = DATA / "recordings/kubelet/checkpoint-1.34-two-resources.json"
GPU = "vendor.example/gpu"

pytestmark = pytest.mark.usefixtures("no_cluster")


# verify ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_case_of_the_table_is_judged_as_the_kubelet_judges_it(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case"
    path.write_bytes(case["blob"].encode())
    ended = checkpoint(capsys, "verify", path, "-o", "json")
    if case["fails_at"] == "json":
        assert (ended.code, ended.out) == (2, "")
    else:
        codes = {finding["code"] for finding in json.loads(ended.out)["findings"]}
        assert ("checksum" not in codes) == case["valid"]
        assert ended.code == (1 if codes - {"old-format"} else 0)


async def test_verify_reports_the_example_of_the_article_with_both_of_its_inconsistencies() -> None:
    ended = await colocate("checkpoint", "verify", SEED)
    assert (ended.code, ended.err) == (1, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("✗ checksum: the file states checksum 216033768, but its data has 2703430300")
    assert lines[1].startswith("  → ")
    assert lines[2].startswith("! injected-other: container ubuntu-container of pod a2ab1d63-")
    assert "GPU-fcda056f-77c6-7fdf-f7c7-6453511eaaa1" in lines[2]


def test_a_sound_file_is_said_to_be_sound(capsys: pytest.CaptureFixture[str]) -> None:
    ended = checkpoint(capsys, "verify", RECORDING)
    assert (ended.code, ended.err) == (0, "")
    sentence = f"✓ {RECORDING} is sound: 5 containers with devices, checksum 3406033345"
    assert " ".join(ended.out.split()) == sentence


def test_json_and_yaml_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    as_json, as_yaml = (checkpoint(capsys, "verify", SEED, "-o", output) for output in ("json", "yaml"))
    report = json.loads(as_json.out)
    assert report == yaml.safe_load(as_yaml.out)
    assert report["findings"][0].keys() == {"code", "severity", "subject", "sentence", "remedy"}


async def test_standard_input_is_read(file: Path) -> None:
    ended = await colocate("checkpoint", "verify", "-", stdin=file.read_text())
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("✓ - is sound")


async def test_a_file_that_is_called_like_standard_input_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("./-").write_bytes(render(Checkpoint((), {})))
    ended = await colocate("checkpoint", "verify", "./-", stdin="nonsense")
    assert (ended.code, ended.err) == (0, "")


BAD = {
    "empty": (b"", "end of the file"),
    "truncated": (RECORDING.read_bytes()[:700], "end of the file"),
    "not JSON": (b"hello", "should be a JSON value"),
    "binary": (bytes(range(256)) * 10, "should be a JSON value"),
    "a list": (b"[]", "should be an object but is a list"),
    "wrong type": (b'{"Data":{"PodDeviceEntries":7}}', "should be a list but is the number 7"),
    "negative checksum": (b'{"Data":{},"Checksum":-1}', "whole number from 0"),
}


@pytest.mark.parametrize(
    "command", [("show",), ("verify",), ("diff",), ("repair", "--fix-checksum", "--yes")]
)
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_input_is_one_sentence_and_exit_code_2(
    bad: str, command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, said = BAD[bad]
    path = tmp_path / "bad"
    path.write_bytes(content)
    ended = checkpoint(capsys, *command, path)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert path.read_bytes() == content


@pytest.mark.parametrize("command", ["show", "verify", "diff"])
def test_a_folder_and_a_missing_file_are_one_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        ended = checkpoint(capsys, command, path)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.count("\n") == 1


# show ------------------------------------------------------------------------------------------------


def test_the_table_fits_a_terminal_and_wide_shows_everything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    table, wide = (
        checkpoint(capsys, "show", RECORDING, "--offline", "-o", output).out for output in ("table", "wide")
    )
    assert max(map(len, table.splitlines()[1:])) <= 120
    assert "  train                        test.com/colocation-memory  -     5: CM-0003–0007 " in table
    assert "test.com/colocation-memory   40        8      CM-0000–0039" in table
    for text in (
        "CM-0039",
        "NVIDIA_VISIBLE_DEVICES=GPU-709f",
        "/tmp → /tmp/vgpu (read-only)",
        "/dev/null0 (rw)",
    ):
        assert text in wide
        assert text not in table


@pytest.mark.parametrize("format", list(Format), ids=lambda format: format.name)
def test_a_sound_file_of_any_age_exits_0(
    format: Format, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices: Any = {1: ("a",)} if format is Format.NUMA else ("a",)
    path = tmp_path / "file"
    path.write_bytes(render(Checkpoint((Entry("u", "c", GPU, devices, b""),), {GPU: ("a",)}), format))
    ended = checkpoint(capsys, "verify", path)
    assert ended.code == 0
    assert f"✓ {path} is sound: 1 container with devices, " in " ".join(ended.out.split())
    assert ("no checksum\n" in ended.out) == (format is Format.PLAIN)
    assert ended.out.startswith("✓" if format is Format.NUMA else "· old-format: ")


@pytest.mark.parametrize("format", list(Format), ids=lambda format: format.name)
def test_every_format_is_shown(format: Format, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    devices: Any = {1: ("a", "b")} if format is Format.NUMA else ("a", "b")
    path = tmp_path / "file"
    path.write_bytes(render(Checkpoint((Entry("u", "c", GPU, devices, b""),), {GPU: ("a", "b")}), format))
    shown = json.loads(checkpoint(capsys, "show", path, "--offline", "-o", "json").out)
    assert shown["format"] == format.value
    assert (shown["checksum"] is None) == (format is Format.PLAIN)
    (entry,) = shown["entries"]
    assert entry["devices"] == {"1" if format is Format.NUMA else "-1": ["a", "b"]}
    for output in ("table", "wide", "yaml"):
        assert checkpoint(capsys, "show", path, "--offline", "-o", output).code == 0


def test_an_id_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    evil = "\x1b[2J\nfree"
    path.write_bytes(render(Checkpoint((Entry(evil, evil, evil, {0: (evil,)}, b"\xff"),), {evil: (evil,)})))
    for command in (("show", "--offline"), ("show", "--offline", "-o", "wide"), ("verify",)):
        assert "\x1b" not in checkpoint(capsys, *command, path).out
    assert "\x1b" not in checkpoint(capsys, "repair", path, "--drop-pod", evil, "--dry-run").out


def test_nothing_at_all_is_shown_as_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_bytes(render(Checkpoint(None, None)))
    for output in ("table", "wide"):
        shown = checkpoint(capsys, "show", path, "-o", output)
        assert "no container holds a device" in shown.out
        assert "no plugin has registered a resource" in shown.out
        assert shown.err == ""


async def test_why_names_are_missing_is_one_line_and_a_stated_cluster_must_answer(tmp_path: Path) -> None:
    quiet = await colocate("checkpoint", "show", RECORDING)
    assert quiet.code == 0
    assert quiet.err.startswith("note: pods without a name are shown by their uid: the API: ")
    assert quiet.err.count("\n") == 1
    for flags in (("--kubeconfig", tmp_path / "none"), ("--server", "http://127.0.0.1:1"), ("--node", "n")):
        stated = await colocate("checkpoint", "show", RECORDING, *flags)
        assert (stated.code, stated.out) == (2, "")
        assert stated.err.count("\n") == 1


# With a kubelet and a cluster ------------------------------------------------------------------------


async def test_podresources_names_the_pods(node: TestNode) -> None:
    await node.serve(Fans("fan-0", "fan-1"))
    await node.devices(FAN, 2)
    await node.run_pod({FAN: 1}, name="cooled")
    shown = await colocate("checkpoint", "show", COLOCATE_KUBELET_ROOT=str(node.paths.root))
    assert (shown.code, shown.err) == (0, "")
    assert "default/cooled  (" in shown.out
    copied = await colocate("checkpoint", "show", "-", stdin=node.paths.checkpoint.read_text())
    assert "default/cooled" not in copied.out, "a file from elsewhere may have the same ids"


async def test_diff_without_any_source_says_so(file: Path, tmp_path: Path) -> None:
    ended = await colocate("checkpoint", "diff", COLOCATE_KUBELET_ROOT=str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert "there is nothing to compare" in ended.err
    assert ended.err.count("\n") == 1


class Lab:
    """An embedded cluster with a plugin of two fans, and commands that know where it is."""

    def __init__(self, cluster: LabCluster, kubeconfig: Path, plugins: Plugins) -> None:
        self.cluster = cluster
        self.kubeconfig = kubeconfig
        self.plugins = plugins
        self.kubelet = cluster.kubelet

    async def checkpoint(self, *arguments: str | Path) -> Ended:
        flags = ("--kubeconfig", self.kubeconfig, "--node", MACHINE)
        return await colocate(
            "checkpoint", *arguments, *flags, COLOCATE_KUBELET_ROOT=str(self.kubelet.paths.root)
        )

    async def run_pod(self, name: str) -> str:
        """A pod with one fan; returns its uid."""
        container = {"name": "main", "image": "any", "resources": {"limits": {FAN: "1"}}}
        body = {"metadata": {"name": name}, "spec": {"containers": [container]}}
        created = self.cluster.registry.create(PODS, "default", body)
        uid = str(created.body["metadata"]["uid"])

        def runs() -> bool:
            found = self.cluster.registry.find(PODS, "default", name)
            return found is not None and found.body["status"].get("phase") == "Running"

        await until(runs, f"{name} to run")
        return uid


@asynccontextmanager
async def running_lab(root: Path) -> AsyncIterator[Lab]:
    cluster = LabCluster(root, runtime=SimulatedRuntime(), status_sync=0.05)
    async with cluster.running():
        kubeconfig = root / "kubeconfig"
        cluster.server.write_kubeconfig(kubeconfig)
        plugins = Plugins(Fans("fan-0", "fan-1"), settings=Settings(paths=cluster.kubelet.paths))
        serving = asyncio.create_task(plugins.run())
        try:
            await until(lambda: cluster.kubelet.status.allocatable.get(FAN) == 2, "two fans")
            yield Lab(cluster, kubeconfig, plugins)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def test_the_story_of_a_pod_that_will_not_go_away(short: Path) -> None:
    """Held, compared, the pod gone from the API, refused while the kubelet runs, dropped, and free again."""
    async with running_lab(short) as lab:
        uid = await lab.run_pod("cooled")
        agrees = await lab.checkpoint("diff")
        assert agrees.code == 0, agrees
        assert "agrees with podresources, the API's pods, the node's status" in agrees.out
        assert f"default/cooled  ({uid})" in (await lab.checkpoint("show")).out

        await lab.kubelet.stop()
        path = lab.kubelet.paths.checkpoint
        before = path.read_bytes()
        shown = await lab.checkpoint("repair", "--drop-pod", "default/cooled", "--dry-run")
        assert shown.code == 0
        assert shown.out.splitlines()[0].startswith(f"- pod {uid}  container main  {FAN}: fan-")
        assert "default/cooled runs and loses its devices" in shown.err
        assert path.read_bytes() == before

        dropped = await lab.checkpoint("repair", "--drop-pod", uid, "--yes")
        assert dropped.code == 0, dropped
        assert parse(path.read_bytes()).sound
        lacking = await lab.checkpoint("diff", "-o", "json")
        assert lacking.code == 1
        codes = [finding["code"] for finding in json.loads(lacking.out)["findings"]]
        assert "missing-entry" in codes
        await lab.kubelet.start()


async def test_what_the_api_cannot_tell_is_said(short: Path) -> None:
    """Under a name that is no node's the API lists no pods, which says nothing of those in the file."""
    async with running_lab(short) as lab:
        uid = await lab.run_pod("cooled")
        copy = short / "copy"
        copy.write_bytes(lab.kubelet.paths.checkpoint.read_bytes())
        known = {"KUBECONFIG": str(lab.kubeconfig), "NODE_NAME": MACHINE}
        wrong = {**known, "NODE_NAME": "elsewhere"}
        shown = await colocate("checkpoint", "show", copy, **wrong)
        assert shown.code == 0
        assert "the cluster has no node 'elsewhere'; give this machine's node with --node" in shown.err
        drop = ("checkpoint", "repair", copy, "--dry-run", "--drop-pod")
        dropped = await colocate(*drop, uid, **wrong)
        assert dropped.code == 0
        assert (
            "cannot tell whether a pod that loses devices is running: the API: the cluster has no"
            in dropped.err
        )
        unnamed = await colocate(*drop, "default/cooled", **wrong)
        assert unnamed.code == 2
        assert "cannot look up names of pods (the API: the cluster has no node" in unnamed.err

        assert f"default/cooled  ({uid})" in (await colocate("checkpoint", "show", copy, **known)).out
        named = await colocate(*drop, "default/cooled", **known)
        assert named.code == 0
        assert "default/cooled runs and loses its devices" in named.err
        assert "give the node of the file with --node" in named.err, "it may be of another node"
        stated = await colocate(*drop, "default/cooled", "--node", MACHINE, **known)
        assert "is not known" not in stated.err


async def test_kubernetes_own_resources_in_a_nodes_status_are_no_difference(short: Path) -> None:
    async with running_lab(short) as lab:

        def change(body: dict[str, Any]) -> dict[str, Any]:
            counts = {"kubernetes.io/batch-cpu": "1000"}
            status = {part: {**body["status"][part], **counts} for part in ("capacity", "allocatable")}
            return {**body, "status": {**body["status"], **status}}

        lab.cluster.registry.modify(NODES, "", MACHINE, change, "status")
        await lab.run_pod("cooled")
        status = lab.cluster.registry.get(NODES, "", MACHINE).body["status"]
        assert "kubernetes.io/batch-cpu" in status["capacity"], "else this proves nothing"
        agrees = await lab.checkpoint("diff")
        assert agrees.code == 0, agrees


# terminals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["table", "wide"])
async def test_show_fits_a_narrow_terminal_as_far_as_its_words_do(form: str) -> None:
    ended = await on_terminal("checkpoint", "show", RECORDING, "-o", form, columns=60)
    words = max(map(len, ended.out.split()))
    assert max(map(len, ended.out.splitlines())) <= max(60, words + 40)
    plain = await colocate("checkpoint", "show", RECORDING, "-o", "wide")
    assert {word for word in plain.out.split() if "/" in word} <= set(ended.out.split()) or form == "table"
    assert "injected" in ended.out if form == "table" else "env" in ended.out


async def test_verify_is_coloured_on_terminals_only_and_not_with_no_color() -> None:
    assert "\x1b[31m✗" in (await on_terminal("checkpoint", "verify", SEED)).out
    assert "\x1b" not in (await on_terminal("checkpoint", "verify", SEED, NO_COLOR="1")).out
    assert "\x1b" not in (await colocate("checkpoint", "verify", SEED)).out
    assert "\x1b[32m✓" in (await on_terminal("checkpoint", "verify", RECORDING)).out
