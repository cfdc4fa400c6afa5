"""The walks through the code lead along functions that are there, and are short."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WALKS = re.split(r"^## ", (ROOT / "docs/architecture.md").read_text(), flags=re.M)[1:]


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


def references(file: Path) -> set[str]:
    """Every name that a module uses: of functions, classes, methods and attributes."""
    used = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
    return used


def hops_of(walk: str) -> list[tuple[Path, tuple[str, ...]]]:
    """The file of each hop and the functions that it names."""
    found = re.findall(r"^\d+\. `([\w/]+\.py):([\w.]+)`((?:, `[\w.]+`)*)", walk, flags=re.M)
    assert len(found) == len(re.findall(r"^\d+\.", walk, flags=re.M)), "every hop is file:function"
    return [
        (ROOT / "src/colocate" / file, (name, *re.findall(r"`([\w.]+)`", more))) for file, name, more in found
    ]


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.partition("\n")[0])
def test_every_hop_of_a_walk_is_there(walk: str) -> None:
    for file, (first, *more) in hops_of(walk):
        there = functions(file)
        kind = first.rpartition(".")[0]
        assert {first, *(name if name in there else f"{kind}.{name}" for name in more)} <= there, file


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.partition("\n")[0])
def test_every_hop_calls_another_of_its_walk_or_is_called_by_one(walk: str) -> None:
    """From the first hop all others are reached along calls: none stands alone."""
    hops = hops_of(walk)
    used = [references(file) for file, _ in hops]
    names = [{part for name in named for part in name.split(".")} for _, named in hops]

    def meet(one: int, other: int) -> bool:
        same_file = hops[one][0] == hops[other][0]
        return same_file or bool(names[one] & used[other]) or bool(names[other] & used[one])

    reached, waiting = {0}, [0]
    while waiting:
        here = waiting.pop()
        found = {other for other in range(len(hops)) if other not in reached and meet(here, other)}
        reached |= found
        waiting += found
    alone = [
        f"{hops[number][0].name}:{hops[number][1][0]}" for number in range(len(hops)) if number not in reached
    ]
    assert not alone
