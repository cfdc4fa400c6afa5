"""docs/checkpoints.md explains every finding, and shows what the tool prints."""

import re
from pathlib import Path

import pytest

from colocate.cli.main import main
from colocate.devices.findings import Code

REPO = Path(__file__).parents[2]
TEXT = (REPO / "docs" / "checkpoints.md").read_text()


def test_every_code_is_explained_and_no_other() -> None:
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    assert sorted(code for row in rows for code in re.findall("`([^`]+)`", row)) == sorted(Code)


def test_the_change_that_is_shown_is_what_repair_prints(capsys: pytest.CaptureFixture[str]) -> None:
    words = re.search("# colocate (checkpoint repair .*)", TEXT)
    assert words
    seed = REPO / "tests/data/seeds/003-checkpoint.json"
    with pytest.raises(SystemExit):
        main([*words[1].split(), str(seed), "--dry-run"])
    printed = capsys.readouterr().out.replace("GPU-709fac35-5f40-624b-90f7-b0a3db7a97a0", "GPU-709fac35-…")
    assert f"{printed}Write " in TEXT
