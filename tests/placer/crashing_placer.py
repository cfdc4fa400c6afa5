"""Lives of a placer, each killed at a later side effect, and the successor that finds what it has left.

Run as a process of its own: `python -m tests.placer.crashing_placer FOLDER START STRIDE`. Every life is a fork, so
that what a start costs is paid once. Prints one JSON object: how many deaths there were, and at which side effects.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from colocate import crashpoints, telemetry
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass
from tests.placer.fake_runtime import GIB, resources
from tests.placer.placing import SECTION, PlacingTest

_LONGEST = 120


async def life(test: PlacingTest) -> None:
    """Every side effect that a placer has, in order."""
    runtime, placer = test.runtime, test.placer
    await runtime.connect(placer)
    idle = runtime.sandbox("idle", QosClass.BEST_EFFORT)
    await runtime.create(placer, idle, "main", resources(0))
    web = runtime.sandbox("web", QosClass.BURSTABLE)
    shared = await runtime.create(placer, web, "main", resources(3000))
    database = runtime.sandbox("db")
    init = await runtime.create(placer, database, "prepare", resources(4000, 4000, GIB))
    await runtime.stop(placer, init)
    own = await runtime.create(placer, database, "main", resources(4000, 4000, GIB))
    await runtime.update(placer, own, resources(2000, 2000, GIB))
    await test.settle()
    await runtime.stop(placer, own)
    await runtime.create(placer, database, "main", resources(2000, 2000, GIB))
    runtime.tamper(shared, CpuSet.parse("0"))
    await test.upkeep.audit()
    batch = runtime.sandbox("batch")
    await runtime.create(placer, batch, "main", resources(3000, 3000, GIB), fails=True)
    await runtime.create(placer, batch, "main", resources(3000, 3000, GIB))
    reserved = msgspec.structs.replace(SECTION, reserved_cpus="4,12")
    await placer.keeper.reconfigure(reserved)
    await test.settle()
    await runtime.end_sandbox(placer, database)
    await placer.keeper.step("switch", lambda placements: placements.switch(True))
    await test.settle()
    await placer.keeper.step("switch", lambda placements: placements.switch(False))
    await test.settle()
    await runtime.end_sandbox(placer, web)


async def successor(test: PlacingTest) -> None:
    """All is found again, nothing is given twice, and nothing is left when all have gone."""
    runtime, placer = test.runtime, test.placer
    assert placer.keeper.placements is not None
    await runtime.connect(placer)
    placer = test.placer
    assert placer.keeper.placements is not None
    if placer.keeper.placements.off:
        await test.settle()
        assert all(each.cpus == runtime.everything for each in runtime.running().values())
        await placer.keeper.step("switch", lambda placements: placements.switch(False))
    await test.settle()
    await test.upkeep.audit()
    await test.settle()
    test.check()
    test.agree()
    assert {key[0] for key in placer.keeper.placements.allocator.assignments} <= set(runtime.sandboxes)
    late = runtime.sandbox("late")
    assert await runtime.create(placer, late, "main", resources(2000, 2000, GIB))
    test.check()
    for sandbox in list(runtime.sandboxes.values()):
        await runtime.end_sandbox(placer, sandbox)
    assert not placer.keeper.placements.allocator.assignments
    assert not placer.keeper.placements.allocator.occupancy().exclusive


def main(folder: Path, start: int, stride: int) -> None:
    telemetry.configure_logs("json", "error")
    points: set[str] = set()
    for deaths, number in enumerate(range(start + 1, 1000, stride)):
        own = folder / str(number)
        own.mkdir()
        log = own / "points"
        died = _forked(partial(_live, own, number, log))
        points |= {line.split(maxsplit=1)[1] for line in log.read_text().splitlines()}
        if died == 0:
            sys.stdout.write(json.dumps({"deaths": deaths, "points": sorted(points)}))
            return
        assert died == -signal.SIGKILL, f"life {number} ended with {died}"
        code = _forked(partial(_succeed, own, nri=number % 2 == 0))
        last = log.read_text().splitlines()[-1]
        assert code == 0, f"killed at {last}, and not put right"
    raise AssertionError("no life came to its end")


def _live(folder: Path, crash_at: int, log: Path) -> None:
    test = PlacingTest(folder, nri=crash_at % 3 == 0)
    test.runtime.outlives = True
    test.runtime._keep()
    crashpoints.arm(crash_at, log)
    asyncio.run(life(test))


def _succeed(folder: Path, *, nri: bool) -> None:
    test = PlacingTest(folder, nri=nri)
    test.runtime.take_up()
    asyncio.run(successor(test))


def _forked(work: Callable[[], None]) -> int:
    """Run in a child; its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        signal.alarm(_LONGEST)
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 -- whatever it is, the parent is told
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
