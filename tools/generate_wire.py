"""Generate Python code from the .proto files of a folder, beside them: `make proto`.

The compiler is an old one on purpose: a protobuf runtime refuses code that is newer than itself, and code
of this age loads on every runtime since 4.21.
"""

import subprocess
import sys
from pathlib import Path


def generate(folder: Path, into: Path) -> None:
    """Write `*_pb2.py` and `*_pb2.pyi` for every .proto file of `folder` into `into`."""
    protoc = Path(sys.executable).with_name("protoc")
    sources = sorted(folder.glob("*.proto"))
    subprocess.run(
        [protoc, f"-I{folder}", f"--python_out={into}", f"--pyi_out={into}", *sources],
        check=True,
    )


if __name__ == "__main__":
    target = Path(sys.argv[1])
    generate(target, target)
