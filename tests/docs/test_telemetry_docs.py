"""Every metric and event is documented, nothing else is, and Prometheus' own linter likes the metrics."""

import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from colocate import telemetry
from colocate.telemetry import Event

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()


def metrics() -> dict[str, tuple[str, ...]]:
    found = [value for value in vars(telemetry).values() if isinstance(value, MetricWrapperBase)]
    return {
        metric._name + ("_total" if metric._type == "counter" else ""): tuple(metric._labelnames)
        for metric in found
    }


def test_the_page_lists_exactly_the_metrics_with_their_labels() -> None:
    rows = re.findall(r"^\| `(colocate_\w+)` \|([\w, ]*)\|", PAGE, re.MULTILINE)
    assert {name: tuple(re.findall(r"\w+", labels)) for name, labels in rows} == metrics()


def test_the_page_lists_exactly_the_events() -> None:
    rows = re.findall(r"^\| (`\w+\.\w+`(?:, `\w+\.\w+`)*) \|", PAGE, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert sorted(listed) == sorted(Event)


def test_every_event_is_used() -> None:
    source = Path(telemetry.__file__).parent
    code = "".join(path.read_text() for path in source.rglob("*.py") if path.name != "telemetry.py")
    assert not [event.name for event in Event if f"Event.{event.name}" not in code]


@pytest.mark.needs("promtool")
def test_prometheus_own_linter_accepts_the_metrics() -> None:
    telemetry.PLUGIN_REGISTERED.labels("example.com/fan").set(1)
    ours = b"\n".join(line for line in generate_latest(REGISTRY).splitlines() if b"colocate_" in line)
    done = subprocess.run(["promtool", "check", "metrics"], input=ours + b"\n", capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
