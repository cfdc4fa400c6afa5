"""The code uses public interfaces of its dependencies only: what has a leading underscore changes without notice."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import colocate

SOURCES = sorted(
    path
    for path in Path(colocate.__file__).parent.rglob("*.py")
    if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
)
OWN = ("self", "cls")
NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}
"""Public in spite of their names: the library reference has them."""

LEFT = {
    "cli/completion.py": "_SubParsersAction",
    "cli/parser.py": "_SubParsersAction",
    "cluster/transport.py": "_factory",
    "runtime/cri_relay.py": "_cython_call",
}
"""Uses that have no public way yet; each says why where it is. None may be added."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(tree: ast.AST) -> Iterator[str]:
    """Names that a module gives to its own things."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id=owner), attr=name, ctx=ast.Store()) if owner in OWN:
                yield name


def foreign(tree: ast.AST, own: set[str]) -> Iterator[tuple[int, str]]:
    """Private names of others: attributes that this package does not define, and imports of them."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, attr=name) if private(name) and name not in own:
                if not (isinstance(owner, ast.Name) and owner.id in OWN):
                    yield node.lineno, name
            case ast.ImportFrom(module=str(module), names=names) if not module.startswith("colocate"):
                if any(map(private, module.split("."))) or any(private(one.name) for one in names):
                    yield node.lineno, module


def found(sources: dict[str, str]) -> list[str]:
    trees = {name: ast.parse(text) for name, text in sources.items()}
    own = {name for tree in trees.values() for name in defined(tree)} | NAMED_TUPLES
    return [f"{name}:{line} {what}" for name, tree in trees.items() for line, what in foreign(tree, own)]


def test_no_private_name_of_a_dependency_is_used() -> None:
    room = Path(colocate.__file__).parent
    uses = found({str(path.relative_to(room)): path.read_text() for path in SOURCES})
    assert {re.sub(":[0-9]+", "", use) for use in uses} == {f"{file} {name}" for file, name in LEFT.items()}


def test_such_a_use_is_found() -> None:
    uses = "import aiohttp\nfrom asyncio._x import y\nz = aiohttp.web._waiter\n"
    text = uses + "class A:\n    def _m(self): self._n = a._m\n"
    assert found({"a.py": text}) == ["a.py:2 asyncio._x", "a.py:3 _waiter"]
