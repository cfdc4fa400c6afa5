"""Every metric and event is documented, nothing else is, and Prometheus' own linter likes the metrics."""

import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, Counter, generate_latest

from colocate import telemetry
from colocate.telemetry import Event

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()


def metrics() -> dict[str, tuple[str, ...]]:
    return {
        name + ("_total" if isinstance(metric, Counter) else ""): tuple(metric._labelnames)
        for name, metric in telemetry.declared_metrics().items()
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


def test_nothing_is_logged_that_is_not_an_event() -> None:
    source = Path(telemetry.__file__).parent
    logged = re.compile(r"log(?:ger\(\w*\))?\.(?:debug|info|warning|error|exception|critical)\(\s*(\S+)")
    found = {
        (path.name, name.rstrip(",)"))
        for path in source.rglob("*.py")
        for name in logged.findall(path.read_text())
    }
    assert len(found) > 50
    assert not [one for one in found if not one[1].startswith("Event.") and one != ("lease.py", "event")]


@pytest.mark.needs("promtool")
def test_prometheus_own_linter_accepts_the_metrics() -> None:
    telemetry.PLUGIN_REGISTERED.labels("example.com/fan").set(1)
    ours = b"\n".join(line for line in generate_latest(REGISTRY).splitlines() if b"colocate_" in line)
    done = subprocess.run(["promtool", "check", "metrics"], input=ours + b"\n", capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
