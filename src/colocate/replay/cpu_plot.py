"""Draws replays of CPU histories as an SVG file: needless crossings of a hundred containers, by machine.

One panel each for sockets, NUMA nodes and L3 caches; a bar each for us and for every allocator that was recorded,
with its figure at its end. No library needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from colocate.replay.cpu_replay import OURS, CpuReplay, Crossings, added

TITLES: Mapping[str, str] = {
    OURS: "ours",
    "kubelet_uncore": "kubelet, L3 aligned",
    "kubelet_packed": "kubelet",
}
"""As tables and pictures call the allocators."""
LEVELS: Mapping[str, str] = {"sockets": "sockets", "nodes": "NUMA nodes", "l3s": "L3 caches"}
"""Fields of `Crossings`, as they are called."""

_COLOURS = {OURS: "#0072b2", "kubelet_uncore": "#d55e00", "kubelet_packed": "#8c8c8c"}
"""Told apart also by those who see red and green alike."""
_LEFT, _TOP, _PANEL, _GAP = 210, 96, 210, 34
_BAR, _GROUP_GAP = 13, 14


def per_hundred(crossings: Crossings, level: str, containers: int) -> float:
    """Of a hundred containers."""
    count: int = getattr(crossings, level)
    return 100 * count / containers if containers else 0.0


def plot(replays: Sequence[CpuReplay]) -> str:
    """The picture of all these replays."""
    groups = {"all": list(replays)}
    for one in replays:
        groups.setdefault(one.machine, []).append(one)
    names = list(added(replays))
    height = _TOP + len(groups) * (len(names) * _BAR + _GROUP_GAP) + 20
    width = _LEFT + len(LEVELS) * (_PANEL + _GAP) + 20
    body = [*_head(replays, names)]
    for number, (level, title) in enumerate(LEVELS.items()):
        body += _panel(groups, names, level, title, _LEFT + number * (_PANEL + _GAP))
    for number, group in enumerate(groups):
        y = _group_top(number, names) + len(names) * _BAR / 2 + 5
        weight = ' font-weight="600"' if group == "all" else ""
        body.append(
            f'<text x="{_LEFT - 12}" y="{y:.1f}" text-anchor="end"{weight}>{escape(group[:28])}</text>'
        )
    return "\n".join((_svg(width, height), *body, "</svg>")) + "\n"


def _svg(width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"\n'
        '     font-family="Inter, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="13" fill="#333">\n'
        '<rect width="100%" height="100%" fill="#fff"/>'
    )


def _head(replays: Sequence[CpuReplay], names: Sequence[str]) -> Iterator[str]:
    containers = sum(one.containers for one in replays)
    yield '<text x="20" y="30" font-size="19" font-weight="600">Needless crossings of 100 containers</text>'
    about = f"{containers} containers in {len(replays)} histories; needless: more than an empty machine would need"
    yield f'<text x="20" y="51" fill="#666">{about}</text>'
    x = 20
    for name in names:
        yield f'<rect x="{x}" y="62" width="11" height="11" fill="{_COLOURS.get(name, "#333")}"/>'
        yield f'<text x="{x + 17}" y="72">{escape(TITLES.get(name, name))}</text>'
        x += 46 + 7 * len(TITLES.get(name, name))


def _panel(
    groups: Mapping[str, Sequence[CpuReplay]], names: Sequence[str], level: str, title: str, left: int
) -> Iterator[str]:
    values = {
        group: [per_hundred(added(some)[name], level, sum(one.containers for one in some)) for name in names]
        for group, some in groups.items()
    }
    most = max(max(each) for each in values.values()) or 1.0
    yield f'<text x="{left}" y="{_TOP - 6}" font-weight="600">{title}</text>'
    for number, (_, figures) in enumerate(values.items()):
        top = _group_top(number, names)
        for place, (name, figure) in enumerate(zip(names, figures, strict=True)):
            # The figure stands behind the bar: it needs some of the panel.
            length, y = figure / most * (_PANEL - 36), top + place * _BAR
            yield (
                f'<rect x="{left}" y="{y:.1f}" width="{max(length, 1):.1f}" height="{_BAR - 3}" '
                f'fill="{_COLOURS.get(name, "#333")}"/>'
            )
            yield (
                f'<text x="{left + max(length, 1) + 5:.1f}" y="{y + _BAR - 4:.1f}" font-size="11" fill="#666">'
                f"{figure:.1f}</text>"
            )


def _group_top(number: int, names: Sequence[str]) -> float:
    return _TOP + 6 + number * (len(names) * _BAR + _GROUP_GAP)
