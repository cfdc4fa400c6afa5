"""`python -m bench.alone PACKAGE NAME`: one bench in this process, its rows to standard output."""

import importlib
import sys

import msgspec


def main(package: str, name: str) -> None:
    rows = importlib.import_module(f"{package}.{name}").bench()
    # Not JSON, which knows no NaN and no infinity.
    sys.stdout.buffer.write(msgspec.msgpack.encode(list(rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
