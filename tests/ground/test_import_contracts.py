"""The import contracts of pyproject.toml bite: an import that a room must not have breaks the one that forbids it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]

PURE = "Decisions know facts and errors, and nothing else"
LAB = "The embedded cluster is for the command line and for tests"
LAYERS = "Rooms build on the rooms below them"


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
        (PURE, f"colocate.{room}", f"colocate.{ground}")
        for room in ("memory", "devices", "load", "cpus", "gpus")
        for ground in ("clock", "telemetry", "aio", "crashpoints", "startup", "wire.rpc")
    ],
    (LAB, "colocate.telemetry", "colocate.lab.cluster"),
    (LAB, "colocate.pytest_plugin", "colocate.lab.kubelet"),
    (LAB, "colocate.apps.agent", "colocate.lab.kubelet"),
    ("Facts know no clock, no telemetry and no wire", "colocate.model.pod", "colocate.aio"),
    ("Nobody reaches past the face of kubelet", "colocate.apps.agent", "colocate.kubelet.endpoint"),
    ("Nobody reaches past the face of devices", "colocate.cli.checkpoint", "colocate.devices.injection"),
    ("Nobody reaches past the face of host", "colocate.apps.agent", "colocate.host.numa_maps"),
    ("Nobody reaches past the face of cluster", "colocate.apps.agent", "colocate.cluster.usage.node_series"),
]


def test_every_import_that_a_contract_forbids_breaks_it(tmp_path: Path) -> None:
    with_imports(tmp_path, [line[1:] for line in FORBIDDEN])
    said = lint(tmp_path)
    for contract, importer, imported in FORBIDDEN:
        assert f"{contract} BROKEN" in said
        assert f"{importer} -> {imported} (l." in said, said
    assert f"{LAYERS} BROKEN" in said  # apps and lab are side by side


def test_a_room_that_is_still_to_come_breaks_nothing_and_what_is_allowed_neither(tmp_path: Path) -> None:
    with_imports(
        tmp_path,
        [
            ("colocate.gpus", "colocate.model.device"),
            ("colocate.gpus.choice", "colocate.gpus"),
            ("colocate.gpus.choice", "colocate.errors"),
            ("colocate.apps.agent", "colocate.kubelet.checkpoint"),
            ("colocate.cli.demo", "colocate.lab.kubelet"),
        ],
    )
    said = lint(tmp_path)
    assert "0 broken" in said, said


@pytest.mark.parametrize(
    ("written", "changed", "complaint"),
    [
        (
            'rooms = ["colocate.devices"',
            'rooms = ["colocate.attic"',
            "There is no colocate.attic; put it in parentheses",
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
