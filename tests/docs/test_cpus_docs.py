"""docs/cpus.md: commands print what is shown, and every wish and shape is named."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.running import colocate_in

from colocate.cpus import CpuWishes, parse_wishes
from colocate.model.cpu_shapes import SHAPES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cpus.md").read_text()
SHOWN = re.findall(r"```console\n\$ colocate (.*?)\n(.*?)\n```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), [each for each in SHOWN if "--host" not in each[0]])
async def test_commands_print_what_the_page_shows(command: str, shown: str, tmp_path: Path) -> None:
    """In a folder where the files of this project are found, and a plot is not left in the checkout."""
    (tmp_path / "tests").symlink_to(DOCS.parent / "tests")
    done = await colocate_in(tmp_path, *command.split(), COLUMNS="100")
    assert done.err == ""
    assert done.out.rstrip("\n") == shown


def test_the_page_names_every_wish_and_every_shape() -> None:
    words = {name.replace("_", "-") for name in CpuWishes.__struct_fields__}
    named = {re.split("[=`]", word)[0] for word in re.findall(r"`([a-z=-]+)", PAGE.partition("| wish |")[2])}
    assert words <= named
    assert all(f"`{shape}`" in PAGE for shape in SHAPES)
    annotation = re.search(r"cpus\.database: (.*)", PAGE)
    assert annotation is not None
    assert parse_wishes(annotation[1]) == CpuWishes(exclusive=True, strict=True)


def test_cpus_imports_facts_and_errors_alone() -> None:
    code = (
        "import sys, colocate.cpus; "
        "print(*sorted({name.split('.')[1] for name in sys.modules if name.startswith('colocate.')}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"cpus", "errors", "model"}
