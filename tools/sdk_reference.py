"""Writes references from docstrings: `make docs`.

That of docs/sdk.md is of what `colocate.kubelet` exports, that of docs/testing.md of what `colocate.testing` does.
The source is read, and none of it is run. A public name without a docstring is an error.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

SDK = {
    "To write": ["DevicePlugin", "plugin", "Refused", "UserError", "ColocateError", "Devices", "DeviceList"],
    "To give": ["Device", "Health", "Allocation", "DeviceNode", "Mount"],
    "To run": ["run", "serve", "Plugins", "LogStyle", "Clock"],
    "To adjust": ["Settings", "Registration", "OnStop", "KubeletPaths", "MESSAGE_LIMIT"],
}
TESTING = {
    "A node": [
        "embedded_kubelet",
        "TestNode",
        "blocking_kubelet",
        "BlockingNode",
        "KubeletFaults",
        "ManualClock",
    ],
    "Its pods": ["PodRecord", "Phase", "SimulatedRuntime", "ProcessRuntime"],
}


class Page(NamedTuple):
    """A page, and what its reference is of."""

    file: Path
    room: str
    groups: Mapping[str, Sequence[str]]


PAGES = (
    Page(ROOT / "docs" / "sdk.md", "kubelet", SDK),
    Page(ROOT / "docs" / "testing.md", "testing", TESTING),
)

_BEGIN, _END = "<!-- reference: written by `make docs` -->\n", "<!-- end of the reference -->\n"
_WIDTH = 118
_MANAGERS = {"asynccontextmanager", "contextmanager"}


class Undocumented(Exception):
    """A public name has no docstring, or no place in the reference."""


def main() -> None:
    for page in PAGES:
        page.file.write_text(with_reference(page.file.read_text(), reference(page)))


def with_reference(page: str, text: str) -> str:
    """The page with this as its reference."""
    before, _, rest = page.partition(_BEGIN)
    _, found, after = rest.partition(_END)
    if not found:
        raise SystemExit(f"a page has no place for its reference: {_BEGIN.strip()} … {_END.strip()}")
    return f"{before}{_BEGIN}{text}{_END}{after}"


def reference(page: Page) -> str:
    """Every exported name in its group."""
    exported = _exports(SOURCE / "colocate" / page.room / "__init__.py")
    placed = [name for names in page.groups.values() for name in names]
    if sorted(placed) != sorted(exported):
        odd = set(placed) ^ set(exported)
        raise Undocumented(
            f"{', '.join(sorted(odd))}: exported or in a group of {Path(__file__).name}, not both"
        )
    lines: list[str] = []
    for group, names in page.groups.items():
        lines += ["", f"### {group}"]
        for name in names:
            lines += ["", *_entry(name, exported[name])]
    return "\n".join([*lines, "", ""])


def _exports(face: Path) -> dict[str, ast.Module]:
    """What `__all__` names, with the module that each comes from."""
    tree = ast.parse(face.read_text())
    modules = {
        alias.name: one.module
        for one in tree.body
        if isinstance(one, ast.ImportFrom) and one.module
        for alias in one.names
    }
    names = next(one.value for one in tree.body if isinstance(one, ast.Assign))
    return {
        name: ast.parse((SOURCE / Path(*modules[name].split("."))).with_suffix(".py").read_text())
        for name in ast.literal_eval(names)
    }


def _entry(name: str, module: ast.Module) -> Iterator[str]:
    for one, following in _pairs(module.body):
        if isinstance(one, ast.ClassDef) and one.name == name:
            errors = [base for base in map(ast.unparse, one.bases) if base.endswith(("Error", "Exception"))]
            yield f"#### `{name}`" + (f", a kind of `{errors[0]}`" if errors else "")
            yield from ["", *_paragraphs(_docstring(one, name))]
            members = list(_members(one))
            yield from ["", *members] if members else []
            return
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name:
            yield from [
                f"#### `{name}`",
                "",
                *_block(_signature(one)),
                "",
                *_paragraphs(_docstring(one, name)),
            ]
            return
        if _assigned(one) == name:
            assert isinstance(one, ast.Assign | ast.AnnAssign)
            assert one.value is not None
            shown = f"{name} = {ast.unparse(one.value)}"
            yield from [f"#### `{name}`", "", *_block(shown), "", *_paragraphs(_text(following, name))]
            return
    raise Undocumented(f"{name} is not defined where its room imports it from")


def _members(owner: ast.ClassDef) -> Iterator[str]:
    for one, following in _pairs(owner.body):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            if one.name == "__init__":
                yield from _item(f"{owner.name}({_arguments(one)})", "")
            elif not one.name.startswith("_"):
                kinds = {ast.unparse(decorator) for decorator in one.decorator_list}
                named = f"{owner.name}.{one.name}"
                if "property" in kinds:
                    assert one.returns is not None
                    shown = f"{one.name}: {ast.unparse(one.returns)}"
                else:
                    shown = _signature(one)
                yield from _item(shown, _docstring(one, named))
        elif (name := _assigned(one)) and not name.startswith("_"):
            assert isinstance(one, ast.Assign | ast.AnnAssign)
            yield from _item(ast.unparse(one), _text(following, f"{owner.name}.{name}"))


def _item(shown: str, text: str) -> Iterator[str]:
    first, *others = _paragraphs(text, width=_WIDTH - 2) if text else [""]
    yield f"- `{shown.replace(chr(10), ' ')}`" + (":" if text else "")
    for line in [first, *others]:
        if line or others:
            yield f"  {line}".rstrip()


def _block(code: str) -> list[str]:
    """One line, or, where that is too long, one argument a line."""
    if len(code) > _WIDTH:
        name, _, rest = code.partition("(")
        arguments, arrow, returns = re.split(r"(\) -> |\) as )(?!.*\) -> )", rest, maxsplit=1)
        split = re.split(r", (?=[*\w]+: )", arguments)
        code = "\n    ".join([f"{name}(", *(f"{one}," for one in split)]) + f"\n{arrow}{returns}"
    return ["```text", *code.splitlines(), "```"]


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    word = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    managed = {ast.unparse(decorator) for decorator in function.decorator_list} & _MANAGERS
    if managed and function.returns:
        given = re.sub(r"^\w+\[(.*)\]$", r"\1", ast.unparse(function.returns))
        return f"{word}with {function.name}({_arguments(function)}) as {given}"
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{word}{function.name}({_arguments(function)}){returns}"


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    written = re.sub(r"^(self|cls)(, |$)", "", ast.unparse(function.args))
    return re.sub(r"(: [^=,]+)=", r"\1 = ", written)


def _assigned(one: ast.stmt) -> str:
    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
        return one.target.id
    if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
        return one.targets[0].id
    return ""


def _pairs(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    return zip(body, [*body[1:], None], strict=False)


def _docstring(one: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    found = ast.get_docstring(one)
    if not found:
        raise Undocumented(f"{name} has no docstring")
    return found


def _text(one: ast.stmt | None, name: str) -> str:
    """The docstring below a field."""
    if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
        return one.value.value
    raise Undocumented(f"{name} has no docstring below it")


def _paragraphs(text: str, width: int = _WIDTH) -> list[str]:
    """Wrapped, with an empty line between paragraphs."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        joined = " ".join(paragraph.split())
        lines += ["", *textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)]
    return lines[1:]


if __name__ == "__main__":
    main()
