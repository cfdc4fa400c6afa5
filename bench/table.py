"""Rows as people read them. No I/O here."""

from collections.abc import Mapping, Sequence

from bench.ratio import Row

_HEAD = ("bench", "measured", "compared with", "ratio", "at most", "")


def table(results: Mapping[str, Sequence[Row]]) -> str:
    """Aligned columns; below each row, its absolute figures."""
    rows = [(bench, row) for bench, rows in results.items() for row in rows]
    cells = [_HEAD, *(_cells(bench, row) for bench, row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = [_line(_HEAD, widths), "  ".join("─" * width for width in widths if width)]
    indent = " " * (widths[0] + 4)
    for bench, row in rows:
        lines.append(_line(_cells(bench, row), widths))
        if row.figures:
            lines.append(indent + " · ".join(str(figure) for figure in row.figures))
    return "\n".join(lines)


def _cells(bench: str, row: Row) -> tuple[str, ...]:
    ratio = f"{row.ratio:.2f}"
    if row.threshold is None:
        return (bench, row.name, row.against, ratio, "", "")
    return (bench, row.name, row.against, ratio, f"{row.threshold:.2f}", "✓" if row.within else "✗")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    words = [cell.ljust(width) for cell, width in zip(cells[:3], widths[:3], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:], strict=True)]
    return "  ".join([*words, *numbers]).rstrip()
