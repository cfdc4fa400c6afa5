"""Reads lists of GPU nodes and pods from CSV files, plain or .gz, with the columns of Alibaba's
cluster-trace-gpu-v2023.

Nodes have cpu_milli, memory_mib, gpu and model; pods cpu_milli, memory_mib, num_gpu, gpu_milli (a thousand for a
whole GPU) and, where there are constraints, gpu_spec: models joined by a bar.
"""

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

from colocate.errors import UserError, system_reason
from colocate.gpus.packing import GpuState, NodeState, PackRequest

T = TypeVar("T")

WHOLE = 1000
"""A whole GPU, in the unit of these files."""
_MOST_ROWS = 200_000
_LONGEST_LINE = 1 << 16
_MOST_GPUS = 64
_LONGEST_SPEC = 512
_MOST_MODELS = 16
"""Models that one row may name, as in a pod's annotation."""
_MOST_SPECS = 2000
"""Different gpu_spec texts in one file. There are many rows and few models, so each text is kept once."""
_LONGEST_MODEL = 128
_MOST = 10**12


def read_nodes(path: Path) -> Sequence[NodeState]:
    """The nodes of a file; UserError names the line that cannot be read."""
    nodes = _read(path, ("cpu_milli", "memory_mib", "gpu"), _node)
    if not sum(len(node.gpus) for node in nodes):
        raise UserError(f"{path}: no node has a GPU; give a list of nodes with GPUs")
    return nodes


def read_pods(path: Path) -> Sequence[PackRequest]:
    """The pods of a file; UserError names the line that cannot be read."""
    specs = _Specs()
    columns = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
    pods = _read(path, columns, lambda row, _: _pod(row, specs))
    if not any(pod.gpus for pod in pods):
        raise UserError(f"{path}: no pod asks for a GPU; give a list of pods that do")
    return pods


class _Specs:
    """The models of gpu_spec; each different text is split only once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, ...]] = {}

    def of(self, row: Mapping[str, str]) -> tuple[str, ...]:
        """The models of a row, in order; ValueError where it names too many."""
        text = row.get("gpu_spec") or ""
        known = self._known.get(text)
        if known is not None:
            return known
        if len(text) > _LONGEST_SPEC:
            raise ValueError(f"gpu_spec has {len(text)} characters; write at most {_LONGEST_SPEC}")
        if len(self._known) == _MOST_SPECS:
            raise ValueError(
                f"gpu_spec has more than {_MOST_SPECS} different texts; name models, which are few"
            )
        models = tuple(sorted({word.strip() for word in text.split("|")} - {""}))
        if len(models) > _MOST_MODELS:
            raise ValueError(f"gpu_spec names {len(models)} models; name at most {_MOST_MODELS}")
        self._known[text] = models
        return models


def _node(row: Mapping[str, str], number: int) -> NodeState:
    cpu, memory = _number(row, "cpu_milli"), _number(row, "memory_mib")
    model = row.get("model") or ""
    if len(model) > _LONGEST_MODEL:
        raise ValueError(f"model has {len(model)} characters; write at most {_LONGEST_MODEL}")
    gpu = GpuState(WHOLE, WHOLE, model=model)
    gpus = (gpu,) * _number(row, "gpu", _MOST_GPUS)
    # Node names may repeat or be missing; row numbers do not.
    return NodeState(name=f"{number}", cpu=cpu, memory=memory, free_cpu=cpu, free_memory=memory, gpus=gpus)


def _pod(row: Mapping[str, str], specs: _Specs) -> PackRequest:
    gpus = _number(row, "num_gpu", _MOST_GPUS)
    share = _number(row, "gpu_milli", WHOLE) if gpus else 0
    if gpus and not share:
        raise ValueError("gpu_milli is 0 for a pod with a GPU; write 1 to 1000")
    cpu, memory = _number(row, "cpu_milli"), _number(row, "memory_mib")
    return PackRequest(cpu, memory, gpus, share, 0, specs.of(row))


def _number(row: Mapping[str, str], column: str, most: int = _MOST) -> int:
    text = row[column] or ""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= most or found != int(found):
        raise ValueError(f"{column} is {text[:40]!r}; write a whole number from 0 to {most}")
    return int(found)


def _read(path: Path, columns: Sequence[str], read: Callable[[Mapping[str, str], int], T]) -> list[T]:
    found: list[T] = []
    try:
        for number, row in enumerate(_rows(path, columns), start=2):
            if len(found) == _MOST_ROWS:
                raise UserError(f"{path}: more than {_MOST_ROWS} rows; give a shorter list")
            try:
                found.append(read(row, number))
            except ValueError as error:
                raise UserError(f"{path}, line {number}: {error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file; give CSV, plain or .gz") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a whole gzip file ({error}); fetch it again") from None
    except csv.Error as error:
        raise UserError(f"{path}: not CSV ({error}); give a list with one row a line") from None
    except OSError as error:
        raise UserError(f"{path}: {system_reason(error)}; name a file that can be read") from error
    if not found:
        raise UserError(f"{path}: no rows; give a list with a line of names and at least one row")
    return found


def _rows(path: Path, columns: Sequence[str]) -> Iterator[Mapping[str, str]]:
    with _opened(path) as file:
        rows = csv.DictReader(_lines(file, path))
        missing = [name for name in columns if name not in (rows.fieldnames or ())]
        if missing:
            raise UserError(f"{path}: no column {missing[0]}; needed are {', '.join(columns)}")
        yield from rows


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """Each line, bounded in length: a small .gz may hold one line of gigabytes."""
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise UserError(f"{path}: a line has more than {_LONGEST_LINE} characters; give one row a line")
        yield line


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")
