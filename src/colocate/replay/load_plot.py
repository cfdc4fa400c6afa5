"""Draws node pressure over time as SVG: one panel per contender, all to the same scale, and their hot hours
below."""

from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape

from colocate.replay.load_quality import CPU_HOT, PressureSeries
from colocate.replay.load_trace import Floats

_WIDTH, _PANEL, _GAP, _LEFT, _RIGHT, _TOP = 860, 92, 30, 52, 150, 46
_SUMS = 190
_MOST = 120.0
"""Percent at the top of a panel."""
_POINTS = 300
"""Points of a line; more would not be visible."""
_COLOURS = (
    "#6b7280", "#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#65a30d", "#92400e",
)  # fmt: skip


def plot(series: Mapping[str, PressureSeries], title: str) -> str:
    """A complete SVG document."""
    height = _TOP + len(series) * (_PANEL + _GAP) + _SUMS + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 18, title, size=14),
        _text(
            _LEFT, 34, "grey: median to 95th percentile of the nodes' pressure; line: the most loaded node"
        ),
    ]
    top = _TOP
    for number, (name, one) in enumerate(series.items()):
        parts += _panel(name, one, top + 14, _COLOURS[number % len(_COLOURS)])
        top += _PANEL + _GAP
    parts += _sums(series, top + 24)
    return "\n".join([*parts, "</svg>", ""])


def _panel(name: str, one: PressureSeries, top: float, colour: str) -> list[str]:
    x, y = _across(one), _scale(_MOST, top, _PANEL)
    step = max(1, len(x) // _POINTS)
    high = list(zip(x[::step], y(one.p95)[::step], strict=True))
    low = list(zip(x[::step], y(one.median)[::step], strict=True))
    band = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*high, *reversed(low)])
    return [
        _text(_LEFT, top - 4, name),
        *_grid(top, _PANEL, [(0.0, "0"), (50.0, "50 %"), (100.0, "100 %")], _MOST),
        f'<polygon points="{band}" fill="#9ca3af" fill-opacity="0.5"/>',
        _line(x, y(one.most), colour),
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y([CPU_HOT])[0]:.1f}" y2="{y([CPU_HOT])[0]:.1f}" '
        f'stroke="#b91c1c" stroke-dasharray="4 3"/>',
        _text(_WIDTH - _RIGHT + 6, top + 14, f"{one.hot_hours[-1]:.0f} node-hours hot"),
    ]


def _sums(series: Mapping[str, PressureSeries], top: float) -> list[str]:
    most = max(max(float(one.hot_hours[-1]) for one in series.values()), 1.0)
    parts = [
        _text(_LEFT, top - 6, "hot node-hours since the beginning"),
        *_grid(top, _SUMS, [(0.0, "0"), (most, f"{most:.0f}")], most),
    ]
    ends = []
    for number, (name, one) in enumerate(series.items()):
        colour, y = _COLOURS[number % len(_COLOURS)], _scale(most, top, _SUMS)(one.hot_hours)
        parts.append(_line(_across(one), y, colour))
        ends.append((y[-1], name, colour))
    below = 0.0
    for y_end, name, colour in sorted(ends):
        below = max(y_end, below + 12)
        parts.append(_text(_WIDTH - _RIGHT + 6, below + 4, name, colour=colour))
    first = next(iter(series.values()))
    for place, hours in ((_LEFT, first.hours[0]), (_WIDTH - _RIGHT, first.hours[-1])):
        parts.append(_text(place, top + _SUMS + 14, f"{hours:.0f} h"))
    return parts


def _across(one: PressureSeries) -> list[float]:
    first, last = float(one.hours[0]), float(one.hours[-1])
    width = _WIDTH - _LEFT - _RIGHT
    return [_LEFT + width * (float(hour) - first) / max(last - first, 1e-9) for hour in one.hours]


def _scale(most: float, top: float, height: float) -> Callable[[Sequence[float] | Floats], list[float]]:
    """A function from values to heights in the picture."""
    return lambda values: [top + height * (1 - min(max(float(value) / most, 0), 1)) for value in values]


def _grid(top: float, height: float, marks: Sequence[tuple[float, str]], most: float) -> list[str]:
    parts = []
    for value, words in marks:
        y = top + height * (1 - value / most)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, words, anchor="end"))
    return parts


def _line(x: Sequence[float], y: Sequence[float], colour: str) -> str:
    step = max(1, len(x) // _POINTS)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in list(zip(x, y, strict=True))[::step])
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.2"/>'


def _text(
    x: float, y: float, words: str, *, size: int = 11, colour: str = "#111827", anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
