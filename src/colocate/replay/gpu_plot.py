"""Draws GPU replays as SVG: how many GPUs stay unallocated as requests grow. Needs no plotting library.

A line is the mean over the seeds, the band around it goes from the least to the most. Names are at the ends of the
lines, so that no legend is needed.
"""

from collections.abc import Iterator, Mapping, Sequence

from colocate.gpus.packing import PackingPolicy
from colocate.replay.gpu_replay import ASKED, STEPS, GpuCurve

_WIDTH, _HEIGHT = 960, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 190, 74, 62
_COLOURS: Mapping[PackingPolicy, str] = {
    PackingPolicy.OURS: "#0072b2",
    PackingPolicy.FGD: "#d55e00",
    PackingPolicy.BEST_FIT: "#009e73",
    PackingPolicy.SPREAD: "#8c8c8c",
}
"""Colours that red-green colour-blind readers can tell apart."""
_FROM = 0.9
"""The share of requested GPUs at which the plot begins: below it every policy places nearly every pod."""
_LABEL_GAP = 36


def plot(curves: Sequence[GpuCurve], gpus: int) -> str:
    """The SVG of these replays."""
    policies = list(dict.fromkeys(curve.policy for curve in curves))
    seeds = len({curve.seed for curve in curves})
    ends = {policy: _mean(curves, policy)[-1] for policy in policies}
    first = round(_FROM / ASKED * STEPS) - 1
    highest = max(curve.unallocated[first] for curve in curves) / gpus
    axes = _Axes(max(highest, 0.01), gpus)
    labels = _label_places({policy: axes.y(ends[policy]) for policy in policies})
    body = [
        *_frame(axes, gpus, seeds),
        *(_band(axes, curves, policy, first) for policy in policies),
        *(_line(axes, curves, policy, first) for policy in policies),
        *(line for policy in policies for line in _label(axes, policy, ends[policy], labels[policy])),
    ]
    return "\n".join((_HEAD, *body, "</svg>")) + "\n"


_HEAD = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"
     font-family="Inter, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="14" fill="#333">
<rect width="100%" height="100%" fill="#fff"/>"""


class _Axes:
    """Converts shares of the GPUs to coordinates."""

    def __init__(self, highest: float, gpus: int) -> None:
        self.step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2) if highest / step <= 8 or step == 0.2)
        self.top = self.step * -(-highest // self.step)
        self._gpus = gpus

    def x(self, asked: float) -> float:
        return _LEFT + (asked - _FROM) / (ASKED - _FROM) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, unallocated: float) -> float:
        return _HEIGHT - _BOTTOM - unallocated / self._gpus / self.top * (_HEIGHT - _TOP - _BOTTOM)


def _of(curves: Sequence[GpuCurve], policy: PackingPolicy) -> list[Sequence[float]]:
    return [curve.unallocated for curve in curves if curve.policy is policy]


def _mean(curves: Sequence[GpuCurve], policy: PackingPolicy) -> list[float]:
    found = _of(curves, policy)
    return [sum(values) / len(found) for values in zip(*found, strict=True)]


def _points(axes: _Axes, values: Sequence[float], first: int) -> list[str]:
    return [
        f"{axes.x((number + 1) * ASKED / STEPS):.1f},{axes.y(value):.1f}"
        for number, value in enumerate(values)
        if number >= first
    ]


def _frame(axes: _Axes, gpus: int, seeds: int) -> Iterator[str]:
    yield f'<text x="{_LEFT}" y="30" font-size="19" font-weight="600">GPUs that stay unallocated</text>'
    about = f"{gpus} GPUs; mean of {seeds} {'replay' if seeds == 1 else 'replays'}"
    yield f'<text x="{_LEFT}" y="52" fill="#666">{about}{"" if seeds == 1 else ", band: least to most"}</text>'
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for number in range(round(axes.top / axes.step) + 1):
        share = number * axes.step
        y = axes.y(share * gpus)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e4e4e4"/>'
        yield f'<text x="{_LEFT - 10}" y="{y + 5:.1f}" text-anchor="end" fill="#666">{share:.0%}</text>'
    for percent in range(round(_FROM * 100), round(ASKED * 100) + 1, 10):
        x = axes.x(percent / 100)
        yield f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 6}" stroke="#999"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 24}" text-anchor="middle" fill="#666">{percent}%</text>'
    yield f'<line x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="#999"/>'
    x = axes.x(1.0)
    yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#bbb" stroke-dasharray="3 4"/>'
    yield (
        f'<text x="{(_LEFT + right) / 2:.0f}" y="{_HEIGHT - 14}" text-anchor="middle" fill="#666">'
        "GPUs asked for, of all GPUs</text>"
    )


def _band(axes: _Axes, curves: Sequence[GpuCurve], policy: PackingPolicy, first: int) -> str:
    columns = list(zip(*_of(curves, policy), strict=True))
    upper = _points(axes, [max(values) for values in columns], first)
    lower = _points(axes, [min(values) for values in columns], first)
    return (
        f'<polygon points="{" ".join((*upper, *reversed(lower)))}" fill="{_COLOURS[policy]}" opacity="0.16"/>'
    )


def _line(axes: _Axes, curves: Sequence[GpuCurve], policy: PackingPolicy, first: int) -> str:
    points = " ".join(_points(axes, _mean(curves, policy), first))
    width = 3 if policy is PackingPolicy.OURS else 2
    return (
        f'<polyline points="{points}" fill="none" stroke="{_COLOURS[policy]}" stroke-width="{width}" '
        'stroke-linejoin="round"/>'
    )


def _label_places(wanted: Mapping[PackingPolicy, float]) -> Mapping[PackingPolicy, float]:
    """The heights of the names, each as near to its line as possible without overlap."""
    placed: dict[PackingPolicy, float] = {}
    above = float("-inf")
    for policy, y in sorted(wanted.items(), key=lambda item: item[1]):
        placed[policy] = above = max(y, above + _LABEL_GAP)
    beyond = max(0.0, above - (_HEIGHT - _BOTTOM))
    return {policy: y - beyond for policy, y in placed.items()}


def _label(axes: _Axes, policy: PackingPolicy, end: float, y: float) -> Iterator[str]:
    x, colour = _WIDTH - _RIGHT, _COLOURS[policy]
    yield f'<circle cx="{x}" cy="{axes.y(end):.1f}" r="4" fill="{colour}"/>'
    yield (
        f'<path d="M{x + 6} {axes.y(end):.1f} L{x + 14} {y:.1f}" stroke="{colour}" fill="none" opacity="0.6"/>'
    )
    yield f'<text x="{x + 20}" y="{y + 1:.1f}" fill="{colour}" font-weight="600">{policy}</text>'
    yield f'<text x="{x + 20}" y="{y + 18:.1f}" fill="#666" font-size="13">{end:.0f} GPUs</text>'
