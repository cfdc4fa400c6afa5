"""`python -m bench`: measure, print a table, write JSON; exit 1 if a ratio is beyond its threshold."""

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.finding import Bench, find
from bench.table import table
from colocate.errors import ColocateError


def main(arguments: Sequence[str], package: str = "bench") -> int:
    """Returns the exit code: 1 where a ratio is beyond its threshold, 2 where a name is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benches to run; all by default")
    parser.add_argument(
        "--json", type=Path, default=Path("bench-results.json"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--list", action="store_true", help="say what is measured, and measure nothing")
    args = parser.parse_args(arguments)
    benches = find(package)
    unknown = [name for name in args.names if name not in benches]
    if unknown:
        print(f"bench: there is no bench {unknown[0]!r}; there are {', '.join(benches)}", file=sys.stderr)
        return 2
    chosen = [benches[name] for name in dict.fromkeys(args.names or benches)]
    if args.list:
        for bench in chosen:
            for ratio in bench.ratios:
                print(f"{bench.name}: {ratio.name}, against {ratio.against}: {ratio.demanded}")
        return 0
    return run(chosen, args.json)


def run(benches: Sequence[Bench], file: Path) -> int:
    """Run benches one after the other; the table and the file are written even if a ratio is too great."""
    results = {}
    for bench in benches:
        print(f"measuring {bench.name} …", file=sys.stderr)
        try:
            results[bench.name] = bench.run()
        except ColocateError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    print(table(results))
    rows = [
        {"bench": bench, **msgspec.to_builtins(row), "within": row.within}
        for bench, rows in results.items()
        for row in rows
    ]
    written = msgspec.json.encode({"machine": machine(), "rows": rows})
    file.write_bytes(msgspec.json.format(written, indent=2) + b"\n")
    beyond = [row["name"] for row in rows if not row["within"]]
    if beyond:
        print(f"bench: beyond the threshold: {'; '.join(beyond)}", file=sys.stderr)
    return 1 if beyond else 0


def machine() -> dict[str, str | int | None]:
    """What the absolute figures depend on."""
    return {
        "python": platform.python_version(),
        "grpcio": importlib.metadata.version("grpcio"),
        "uvloop": importlib.metadata.version("uvloop"),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
