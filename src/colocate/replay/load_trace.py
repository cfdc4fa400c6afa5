"""Traces of machines, CPU and memory use every five minutes for weeks: read, cleaned, or generated.

The file holds GWA-T-12 Bitbrains as numpy arrays (.npz): `cpu_used_mhz` and `memory_used_mib` by machine
and time, with NaN where nothing was measured; `cpu_capacity_mhz` and `memory_provisioned_mib` by machine.
"""

import math
import zipfile
from pathlib import Path

import msgspec
import numpy as np
from numpy.lib import format as header
from numpy.typing import NDArray

from colocate.errors import UserError, system_reason

Floats = NDArray[np.floating]

_ARRAYS = ("cpu_used_mhz", "memory_used_mib", "cpu_capacity_mhz", "memory_provisioned_mib")
_MOST_VALUES = 1 << 26
"""The most values in all arrays together, three times those of Bitbrains: the arrays must fit into memory."""
_GREATEST = 1e12
"""MHz or MiB; more than any machine has."""
_MHZ = 2.6
"""MHz per millicore: Bitbrains' machines have 2.6 GHz."""
_MOST = (2000.0, 4096.0)
"""The most millicores and MiB of one pod; machines that use more are scaled down as a whole."""
_GAPS = 0.2
"""The largest share of samples that may be missing."""
_IDLE = (20.0, 200.0)
"""Millicores and MiB. Machines whose mean use is below both are idle, and left out."""
DAY = 288
"""Samples."""


class MachineTrace(msgspec.Struct, frozen=True):
    """Use over time and provisioned size by machine, in millicores and MiB."""

    cpu: Floats
    memory: Floats
    cpu_size: Floats
    memory_size: Floats

    @property
    def machines(self) -> int:
        return len(self.cpu)

    @property
    def samples(self) -> int:
        return int(self.cpu.shape[1])


def is_trace(path: Path) -> bool:
    """Whether the file is an .npz file; a recording is not."""
    return zipfile.is_zipfile(path)


def read_trace(path: Path) -> MachineTrace:
    """The machines of a file, cleaned by `mended`."""
    try:
        _check_headers(path)
        with np.load(path, allow_pickle=False) as file:
            cpu, memory, cpu_size, memory_size = (np.asarray(file[name], np.float64) for name in _ARRAYS)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read the trace {path} ({system_reason(error)}); check the path") from None
    except Exception as error:  # noqa: BLE001 -- of a broken file, zipfile and numpy make errors of a dozen kinds
        raise UserError(f"{path} is not a trace: {error}; give a .npz file as docs/replay.md says") from None
    machines = (len(cpu),) if cpu.ndim == 2 else ()
    if not machines or cpu.shape != memory.shape or not cpu_size.shape == memory_size.shape == machines:
        raise UserError(f"{path} is not a trace: the shapes of its arrays do not match")
    if not all(_is_sound(values) for values in (cpu, memory, cpu_size, memory_size)):
        raise UserError(f"{path} is not a trace: it has impossible values")
    return mended(cpu / _MHZ, memory, cpu_size / _MHZ, memory_size, str(path))


def _check_headers(path: Path) -> None:
    """Check the headers of the arrays before any is loaded: a few bytes may claim billions of values."""
    values = 0
    with zipfile.ZipFile(path) as container:
        for name in _ARRAYS:
            part = f"{name}.npy"
            if part not in container.namelist():
                raise UserError(
                    f"{path} has no array {name}; a trace has {', '.join(_ARRAYS)}, as docs/replay.md says"
                )
            with container.open(part) as file:
                read = {(1, 0): header.read_array_header_1_0, (2, 0): header.read_array_header_2_0}
                shape, _, kind = read[header.read_magic(file)](file)
            if kind.kind not in "fiu":
                raise UserError(f"{path} is not a trace: {name} holds no numbers")
            values += math.prod(shape)
    if values > _MOST_VALUES:
        raise UserError(f"{path} holds more than {_MOST_VALUES} values; give a shorter trace")


def _is_sound(values: Floats) -> bool:
    """Whether all values are gaps (NaN) or possible for a machine."""
    with np.errstate(invalid="ignore"):
        return not ((values < 0) | (values > _GREATEST)).any()


def mended(
    cpu: Floats, memory: Floats, cpu_size: Floats, memory_size: Floats, source: str = "the trace"
) -> MachineTrace:
    """The trace without machines that were hardly measured, tiny or idle; gaps filled with the last value; large
    machines scaled down."""
    with np.errstate(invalid="ignore"):
        kept = (np.isnan(cpu).mean(1) < _GAPS) & (memory_size >= 512)
    cpu, memory, cpu_size, memory_size = cpu[kept], memory[kept].copy(), cpu_size[kept], memory_size[kept]
    for use in (cpu, memory):
        for row in use:
            _fill(row)
    active = (cpu.mean(1) >= _IDLE[0]) | (memory.mean(1) >= _IDLE[1]) if len(cpu) else np.zeros(0, bool)
    cpu, memory, cpu_size, memory_size = cpu[active], memory[active], cpu_size[active], memory_size[active]
    if len(cpu) < 2 or cpu.shape[1] < 2 * DAY or not cpu.any() or not memory.any():
        raise UserError(
            f"{source} has {len(cpu)} usable machines, over {cpu.shape[1]} samples; it needs two "
            f"machines, two days, and some use of CPU and of memory"
        )
    for use, most in ((cpu, _MOST[0]), (memory, _MOST[1])):
        top = np.percentile(use, 99.5, axis=1)
        use *= np.minimum(1, most / np.maximum(top, 1))[:, None]
        np.minimum(use, most, out=use)
    return MachineTrace(cpu, memory, cpu_size, memory_size)


def _fill(row: Floats) -> None:
    """Fill every gap with the value before it, and a gap at the beginning with the mean."""
    gaps = np.isnan(row)
    if not gaps.any():
        return
    last = np.where(gaps, 0, np.arange(len(row)))
    np.maximum.accumulate(last, out=last)
    row[:] = row[last]
    still = np.isnan(row)
    row[still] = 0.0 if still.all() else np.nanmean(row)


def generated_trace(seed: int = 0, machines: int = 120, days: int = 29) -> MachineTrace:
    """A generated trace like that of a hosting centre, for use without a real one: most machines are small, some
    are busy by day, some in bursts of hours, and memory use drifts."""
    chance = np.random.default_rng(seed)
    times = np.arange(days * DAY)
    cpu = np.empty((machines, len(times)))
    memory = np.empty_like(cpu)
    cpu_size = 2600 / _MHZ * chance.choice([1, 2, 4, 8], machines, p=[0.4, 0.3, 0.2, 0.1])
    memory_size = 1024.0 * chance.choice([1, 2, 4, 8, 16], machines, p=[0.2, 0.25, 0.25, 0.2, 0.1])
    for number in range(machines):
        level = cpu_size[number] * chance.lognormal(np.log(0.08), 1.4)
        day = 1 + chance.uniform(0, 0.9) * np.sin(2 * np.pi * (times / DAY + chance.uniform(0, 1)))
        busy = _bursts(chance, len(times)) * chance.uniform(0, 12)
        noise = chance.lognormal(0, 0.25, len(times))
        cpu[number] = np.minimum(level * day * (1 + busy) * noise, cpu_size[number])
        share = np.clip(chance.beta(2, 3) + np.cumsum(chance.normal(0, 0.002, len(times))), 0.05, 0.95)
        memory[number] = memory_size[number] * share
    return mended(cpu, memory, cpu_size, memory_size)


def _bursts(chance: np.random.Generator, samples: int) -> Floats:
    """1 while a machine is busy: half an hour to six hours, once or twice a day."""
    busy = np.zeros(samples)
    for _ in range(chance.poisson(1.2 * samples / DAY)):
        start = int(chance.integers(samples))
        busy[start : start + int(chance.integers(6, 72))] = 1
    return busy
