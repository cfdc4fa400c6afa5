"""Records what a running scheduler sees, snapshot by snapshot, into one file that `colocate scheduler replay` reads.

The file is written now and then, whole and atomically, for its owner alone: whatever ends the recording, what was
seen until shortly before is there. A scheduler that does not answer for a while leaves a gap, and no more.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.host.files import write_atomically
from colocate.load import LoadRecorder, encode_recording, snapshot
from colocate.scheduler.client import NotAnswered

_WRITE_EVERY = 600.0
"""Seconds."""
_PATIENCE = 10
"""Snapshots in a row that may fail; a scheduler is restarted in less."""


class RecordSettings(msgspec.Struct, frozen=True):
    file: Path
    seconds: float = 86_400.0
    every: float = 60.0
    most: int = 1 << 30
    """Bytes in memory at which the recording ends, as it would after its time."""


class Recorded(msgspec.Struct, frozen=True):
    """The result of a recording."""

    snapshots: int
    bytes: int
    full: bool
    """Whether it ended because it had become as large as it may."""


async def record(
    take: Callable[[], Awaitable[bytes]],
    settings: RecordSettings,
    recorder: LoadRecorder,
    clock: Clock,
    tell: Callable[[str], None] = lambda words: None,
) -> Recorded:
    """Record until the time is over or the task is cancelled; the file is written in both cases."""
    begun = written = clock.monotonic()
    failures = 0
    try:
        while clock.monotonic() < begun + settings.seconds and len(recorder) < settings.most:
            try:
                recorder.add(snapshot.decode(await take(), "the scheduler's answer"))
                failures = 0
            except NotAnswered as error:
                failures += 1
                if failures >= _PATIENCE or not recorder.snapshots:
                    raise
                tell(f"{error}; trying again")
            if clock.monotonic() >= written + _WRITE_EVERY:
                written = clock.monotonic()
                _write(settings.file, recorder)
            await clock.sleep(settings.every)
    finally:
        size = _write(settings.file, recorder) if recorder.snapshots else 0
    return Recorded(recorder.snapshots, size, len(recorder) >= settings.most)


def _write(file: Path, recorder: LoadRecorder) -> int:
    data = encode_recording(recorder.recording())
    reached("recording-written")
    write_atomically(file, data, 0o600)
    return len(data)
