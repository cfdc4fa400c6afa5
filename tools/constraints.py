"""Upper bounds of everything that is installed for this project: `make constraints`, `make constraints-check`.

`write` installs the newest of everything into a throw-away environment and writes what came of it into
constraints.txt, from which the Makefile installs. `check` says what is newer by now, and whether each Python that is
supported still finds releases within the bounds; it changes nothing. Both ask the package index. Bounds are no
pins: another Python may need an older release.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "constraints.txt"
EXTRAS = ".[dev,gpu,replay]"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
HEADER = (
    "# Upper bounds of what is installed: made by `make constraints`, tried by `make constraints-check`.\n"
)
_LINE = re.compile(r"^([A-Za-z0-9._-]+)<=(\S+)$")
_PIP = ("-m", "pip", "--disable-pip-version-check")


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def bounds(text: str) -> dict[str, str]:
    """By distribution, the newest version that may be installed."""
    found = [_LINE.match(line) for line in text.splitlines() if line and not line.startswith("#")]
    if None in found:
        raise SystemExit(f"{FILE.name}: each line is NAME<=VERSION; write it anew with `make constraints`")
    return {normal(match[1]): match[2] for match in found if match is not None}


def lines(frozen: Iterable[str]) -> list[str]:
    """Bounds for what `pip freeze` has found."""
    pairs = [line.strip().partition("==") for line in frozen]
    return sorted(f"{normal(name)}<={version}" for name, pinned, version in pairs if pinned)


def newer(
    outdated: Iterable[Mapping[str, str]], known: Mapping[str, str], pinned: Iterable[str]
) -> list[str]:
    """Sentences about releases beyond the bounds; what the project itself pins is left out."""
    left_out = set(map(normal, pinned))
    return [
        f"{each['name']} {each['latest_version']} is out; {known[normal(each['name'])]} is the bound"
        for each in outdated
        if normal(each["name"]) in known and normal(each["name"]) not in left_out
    ]


def pinned() -> list[str]:
    """What pyproject.toml allows one version of."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [
        each.partition("==")[0] for some in extras.values() for each in some if "==" in each.partition(";")[0]
    ]


def pip(python: str | Path, *words: str) -> str:
    done = subprocess.run([python, *_PIP, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pip {words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder, "bin", "python")
        pip(python, "install", "--quiet", "--editable", EXTRAS)
        found = lines(pip(python, "freeze", "--exclude-editable").splitlines())
    FILE.write_text(HEADER + "".join(f"{line}\n" for line in found))
    print(f"{FILE.name}: {len(found)} bounds")


def check() -> int:
    known = bounds(FILE.read_text())
    stale = newer(json.loads(pip(sys.executable, "list", "--outdated", "--format=json")), known, pinned())
    for sentence in stale:
        print(sentence)
    for version in PYTHONS:
        with tempfile.TemporaryDirectory() as folder:
            words = [
                "--dry-run",
                "--quiet",
                "--ignore-installed",
                "--only-binary=:all:",
                f"--target={folder}",
            ]
            pip(
                sys.executable,
                "install",
                *words,
                f"--python-version={version}",
                "-c",
                str(FILE),
                *requirements(),
            )
        print(f"Python {version}: everything is there within the bounds")
    if stale:
        print("to take them in: make constraints, then make test")
    return 1 if stale else 0


def requirements() -> list[str]:
    """Everything that the project and its extras name, but for itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    every = [
        *project["dependencies"],
        *(each for some in project["optional-dependencies"].values() for each in some),
    ]
    return [each for each in every if not each.startswith(project["name"])]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write"]:
            write()
        case ["check"]:
            sys.exit(check())
        case _:
            sys.exit("say `write` or `check`")
