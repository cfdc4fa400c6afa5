"""README shows what is so: its plugin runs, its demo prints what it says, its links lead somewhere."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from colocate.testing import TestNode

REPO = Path(__file__).parents[2]
README = (REPO / "README.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found, f"README has no {language} block"
    return found[1]


def test_the_plugin_in_readme_is_the_example_and_has_ten_lines() -> None:
    code = block("python")
    assert code == (REPO / "examples" / "ten_lines.py").read_text()
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


async def test_the_plugin_in_readme_serves_a_pod(node: TestNode) -> None:
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", block("python")],
        env={**os.environ, "COLOCATE_KUBELET_ROOT": str(node.paths.root)},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await node.devices("example.com/fan", 2)
        pod = await node.run_pod({"example.com/fan": 2})
        assert node.env(pod) == {"FANS": "fan-0,fan-1"}
    finally:
        process.terminate()
        assert await process.wait() == 0


def same_but_for_figures(text: str) -> str:
    figures = (
        r"[\d.]+ (?:ms|s|blocks of 512|free blocks|free|GiB of what|blocks are offered)\b",
        r"process \d+",
        r"\b\d{2,7}(?=   (?:gpu|CM|\w{4}-\d))",
        r"(?<=held)\s+[#OCp.s!]{20,}\s+",  # the bar of the memory
        r"(?<=this-machine)\s+\d+ %\s+\d+ %\s+[█░]+",
    )
    return re.sub("|".join(figures), "#", text)


def test_the_demo_prints_what_readme_shows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "colocate.cli.main", "demo", "--once"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    printed, shown = same_but_for_figures(done.stdout), same_but_for_figures(block("text"))
    if "plain processes" in printed:
        pytest.skip("this machine allows no control groups; README shows one that does")
    assert [line.split() for line in printed.splitlines()] == [line.split() for line in shown.splitlines()]


@pytest.mark.parametrize(
    "page",
    [REPO / "README.md", REPO / "AGENTS.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").glob("*.md"))],
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
