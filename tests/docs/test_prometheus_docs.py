"""What the page tells people to copy is what the program prints, and asks."""

from pathlib import Path

import pytest

from colocate.cluster.usage import RELABELLING, SERVICE_MONITOR, Preset, UsageSettings, queries, rules

PAGE = (Path(__file__).parents[2] / "docs" / "prometheus.md").read_text()


@pytest.mark.parametrize("text", [rules(Preset.REAL_USAGE), RELABELLING, SERVICE_MONITOR])
def test_the_page_shows_what_is_printed(text: str) -> None:
    assert f"```yaml\n{text}```" in PAGE


@pytest.mark.parametrize("preset", Preset)
def test_the_page_shows_the_queries_of_each_preset(preset: Preset) -> None:
    made = queries(UsageSettings(preset=preset))
    assert f"| `{preset}` |" in PAGE
    for promql in [*(query.promql for query in made.signals), made.time]:
        assert f"`{promql}`" in PAGE
