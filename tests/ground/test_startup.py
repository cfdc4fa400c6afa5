"""What a process does before it loads gRPC and structlog, and what it leaves as it was."""

import json
import os
import subprocess
import sys

_VARIABLES = ("GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT")


def said(script: str, **variables: str) -> list[object]:
    """What a process with none of gRPC's variables but these prints, as JSON."""
    inherited = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        text=True,
        env={**inherited, **variables},
    )
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


_LOADED = "print(json.dumps('rich' in sys.modules))"
_READ = f"print(json.dumps([os.environ.get(name) for name in {_VARIABLES}]))"


def test_a_process_of_our_own_loads_no_rich_and_whoever_wants_it_still_can() -> None:
    script = "import json, sys; from colocate import startup; startup.prepare_process(); import structlog"
    assert said(f"{script}; {_LOADED}; import rich; {_LOADED}") == [False, True]


def test_one_that_is_loaded_stays_loaded() -> None:
    script = "import json, sys, rich; from colocate import startup; startup.prepare_process()"
    assert said(f"{script}; print(json.dumps(sys.modules['rich'] is rich))") == [True]


def test_a_process_of_our_own_passes_its_variables_on_and_keeps_those_that_are_set() -> None:
    script = f"import json, os; from colocate import startup; startup.prepare_process(); {_READ}"
    assert said(script) == [["ERROR", "0"]]
    assert said(script, GRPC_VERBOSITY="DEBUG", GRPC_ENABLE_FORK_SUPPORT="1") == [["DEBUG", "1"]]


def test_every_command_prepares_its_process_and_the_version_loads_nothing() -> None:
    script = (
        "import json, os, sys; from colocate.cli.main import _parser; _parser({chosen}); "
        f"print(json.dumps('structlog' in sys.modules)); {_READ}"
    )
    assert said(script.format(chosen="'config'")) == [True, ["ERROR", "0"]]
    assert said(script.format(chosen="None")) == [False, [None, None]]


def test_loading_grpc_leaves_the_environment_as_it_was() -> None:
    script = (
        "import json, os, sys; from colocate import startup; before = dict(os.environ); startup.load_grpc(); "
        "print(json.dumps(['grpc' in sys.modules, before == dict(os.environ)]))"
    )
    assert said(script) == [[True, True]]
    assert said(script, GRPC_VERBOSITY="INFO") == [[True, True]]


_FORKING = """
import asyncio, os, tempfile
from pathlib import Path
{first}
from colocate import startup
startup.load_grpc()
from colocate.wire import deviceplugin_pb2 as dp, methods
from colocate.wire.rpc import Service, call, connect, serve, stop_server

async def answer(_):
    return dp.DevicePluginOptions()

async def main():
    with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
        server = await serve(Path(folder, "s"), Service({{methods.OPTIONS: answer}}))
        async with connect(Path(folder, "s")) as channel:
            for _ in range(5):
                await call(channel, methods.OPTIONS, dp.Empty())
                child = os.fork()
                if not child:
                    os._exit(0)
                os.waitpid(child, 0)
        await stop_server(server)

asyncio.run(main())
"""


def test_grpc_that_was_loaded_so_takes_no_part_in_forks() -> None:
    # What gRPC does at a fork it says at the level INFO.
    told = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    told["GRPC_VERBOSITY"] = "INFO"

    def stderr(first: str) -> str:
        script = _FORKING.format(first=first)
        return subprocess.run(
            # Newer Pythons warn of any fork themselves.
            [sys.executable, "-W", "ignore", "-c", script],
            capture_output=True,
            check=True,
            text=True,
            env=told,
            timeout=60,
        ).stderr

    assert "fork" in stderr(first="import grpc")
    assert "fork" not in stderr(first="")
