"""Generate Python code from the .proto files of colocate.wire, beside them: `make proto`.

The compiler is an old one on purpose: a protobuf runtime refuses code that is newer than itself, and code
of this age loads on every runtime since 4.21.
"""

import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"


def generate(into: Path) -> None:
    """Write `*_pb2.py` and `*_pb2.pyi` for every .proto file below `into`, in folders as in src."""
    protoc = Path(sys.executable).with_name("protoc")
    protos = sorted((SOURCES / "colocate" / "wire").glob("*.proto"))
    subprocess.run(
        [protoc, f"-I{SOURCES}", f"--python_out={into}", f"--pyi_out={into}", *protos],
        check=True,
    )


if __name__ == "__main__":
    generate(SOURCES)
