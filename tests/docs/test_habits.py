"""Habits of work are consistent: make's targets, the workflow, the hooks, the subject of a commit, `Any`."""

import ast
import re
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tools import commit_subject

from colocate.config.strict_yaml import parse

REPO = Path(__file__).parents[2]
WORKFLOWS = sorted((REPO / ".github" / "workflows").iterdir())
MAKEFILE = (REPO / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def read(file: Path) -> Any:
    """A file of YAML in which no key is there twice."""
    return parse(file.read_text())


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_has_what_github_asks_for(file: Path) -> None:
    workflow = read(file)
    assert set(workflow) <= {"name", "on", "permissions", "concurrency", "jobs", "env", "defaults"}
    assert set(workflow["on"]) <= {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert set(job) <= {"runs-on", "timeout-minutes", "strategy", "steps", "env", "needs", "if", "name"}
        assert isinstance(job["runs-on"], str)
        for step in job["steps"]:
            assert set(step) <= {"name", "uses", "with", "run", "env", "if", "shell", "id"}
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+|[\w-]+/[\w-]+@[0-9a-f]{40}", step.get("uses", "a/b@v1"))
    used = set(re.findall(r"\$\{\{ *matrix\.(\w+) *\}\}", file.read_text()))
    declared = {
        name for job in workflow["jobs"].values() for name in job.get("strategy", {}).get("matrix", {})
    }
    assert used == declared


def test_the_workflow_has_every_python_that_is_supported_and_no_other() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    supported = [name.split(" :: ")[-1] for name in project["classifiers"] if ":: Python :: 3." in name]
    (matrix,) = [job["strategy"]["matrix"] for job in read(WORKFLOWS[0])["jobs"].values()]
    assert matrix["python"] == supported == ["3.11", "3.12", "3.13", "3.14"]
    assert project["requires-python"] == f">={supported[0]}"


@pytest.mark.parametrize(
    "file",
    [
        *WORKFLOWS,
        REPO / ".pre-commit-config.yaml",
        *[REPO / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "docs/sdk.md")],
    ],
    ids=lambda file: file.name,
)
def test_every_make_that_is_written_down_is_a_target(file: Path) -> None:
    written = re.findall(r"(?:`|\$ |run: |entry: )make (?:--silent )?([a-z-]+)", file.read_text())
    assert written
    assert set(written) <= TARGETS


def test_help_lists_every_target() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=REPO, capture_output=True, check=True, text=True
    )
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert set(listed) == TARGETS
    assert max(map(len, done.stdout.splitlines())) <= 110
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS


def test_what_the_hooks_call_is_there() -> None:
    (local,) = read(REPO / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"  # nothing is downloaded at a commit
    for hook in local["hooks"]:
        assert set(hook) >= {"id", "name", "entry", "language"}
        for word in hook["entry"].split():
            assert "/" not in word or (REPO / word).exists()


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("Drop ids that no pod holds\n\nBecause the kubelet forgets them.\n", ""),
        ("Drop ids that no pod holds\n# Please enter the commit message\n", ""),
        ("# a comment of git's\nDrop ids that no pod holds\n", ""),
        ("Merge branch 'sdk' into main, whose subject is as long as git pleases to make it, or longer\n", ""),
        ("x" * 73, "73 characters, 72 are allowed"),
        ("drop ids that no pod holds", "as an order"),
        ("Drop ids that no pod holds.", "as an order"),
        ("", "empty"),
        ("# nothing but comments\n", "empty"),
        ("Drop ids\nthat no pod holds", "second line"),
    ],
)
def test_the_subject_of_a_commit(
    message: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message)
    assert commit_subject.main(str(file)) == (1 if complaint else 0)
    assert complaint in capsys.readouterr().err


def test_any_and_type_ignore_do_not_grow_beyond_what_contributing_says() -> None:
    (stated,) = re.findall(
        r"at most (\d+) uses of `Any` and (\d+) of `type: ignore`", (REPO / "CONTRIBUTING.md").read_text()
    )
    sources = [file for file in (REPO / "src").rglob("*.py") if not file.name.endswith("_pb2.py")]
    anys = sum(
        isinstance(node, ast.Name) and node.id == "Any"
        for file in sources
        for node in ast.walk(ast.parse(file.read_text()))
    )
    ignores = sum(file.read_text().count("# type: ignore") for file in sources)
    assert anys <= int(stated[0])
    assert ignores <= int(stated[1])


def test_a_public_class_is_the_only_one_of_its_name() -> None:
    found = defaultdict(set)
    for file in (REPO / "src").rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(str(file.relative_to(REPO)))
    assert {name: sorted(files) for name, files in found.items() if len(files) > 1} == {}
