"""What logs are written with stays small."""

import subprocess
import sys


def said(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    return done.stdout.split()


def test_logging_loads_no_rich_and_whoever_wants_it_still_can() -> None:
    loaded = "print('rich' in sys.modules)"
    assert said(f"import sys, colocate.telemetry; {loaded}; import rich; {loaded}") == ["False", "True"]


def test_one_that_is_loaded_stays_loaded() -> None:
    assert said("import rich, colocate.telemetry, sys; print(sys.modules['rich'] is rich)") == ["True"]
