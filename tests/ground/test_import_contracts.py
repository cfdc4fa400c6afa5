"""The import contracts of pyproject.toml bite: an import that a room must not have breaks the one that forbids it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]

LAB = "The embedded cluster is for the command line and for tests"
LAYERS = "Rooms build on the rooms below them"


def house(capability: str) -> str:
    return f"Decisions of {capability} are pure, and nothing of it knows another capability"


def lint(folder: Path) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder / 'src'}:{REPO}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def with_imports(folder: Path, imports: list[tuple[str, str]]) -> None:
    """A copy of the package in which modules, some of them new, have further imports."""
    shutil.copy(REPO / "pyproject.toml", folder)
    shutil.copytree(REPO / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for module, imported in imports:
        file = (folder / "src").joinpath(*module.split(".")).with_suffix(".py")
        if not file.exists():
            file = file.with_suffix("") / "__init__.py"
        file.parent.mkdir(exist_ok=True)
        with file.open("a") as code:
            code.write(f"\nimport {imported}\n")


FORBIDDEN = [
    *[
        (house(room), f"colocate.{room}", f"colocate.{ground}")
        for room in ("memory", "devices", "load", "cpus", "gpus")
        for ground in ("clock", "telemetry", "aio", "crashpoints", "startup", "wire.rpc")
    ],
    # Decisions do not import the acting part below them, nor does an acting part another capability or a process.
    (house("memory"), "colocate.memory.limits", "colocate.memory.agent.store"),
    (house("cpus"), "colocate.cpus", "colocate.cpus.placer"),
    (house("gpus"), "colocate.gpus.packing.policies", "colocate.gpus.agent.monitor"),
    (house("devices"), "colocate.devices.repair", "colocate.devices.checkpoint.file"),
    (house("load"), "colocate.load.table", "colocate.memory"),
    (house("memory"), "colocate.memory.agent.store", "colocate.cpus"),
    (house("gpus"), "colocate.gpus.agent.monitor", "colocate.agent.schema"),
    (house("devices"), "colocate.devices.resources.observe", "colocate.gpus"),
    (LAB, "colocate.telemetry", "colocate.lab.cluster"),
    (LAB, "colocate.pytest_plugin", "colocate.lab.kubelet"),
    (LAB, "colocate.agent.process", "colocate.lab.kubelet"),
    ("Facts know no clock, no telemetry and no wire", "colocate.model.pod", "colocate.aio"),
    (
        "Only public modules of kubelet are imported from outside",
        "colocate.agent.process",
        "colocate.kubelet.endpoint",
    ),
    (
        "Only public modules of devices are imported from outside",
        "colocate.cli.checkpoint",
        "colocate.devices.injection",
    ),
    (
        "Only public modules of host are imported from outside",
        "colocate.agent.process",
        "colocate.host.numa_maps",
    ),
    (
        "Only public modules of cluster are imported from outside",
        "colocate.agent.process",
        "colocate.cluster.usage.node_series",
    ),
]


def test_every_import_that_a_contract_forbids_breaks_it(tmp_path: Path) -> None:
    with_imports(tmp_path, [line[1:] for line in FORBIDDEN])
    said = lint(tmp_path)
    for contract, importer, imported in FORBIDDEN:
        assert f"{contract} BROKEN" in said
        assert f"{importer} -> {imported} (l." in said, said
    assert f"{LAYERS} BROKEN" in said  # the lab is above the agent


def test_a_room_that_is_still_to_come_breaks_nothing_and_what_is_allowed_neither(tmp_path: Path) -> None:
    with_imports(
        tmp_path,
        [
            ("colocate.gpus", "colocate.model.device"),
            ("colocate.gpus.choice", "colocate.gpus"),
            ("colocate.gpus.choice", "colocate.errors"),
            ("colocate.agent.process", "colocate.kubelet.checkpoint"),
            ("colocate.cli.demo", "colocate.lab.kubelet"),
        ],
    )
    said = lint(tmp_path)
    assert "0 broken" in said, said


@pytest.mark.parametrize(
    ("written", "changed", "complaint"),
    [
        (
            'acting = ["placer"',
            'acting = ["attic"',
            "There is no colocate.cpus.attic, which is listed as an acting part",
        ),
        (
            '"podresources"',
            '"podresource"',
            "There is no colocate.kubelet.podresource, which is listed as public",
        ),
    ],
)
def test_a_contract_about_a_module_that_is_not_there_says_so(
    tmp_path: Path, written: str, changed: str, complaint: str
) -> None:
    with_imports(tmp_path, [])
    contracts = tmp_path / "pyproject.toml"
    text = contracts.read_text()
    assert written in text
    contracts.write_text(text.replace(written, changed))
    assert complaint in lint(tmp_path)
