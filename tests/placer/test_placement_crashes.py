"""kill -9 of a placer at every side effect: its successor loses no container, gives no CPU twice, and leaks none.

The side effects of a whole life are counted by `colocate.crashpoints`, the runtime's own among them. The process is
killed at the first of them, at the second, and so on until a life comes to its end. Each successor comes by one of
the two ways in, whichever its predecessor had.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

STRIDE = 2
EVERY_LIFE = {
    *("file.written", "file.replaced", "placement.write", "placement.written"),
    *(
        "runtime.create",
        "runtime.created",
        "runtime.pin",
        "runtime.pinned",
        "runtime.update",
        "runtime.updated",
    ),
}


@pytest.mark.parametrize("start", range(STRIDE))
async def test_a_placer_killed_at_any_side_effect_is_put_right_by_its_successor(
    start: int, record_property: Callable[[str, object], None]
) -> None:
    # In memory: who is killed loses nothing that was written, synced or not.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(dir=memory) as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.placer.crashing_placer", folder, str(start), str(STRIDE)),
            cwd=Path(__file__).parents[2],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-6000:]
    told = json.loads(out)
    record_property("deaths", told["deaths"])
    record_property("crash points", told["points"])
    assert told["deaths"] >= 20
    assert set(told["points"]) >= EVERY_LIFE
