"""docs/sdk.md: its reference is what the docstrings say, its plugin runs, and it leaves no exported name out."""

import ast
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tools import sdk_reference

import colocate.kubelet
from colocate.kubelet import DevicePlugin
from colocate.model.pod import Phase
from colocate.testing import TestNode

REPO = Path(__file__).parents[2]
SDK, TESTING = sdk_reference.PAGES
PAGE = SDK.file
CARD = "example.com/card"


@pytest.mark.parametrize("page", sdk_reference.PAGES, ids=lambda page: page.file.name)
def test_the_reference_is_what_the_docstrings_say(page: sdk_reference.Page) -> None:
    text = page.file.read_text()
    assert text == sdk_reference.with_reference(text, sdk_reference.reference(page)), "run `make docs`"


def test_the_reference_of_tests_has_what_a_test_calls() -> None:
    reference = sdk_reference.reference(TESTING)
    for name in (
        "TestNode",
        "BlockingNode",
        "KubeletFaults",
        "ManualClock",
        "run_pod",
        "allocation",
        "advance",
    ):
        assert name in reference


def test_an_exported_name_that_is_in_no_group_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sdk_reference.SDK, "To run", ["run", "serve", "Plugins", "LogStyle"])
    with pytest.raises(sdk_reference.Undocumented, match=r"^Clock: exported"):
        sdk_reference.reference(SDK)


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("class Device:\n    pass", "Device has no docstring"),
        ('class Device:\n    """One."""\n    id: str', r"Device\.id has no docstring below it"),
        (
            'class Device:\n    """One."""\n    def unhealthy(self) -> None: ...',
            r"Device\.unhealthy has no doc",
        ),
        ("", "Device is not defined"),
    ],
)
def test_a_public_name_without_a_docstring_is_an_error(code: str, complaint: str) -> None:
    with pytest.raises(sdk_reference.Undocumented, match=complaint):
        list(sdk_reference._entry("Device", ast.parse(code)))


def standing_in_signatures(module: ast.Module, name: str) -> Iterator[str]:
    """The names in the annotations of a public name and of its public members, and in an alias' value."""
    (defined,) = [
        one for one in module.body if getattr(one, "name", "") == name or sdk_reference._assigned(one) == name
    ]
    parts: list[ast.AST] = []
    for one in [defined, *(defined.body if isinstance(defined, ast.ClassDef) else [])]:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            if one.name == "__init__" or not one.name.startswith("_"):
                parts += [one.args, *([one.returns] if one.returns else [])]
        elif isinstance(one, ast.AnnAssign) and not sdk_reference._assigned(one).startswith("_"):
            parts += [one.annotation]
            if isinstance(defined, ast.AnnAssign) and one.value:
                parts += [one.value]
        elif isinstance(one, ast.ClassDef):
            parts += one.bases
    for part in parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                yield node.value


def of_this_project(module: ast.Module) -> set[str]:
    """What a module defines, or imports from this package."""
    names = {getattr(one, "name", "") or sdk_reference._assigned(one) for one in module.body}
    for one in ast.walk(module):
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("colocate"):
            names |= {alias.name for alias in one.names}
    return names - {""}


def test_whatever_stands_in_a_signature_is_exported() -> None:
    exported = sdk_reference._exports(Path(colocate.kubelet.__file__))
    seen: set[str] = set()
    for name, module in exported.items():
        ours = {one for one in standing_in_signatures(module, name) if one in of_this_project(module)}
        # Default values are no types.
        missing = ours - exported.keys() - {"DEFAULT_ROOT"}
        assert not missing, f"{name} mentions {missing}, which colocate.kubelet does not export"
        seen |= ours
    assert seen >= {"Clock", "Devices", "DeviceList", "Settings", "Allocation", "LogStyle", "KubeletPaths"}


def test_what_is_exported_is_there_and_sorted() -> None:
    assert all(hasattr(colocate.kubelet, name) for name in colocate.kubelet.__all__)


class Driver:
    """What the plugin of the page talks to."""

    connected = False

    @classmethod
    async def connect(cls) -> "Driver":
        cls.connected = True
        return cls()

    async def disconnect(self) -> None:
        type(self).connected = False

    async def cards(self) -> AsyncIterator[list[SimpleNamespace]]:
        yield [SimpleNamespace(serial=f"c{n}", ok=n != 1, numa_node=n % 2) for n in range(6)]


async def test_the_plugin_of_the_page_serves_pods(node: TestNode) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    names: dict[str, object] = {"Driver": Driver}
    exec(found[1], names)
    made = names["Cards"]
    assert isinstance(made, type)
    assert issubclass(made, DevicePlugin)
    group = await node.serve(made())
    await node.devices(CARD, 5)
    pod = await node.run_pod({CARD: 2})
    assert node.env(pod) == {"CARDS": ",".join(sorted(node.held(pod)))}
    await node.delete_pod(pod)
    refused = await node.run_pod({CARD: 5}, phase=Phase.FAILED, restartPolicy="Never")
    assert "at most 4 cards" in refused.status.message
    assert Driver.connected
    await node.stop(group)
    assert not Driver.connected
