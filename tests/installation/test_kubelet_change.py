"""The proxy is put between a kubelet and its runtime, and the way back leads to where it began."""

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.cli.running import colocate

from colocate.cpus.installation.kubelet_change import (
    CRI_UNIT,
    NodeFiles,
    WantedProxy,
    cri_proxy_unit,
    install_steps,
    uninstall_steps,
)
from colocate.cpus.installation.steps import RunCommand, Step, WriteFile, carry_out, show
from colocate.errors import UserError

EXAMPLES = Path(__file__).parents[2] / "examples/cpus"
NRI_UNIT = "colocate-nri.service"
FLAGS = "var/lib/kubelet/kubeadm-flags.env"
CONFIG = "var/lib/kubelet/config.yaml"
EXTRA = "etc/default/kubelet"
LISTEN = "unix:///run/colocate/cri.sock"
SEED = (
    'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///var/run/crio/crio.sock '
    '--pod-infra-container-image=registry.aliyuncs.com/google_containers/pause:3.9"\n'
)
NODES = {
    "flags": {FLAGS: SEED, CONFIG: "containerRuntimeEndpoint: unix:///other.sock\n"},
    "config": {
        CONFIG: "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/c.sock # c\nz: 1\n"
    },
    "neither": {FLAGS: 'KUBELET_KUBEADM_ARGS="--pod-infra-container-image=p"\n', CONFIG: "a: 1\n"},
    "empty flags": {FLAGS: 'KUBELET_KUBEADM_ARGS=""\n'},
    "extra": {FLAGS: SEED, EXTRA: "KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/x.sock\n"},
    "config alone": {CONFIG: "a: 1"},
}
WANTED = WantedProxy("/usr/bin/colocate", LISTEN)


def make(root: Path, files: dict[str, str]) -> NodeFiles:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return NodeFiles.below(root)


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("name", NODES)
def test_there_and_back_leaves_every_byte_as_it_was(tmp_path: Path, name: str) -> None:
    files = make(tmp_path, NODES[name])
    before = contents(tmp_path)
    carry_out(install_steps(files, WANTED))
    assert contents(tmp_path) != before
    carry_out(install_steps(files, WANTED))
    carry_out(uninstall_steps(files))
    assert contents(tmp_path) == before
    assert uninstall_steps(files) == []


def test_the_seeds_change_is_made_and_the_unit_knows_the_runtime_that_was_there(tmp_path: Path) -> None:
    files = make(tmp_path, NODES["flags"])
    carry_out(install_steps(files, WANTED))
    assert (tmp_path / FLAGS).read_text() == SEED.replace("unix:///var/run/crio/crio.sock", LISTEN)
    assert (tmp_path / f"{FLAGS}.before-colocate").read_text() == SEED
    unit = files.unit.read_text()
    assert f"cri-proxy --runtime unix:///var/run/crio/crio.sock --listen {LISTEN}\n" in unit
    # Once more, with the kubelet changed already: the runtime is still known.
    carry_out(install_steps(files, WANTED))
    assert files.unit.read_text() == unit


def test_what_others_changed_meanwhile_stays(tmp_path: Path) -> None:
    files = make(tmp_path, NODES["flags"])
    carry_out(install_steps(files, WANTED))
    flags = tmp_path / FLAGS
    flags.write_text(flags.read_text().replace("pause:3.9", "pause:3.10"))
    carry_out(uninstall_steps(files))
    assert flags.read_text() == SEED.replace("pause:3.9", "pause:3.10")


@pytest.mark.parametrize("name", ["flags", "config alone"])
def test_cut_off_after_any_step_both_can_be_begun_again(tmp_path: Path, name: str) -> None:
    for cut in range(4):
        root = tmp_path / str(cut)
        files = make(root, NODES[name])
        before = contents(root)
        carry_out(install_steps(files, WANTED)[:cut])
        carry_out(install_steps(files, WANTED))
        installed = contents(root)
        carry_out(uninstall_steps(files)[:cut])
        carry_out(install_steps(files, WANTED))
        assert contents(root).keys() == installed.keys()
        carry_out(uninstall_steps(files)[:cut])
        carry_out(uninstall_steps(files))
        assert contents(root) == before


def test_a_running_node_starts_the_proxy_before_it_changes_the_kubelet(tmp_path: Path) -> None:
    files = make(tmp_path, NODES["flags"])
    live = NodeFiles(files.unit, files.flag_files, files.config_file, live=True)
    words = [_word(step) for step in install_steps(live, WANTED)]
    assert words == [
        f"write {CRI_UNIT}",
        "systemctl daemon-reload",
        f"systemctl enable {CRI_UNIT}",
        f"systemctl restart {CRI_UNIT}",
        "write kubeadm-flags.env.before-colocate",
        "write kubeadm-flags.env",
        "systemctl restart kubelet",
    ]
    carry_out(install_steps(files, WANTED))
    words = [_word(step) for step in uninstall_steps(live)]
    assert words == [
        "write kubeadm-flags.env",
        "systemctl restart kubelet",
        f"systemctl disable --now {CRI_UNIT}",
        f"remove {CRI_UNIT}",
        "systemctl daemon-reload",
        "remove kubeadm-flags.env.before-colocate",
    ]


def test_a_proxy_that_does_not_start_leaves_the_kubelet_alone(tmp_path: Path) -> None:
    files = make(tmp_path, NODES["flags"])
    failing: list[Step] = [
        RunCommand(("false",), "look there"),
        WriteFile(tmp_path / FLAGS, "changed"),
    ]
    with pytest.raises(UserError, match=r"'false' failed \(exit code 1\); look there"):
        carry_out(failing)
    assert (tmp_path / FLAGS).read_text() == SEED
    assert files.flag_files[0].exists()


@pytest.mark.parametrize("program", [False, True])
def test_without_systemd_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: bool
) -> None:
    files = make(tmp_path / "node", NODES["flags"])
    live = msgspec.structs.replace(files, live=True)
    before = contents(tmp_path / "node")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    if program:
        (tmp_path / "bin/systemctl").write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / "bin/systemctl").chmod(0o755)
    with pytest.raises(
        UserError, match="needs systemd, which does not run this machine, and nothing is changed"
    ):
        carry_out(install_steps(live, WANTED), booted=tmp_path / "booted")
    assert contents(tmp_path / "node") == before
    (tmp_path / "booted").mkdir()
    if program:
        carry_out(install_steps(live, WANTED), booted=tmp_path / "booted")
        assert contents(tmp_path / "node") != before


@pytest.mark.parametrize(
    "links",
    [
        {"etc": "{outside}"},
        {"etc/systemd": "{outside}"},
        {"etc/systemd/system": "/opt/units"},
        {"etc/systemd/system": "../../../../../../../../../../opt/units"},
        {f"etc/systemd/system/{CRI_UNIT}": "{outside}/unit"},
        {"var/lib/kubelet": "/data/kubelet"},
        {"var": "{outside}", "etc/systemd": "/var/x"},
    ],
)
def test_links_of_an_image_lead_to_places_in_the_image(tmp_path: Path, links: dict[str, str]) -> None:
    outside, root = tmp_path / "outside", tmp_path / "image"
    outside.mkdir()
    root.mkdir()
    for name, target in links.items():
        link = root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target.format(outside=outside))
    files = NodeFiles.below(root)
    flags = files.flag_files[0]
    flags.parent.mkdir(parents=True, exist_ok=True)
    flags.write_text(SEED)
    carry_out(install_steps(NodeFiles.below(root), WANTED))
    assert files.unit.is_relative_to(root)
    assert files.unit.read_text().startswith("[Unit]")
    assert LISTEN in flags.read_text()
    assert list(outside.iterdir()) == [], "nothing out here"
    carry_out(uninstall_steps(NodeFiles.below(root)))
    assert flags.read_text() == SEED
    assert not files.unit.exists()


def test_links_round_in_a_circle_and_links_for_copies_are_refused(tmp_path: Path) -> None:
    files = make(tmp_path, NODES["flags"])
    backup = files.flag_files[0].with_name("kubeadm-flags.env.before-colocate")
    backup.symlink_to("/etc/hostname")
    changed = make(tmp_path, {FLAGS: SEED.replace("unix:///var/run/crio/crio.sock", LISTEN)})
    with pytest.raises(UserError, match="it is a link, and no copy of ours"):
        uninstall_steps(changed)
    (tmp_path / "etc/systemd").mkdir(parents=True)
    (tmp_path / "etc/systemd/system").symlink_to("../systemd/system")
    with pytest.raises(UserError, match="its links lead round in a circle; mend the links of the image"):
        NodeFiles.below(tmp_path)


def test_a_kubelet_without_known_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this kubelet is not kubeadm's"):
        install_steps(NodeFiles.below(tmp_path), WANTED)


def test_a_second_proxy_is_not_put_before_cri_resource_manager(tmp_path: Path) -> None:
    theirs = "unix:///var/run/cri-resmgr/cri-resmgr.sock"
    files = make(tmp_path, {FLAGS: SEED.replace("unix:///var/run/crio/crio.sock", theirs)})
    with pytest.raises(UserError, match="both would place containers"):
        install_steps(files, WANTED)
    carry_out(install_steps(files, msgspec.structs.replace(WANTED, runtime="unix:///run/containerd/c.sock")))
    assert "--runtime unix:///run/containerd/c.sock" in files.unit.read_text()


def test_the_page_shows_what_is_done(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/placement.md").read_text()
    shown = re.search(r"# colocate cri-proxy install --dry-run\n(.*?)```", page, re.DOTALL)
    assert shown
    text = SEED.replace("/var/run/crio/crio.sock", "/run/containerd/containerd.sock").replace(
        "registry.aliyuncs.com/google_containers", "registry.k8s.io"
    )
    files = make(tmp_path, {FLAGS: text})
    live = NodeFiles(files.unit, files.flag_files, files.config_file, live=True)
    lines = [line.replace(str(tmp_path), "") for line in show(install_steps(live, WANTED))]
    for line in shown[1].splitlines():
        assert line in [*lines, "  ...", "Nothing was changed."]
    assert [line for line in lines if line.startswith("run ")] == [
        line for line in shown[1].splitlines() if line.startswith("run ")
    ]


def test_files_keep_their_mode(tmp_path: Path) -> None:
    files = make(tmp_path, NODES["flags"])
    (tmp_path / FLAGS).chmod(0o640)
    carry_out(install_steps(files, WANTED))
    assert (tmp_path / FLAGS).stat().st_mode & 0o777 == 0o640


async def test_a_dry_run_shows_the_change_and_makes_none(tmp_path: Path) -> None:
    make(tmp_path, NODES["flags"])
    before = contents(tmp_path)
    ended = await colocate("cri-proxy", "install", "--root", str(tmp_path), "--dry-run")
    assert ended.code == 0, ended.err
    assert f"change {tmp_path}/{FLAGS}:" in ended.out
    assert f'+KUBELET_KUBEADM_ARGS="--container-runtime-endpoint={LISTEN} ' in ended.out
    assert contents(tmp_path) == before
    ended = await colocate("cri-proxy", "install", "--root", str(tmp_path), "--yes")
    assert ended.code == 0, ended.err
    ended = await colocate("cri-proxy", "uninstall", "--root", str(tmp_path), "--yes")
    assert ended.code == 0, ended.err
    assert contents(tmp_path) == before
    ended = await colocate("cri-proxy", "uninstall", "--root", str(tmp_path), "--dry-run")
    assert ended.out == "The proxy is not installed here.\n"


@pytest.mark.parametrize(
    ("config", "name"),
    [("cpuManagerPolicy: static\n", "CPU manager"), ("memoryManagerPolicy: Static\n", "memory manager")],
)
async def test_it_is_refused_beside_a_static_manager(tmp_path: Path, config: str, name: str) -> None:
    make(tmp_path, {CONFIG: config})
    ended = await colocate("cri-proxy", "install", "--root", str(tmp_path), "--yes")
    assert ended.code == 2
    assert f"the kubelet's {name} is static" in ended.err


def test_the_unit_in_examples_is_the_one_that_is_installed() -> None:
    config = Path("/etc/colocate/colocate.yaml")
    program = "/usr/local/bin/colocate"
    unit = cri_proxy_unit(program, "unix:///run/containerd/containerd.sock", LISTEN, config)
    assert (EXAMPLES / CRI_UNIT).read_text() == unit


def test_the_unit_of_the_nri_plugin_differs_from_that_of_the_proxy_in_what_it_runs_and_when_alone() -> None:
    proxy, plugin = ((EXAMPLES / name).read_text().splitlines() for name in (CRI_UNIT, NRI_UNIT))
    assert [line.partition("=")[0] for line in proxy if line not in plugin] == [
        "Description",
        "Before",
        "Type",
        "ExecStart",
    ]
    assert [line for line in plugin if line not in proxy] == [
        "Description=Colocate NRI plugin: places containers on CPUs",
        "Type=exec",
        "ExecStart=/usr/local/bin/colocate nri --config /etc/colocate/colocate.yaml",
    ]


def test_a_word_of_a_command_stays_one_word() -> None:
    unit = cri_proxy_unit("/opt/a b/co$lo%cate", "unix:///r.sock", 'unix:///l"q.sock')
    assert 'ExecStart="/opt/a b/co$$lo%%cate" cri-proxy --runtime unix:///r.sock' in unit
    assert '--listen "unix:///l\\"q.sock"' in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for name, text in (
        (CRI_UNIT, cri_proxy_unit("/bin/true", "unix:///r.sock", "unix:///l.sock")),
        (NRI_UNIT, (EXAMPLES / NRI_UNIT).read_text().replace("/usr/local/bin/colocate", "/bin/true")),
    ):
        unit = tmp_path / name
        unit.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
        mine = [line for line in done.stderr.splitlines() if name in line]
        assert mine == []


def test_what_is_shown_is_what_is_done(tmp_path: Path) -> None:
    steps: list[Step] = [
        WriteFile(tmp_path / "new", "a\nb\n"),
        RunCommand(("systemctl", "daemon-reload")),
    ]
    assert list(show(steps)) == [f"write {tmp_path}/new:", "  a", "  b", "run systemctl daemon-reload"]
    assert list(tmp_path.iterdir()) == []


def _word(step: Step) -> str:
    match step:
        case RunCommand():
            return " ".join(step.command)
        case WriteFile():
            return f"write {step.path.name}"
        case _:
            return f"remove {step.path.name}"
