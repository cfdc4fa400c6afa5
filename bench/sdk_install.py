"""The SDK as a plugin's author gets it: `pip install` with no extra, into an environment that has nothing else.

Its size on disk is compared with that of gRPC and protobuf, which any device plugin needs, and its import with that
of gRPC, both by the processor's time: a busy machine makes others wait longer, but has them compute no more. pip
needs an index, as `make` does; how long it takes says more of the network than of the code.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import msgspec
import uvloop

from bench.measure import Sample, side_by_side
from bench.memory import MEGABYTE
from bench.ratio import Figure, Ratio, Row
from colocate.errors import ColocateError

REPO = Path(__file__).resolve().parents[1]

UNWANTED = ("cryptography", "numpy", "pygments", "pynvml", "rich")
"""What the SDK alone must not bring: it belongs to the extras."""

SIZE = Ratio("size of the SDK installed alone", "grpcio and protobuf installed", 3.0)
PACKAGES = Ratio("unwanted packages beside the SDK", f"the {len(UNWANTED)} that are unwanted", 0.0)
IMPORT = Ratio("import of the SDK", "import of grpc.aio", 2.5)
READY = Ratio("import of the SDK, and gRPC loaded to serve", "import of grpc.aio", 3.5)
RATIOS = (SIZE, PACKAGES, IMPORT, READY)

_GRPC = "import grpc.aio"
_SDK = "import colocate.kubelet"
_SERVING = "import colocate.kubelet; colocate.kubelet.Plugins(); import colocate.kubelet.endpoint"


class Installed(msgspec.Struct, frozen=True):
    """An environment into which something was installed."""

    python: Path
    packages: frozenset[str]
    size: int
    seconds: float


def bench() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
        sdk = install(Path(folder, "sdk"), str(REPO))
        bare = install(Path(folder, "bare"), "grpcio", "protobuf")
        return uvloop.run(_rows(sdk, bare))


async def _rows(sdk: Installed, bare: Installed) -> list[Row]:
    imported = await side_by_side(importing(sdk, _SDK), importing(sdk, _GRPC), at_least=10)
    ready = await side_by_side(importing(sdk, _SERVING), importing(sdk, _GRPC), at_least=10)
    unwanted = [name for name in UNWANTED if name in sdk.packages]
    return [
        SIZE.row(
            sdk.size / bare.size,
            Figure("SDK", sdk.size / MEGABYTE, "MB"),
            Figure("bare", bare.size / MEGABYTE, "MB"),
            Figure("pip took", sdk.seconds, "s"),
            Figure("bare", bare.seconds, "s"),
        ),
        PACKAGES.row(
            len(unwanted) / len(UNWANTED),
            Figure("unwanted", ", ".join(unwanted) or "none"),
            Figure("installed in all", len(sdk.packages)),
        ),
        *(
            ratio.row(
                measured.ratio,
                Figure("SDK", 1000 * measured.ours, "ms"),
                Figure("gRPC", 1000 * measured.theirs, "ms"),
                Figure("rounds", measured.rounds),
            )
            for ratio, measured in ((IMPORT, imported), (READY, ready))
        ),
    ]


def install(folder: Path, *what: str) -> Installed:
    """Make an environment and install into it; its own pip, which is none, does not count."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    started = time.monotonic()
    done = subprocess.run([*command, "install", "--quiet", "--no-compile", *what], check=False)
    if done.returncode:
        raise ColocateError(
            f"pip cannot install {' '.join(what)}; see above. It needs an index to install from"
        )
    seconds = time.monotonic() - started
    (site,) = folder.glob("lib/python*/site-packages")
    size = sum(file.lstat().st_size for file in site.rglob("*") if file.is_file())
    packages = frozenset(entry.name for entry in site.iterdir() if not entry.name.endswith(".dist-info"))
    return Installed(python, packages, size, seconds)


def importing(installed: Installed, code: str) -> Sample:
    """Takes samples of the seconds that a fresh process computes for an import."""
    timed = f"import time; t = time.process_time(); {code}; print(time.process_time() - t)"
    # Of our own variables none, nor of this environment's modules.
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}

    async def sample() -> float:
        process = await asyncio.create_subprocess_exec(
            *[str(installed.python), "-c", timed], stdout=asyncio.subprocess.PIPE, env=env, cwd="/"
        )
        out, _ = await process.communicate()
        return float(out)

    return sample
