"""The fixtures for other people's plugins, used as they would: their own folder, an environment with nothing else."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from examples.ten_lines import Fans
from tests.support.shown import blocks

from colocate.testing import TestNode

REPO = Path(__file__).parents[2]
BLOCKS = [one.text for one in blocks("python") if one.document == "docs/testing.md"]
ANYIO_BACKEND = '\n\n@pytest.fixture\ndef anyio_backend():\n    return "asyncio"\n'


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Colocate as pip installs it, with pytest and the two plugins for async tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    wanted = [str(REPO), "pytest", "pytest-asyncio", "anyio"]
    # Without hashes, which a folder such as this repository has not.
    versions = re.findall(r"^\S+==[^\s;]+", (REPO / "constraints.txt").read_text(), re.MULTILINE)
    (folder / "versions.txt").write_text("\n".join(versions))
    subprocess.run(
        [*pip, "--quiet", "--no-compile", "--constraint", str(folder / "versions.txt"), *wanted], check=True
    )
    return python


def run_as_a_user(python: Path, folder: Path, *options: str) -> str:
    """Run pytest on a folder, with none of this project's settings."""
    shutil.copy(REPO / "examples" / "ten_lines.py", folder)
    shutil.copytree(REPO / "examples" / "plugins", folder / "plugins", dirs_exist_ok=True)
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "."],
        capture_output=True,
        text=True,
        cwd=folder,
        env=env,
    )
    return done.stdout + done.stderr


@pytest.mark.timeout(1200)  # Nothing is compiled yet, and the machine may be busy.
@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_the_tests_in_the_docs_pass_as_copied(mode: str, environment: Path, tmp_path: Path) -> None:
    for number, code in enumerate(BLOCKS):
        (tmp_path / f"test_{number}.py").write_text(code)
    said = run_as_a_user(environment, tmp_path, "-o", f"asyncio_mode={mode}")
    assert f"{len(BLOCKS)} passed" in said, said


def test_the_test_in_the_docs_passes_with_anyio(environment: Path, tmp_path: Path) -> None:
    code = BLOCKS[0].replace("pytest.mark.asyncio", "pytest.mark.anyio") + ANYIO_BACKEND
    (tmp_path / "test_fans.py").write_text(code)
    for options in ([], ["-p", "no:asyncio"]):
        assert "1 passed" in (said := run_as_a_user(environment, tmp_path, *options)), said


def test_the_test_without_async_needs_nothing_but_pytest(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "test_fans.py").write_text(BLOCKS[1])
    said = run_as_a_user(environment, tmp_path, "-p", "no:asyncio", "-p", "no:anyio")
    assert "1 passed" in said, said


def test_an_async_fixture_without_a_plugin_says_what_is_missing(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "test_fans.py").write_text("def test_fans(embedded_kubelet):\n    pass\n")
    said = run_as_a_user(environment, tmp_path, "-p", "no:asyncio", "-p", "no:anyio")
    assert "a test without async uses blocking_kubelet" in said, said


BY_OTHER_MEANS = {
    "docs/testing.md": "run as tests, above",
    "docs/vm-tests.md": "for this repository alone; it is run in this process",
}
"""Documents whose Python is no program for an environment with nothing but Colocate."""


def test_every_program_in_the_documents_begins_as_a_user_has_it(environment: Path, tmp_path: Path) -> None:
    """With no name missing and nothing to install; what the programs do, tests of their documents try."""
    programs = [REPO / "examples" / "ten_lines.py", *sorted((REPO / "examples" / "plugins").glob("*.py"))]
    for number, block in enumerate(one for one in blocks("python") if one.document not in BY_OTHER_MEANS):
        programs.append(tmp_path / f"program_{number}.py")
        programs[-1].write_text(block.text)
    assert len(programs) >= 6
    code = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path, run_name='shown')"
    done = subprocess.run(
        [str(environment), "-I", "-c", code, *map(str, programs)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_test_for_a_vm_is_one() -> None:
    [block] = [one for one in blocks("python") if one.document == "docs/vm-tests.md"]
    names: dict[str, Any] = {}
    exec(block.text, names)
    assert names["pytestmark"].name == "vm"
    if count := os.cpu_count():
        names["test_every_cpu_is_online"](SimpleNamespace(cpus=count))


async def test_waiting_for_too_many_devices_says_which_are_there(node: TestNode) -> None:
    await node.serve(Fans())
    await node.devices("example.com/fan", 2)
    with pytest.raises(AssertionError, match="sees 2 healthy of 2: fan-0, fan-1"):
        await node.devices("example.com/fan", 3, timeout=0.01)
    with pytest.raises(AssertionError, match=r"does not know this resource; it knows example.com/fan"):
        await node.devices("example.com/fans", 2, timeout=0.01)


async def test_a_pod_that_the_kubelet_rejects_fails_the_test_at_once(node: TestNode) -> None:
    await node.serve(Fans())
    await node.devices("example.com/fan", 2)
    with pytest.raises(AssertionError, match=r"UnexpectedAdmissionError.*Requested: 3, Available: 2"):
        await node.run_pod({"example.com/fan": 3}, timeout=3600)  # longer than this test may take


def test_loading_the_pytest_plugin_costs_no_grpc() -> None:
    """It is loaded by every pytest run of every environment that has Colocate installed."""
    script = "import sys, colocate.pytest_plugin; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
