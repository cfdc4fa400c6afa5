"""The SDK in another program's process: what importing it and serving with it change there, and what they do
not."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.support.plugins import FAN, Fans

from colocate.kubelet import DevicePlugin, KubeletPaths, Plugins, Settings, run, serve
from colocate.testing import TestNode

_FIND_OUT = """
import json, logging, os, signal, sys, threading
import prometheus_client, structlog

def state():
    return {
        "environment": dict(os.environ),
        "metrics": prometheus_client.generate_latest().decode().count("colocate"),
        "structlog configured": structlog.is_configured(),
        "handlers": [repr(h) for h in logging.getLogger().handlers] + [str(logging.getLogger().level)],
        "loggers": [name for name in logging.root.manager.loggerDict if "colocate" in name],
        "signals": [repr(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
        "threads": threading.active_count(),
        "rich tracebacks": structlog.dev.rich is not None,
        "exception hook": repr(sys.excepthook),
    }

before = state()
import colocate.kubelet
from colocate.kubelet import *
after = state()
print(json.dumps([before, after, sorted(sys.modules)]))
"""


def found_out() -> Any:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", _FIND_OUT], capture_output=True, check=True, text=True, env=inherited
    )
    return json.loads(done.stdout)


def test_importing_the_sdk_changes_nothing_in_the_process() -> None:
    before, after, _ = found_out()
    assert after == before
    assert after["metrics"] == 0
    assert after["rich tracebacks"]


def test_importing_the_sdk_loads_no_other_room_and_no_grpc() -> None:
    *_, modules = found_out()
    rooms = {name.split(".")[1] for name in modules if name.startswith("colocate.")}
    assert rooms == {"aio", "clock", "errors", "kubelet", "model", "startup", "telemetry"}
    assert not {"grpc", "aiohttp", "google.protobuf", "yaml"} & set(modules)


def names(registry: CollectorRegistry) -> set[str]:
    return {family.name for family in registry.collect()}


async def test_a_registry_of_the_guests_gets_the_sdks_metrics_and_no_other(node: TestNode) -> None:
    mine = CollectorRegistry()
    for _ in range(2):  # Plugins may come and go in one process.
        group = Plugins(
            Fans("fan-0", "fan-1"), settings=Settings(paths=node.paths), clock=node.clock, metrics=mine
        )
        running = asyncio.create_task(group.run())
        await node.devices(FAN, 2)
        group.stop()
        while not running.done():
            await asyncio.wait([running], timeout=0.01)
            await node.clock.advance(0.1)
    assert names(mine) == {
        "colocate_plugin_registrations",
        "colocate_plugin_registered",
        "colocate_plugin_devices",
        "colocate_plugin_list_updates",
        "colocate_plugin_calls",
        "colocate_plugin_call_duration_seconds",
        "colocate_plugin_errors",
    }
    assert b'colocate_plugin_devices{health="healthy",resource="%s"}' % FAN.encode() in generate_latest(mine)


_IN_A_PROCESS = """
import sys, threading
import prometheus_client, structlog
from colocate.kubelet import DevicePlugin, run

class Fans(DevicePlugin):
    resource = "example.com/fan"
    def devices(self):
        return ["fan-0", "fan-1"]

{configure}
try:
    run(Fans(), {arguments})
finally:
    said = prometheus_client.generate_latest().decode()
    print("metrics:", *sorted({{line.split()[2] for line in said.splitlines() if line.startswith("# HELP colo")}}))
"""

_CONFIGURED = """
structlog.configure(
    processors=[lambda logger, method, fields: "guest: " + fields["event"]],
    logger_factory=structlog.WriteLoggerFactory(sys.stderr),
)
"""


async def said_by(node: TestNode, arguments: str = "", configure: str = "") -> tuple[str, str]:
    """What a process that runs a plugin writes to its two outputs until it has stopped."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", _IN_A_PROCESS.format(arguments=arguments, configure=configure)],
        env={**os.environ, "COLOCATE_KUBELET_ROOT": str(node.paths.root)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await node.devices("example.com/fan", 2)
    finally:
        process.terminate()
    out, err = await process.communicate()
    assert process.returncode == 0
    return out.decode(), err.decode()


async def test_run_logs_as_it_is_told_and_leaves_a_configured_structlog_alone(node: TestNode) -> None:
    _, err = await said_by(node)
    assert all(json.loads(line)["event"] for line in err.splitlines())
    assert '"plugin.registered"' in err

    _, err = await said_by(node, "logs='text'")
    assert "plugin.registered" in err
    assert '"plugin.registered"' not in err

    for style in ("logs='auto'", "logs='json'", "logs=None"):
        _, err = await said_by(node, style, _CONFIGURED)
        assert set(err.splitlines()) >= {"guest: plugin.registered", "guest: plugin.stopped"}
        assert all(line.startswith("guest: ") for line in err.splitlines())

    out, err = await said_by(node, "logs=None")
    assert "plugin.registered" in out  # as structlog has it by itself: on standard output
    assert err == ""


async def test_run_adds_its_own_metrics_where_it_is_told(node: TestNode) -> None:
    out, _ = await said_by(node)
    shown = out.split("metrics:")[1].split()
    assert "colocate_plugin_registered" in shown
    assert all(name.startswith("colocate_plugin_") for name in shown)

    for elsewhere in ("metrics=None", "metrics=prometheus_client.CollectorRegistry()"):
        out, _ = await said_by(node, elsewhere)
        assert out.split("metrics:")[1].split() == []


def test_a_style_of_logs_that_is_none_ends_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    style: Any = "yaml"
    with pytest.raises(SystemExit) as end:
        run(Fans("fan-0", "fan-1"), logs=style)
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "colocate: logs='yaml' is not known; use one of 'auto', 'json', 'text', or None\n"
    )


async def test_serve_leaves_the_guests_loop_without_handlers(node: TestNode) -> None:
    serving = asyncio.create_task(
        serve(Fans("fan-0", "fan-1"), settings=Settings(paths=node.paths), metrics=None)
    )
    await node.devices(FAN, 2)
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    loop = asyncio.get_running_loop()
    assert not any(loop.remove_signal_handler(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def test_the_base_class_has_nothing_that_only_a_mock_needs() -> None:
    assert not hasattr(DevicePlugin, "gate")
    public = [name for name in vars(DevicePlugin) if not name.startswith("_")]
    assert sorted(public) == [
        *[
            "allocate",
            "clock",
            "close",
            "devices",
            "has_prefer",
            "has_prestart",
            "open",
            "prefer",
            "prestart",
            "reload",
        ]
    ]


async def test_a_method_of_a_plugin_that_is_called_gate_is_the_plugins_own(node: TestNode) -> None:
    class Doors(Fans):
        async def gate(self) -> None:
            raise AssertionError("this must not be called")

    await node.serve(Doors("fan-0", "fan-1"))
    await node.devices(FAN, 2)
    assert KubeletPaths(node.paths.root) == node.paths
