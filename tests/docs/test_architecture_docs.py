"""The walks through the code lead along functions that are there, and are short."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WALKS = re.split(r"^## ", (ROOT / "docs/architecture.md").read_text(), flags=re.M)[1:]
LONGEST = {"Memory": 18}


def functions(file: Path) -> set[str]:
    """As a walk names them: `function`, `Class` and `Class.method`."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inside = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {f"{node.name}.{each.name}" for each in inside}
    return names


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.partition(":")[0])
def test_every_hop_of_a_walk_is_there(walk: str) -> None:
    hops = re.findall(r"^\d+\. `([\w/]+\.py):([\w.]+)`((?:, `[\w.]+`)*)", walk, flags=re.M)
    assert len(hops) == len(re.findall(r"^\d+\.", walk, flags=re.M)), "every hop is file:function"
    for file, first, more in hops:
        found = functions(ROOT / "src/colocate" / file)
        assert {first, *re.findall(r"`([\w.]+)`", more)} <= found, file
    files = {file for file, _, _ in hops}
    assert len(files) <= LONGEST.get(walk.partition(":")[0], 20)
