"""The fixture for other people's plugins, used as they would use it: a test file of their own."""

import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]


def test_the_test_in_the_docs_passes_in_a_folder_of_its_own(tmp_path: Path) -> None:
    plugin = (REPO / "examples" / "ten_lines.py").read_text()
    page = (REPO / "docs" / "testing.md").read_text()
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found
    (tmp_path / "test_fans.py").write_text(plugin + found[1])
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_loading_the_pytest_plugin_costs_no_grpc() -> None:
    """It is loaded by every pytest run of every environment that has Colocate installed."""
    script = "import sys, colocate.pytest_plugin; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
