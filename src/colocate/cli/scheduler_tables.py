"""Prints decisions and loads for people."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from colocate.cli.output import aligned, painted, visible, wrapped
from colocate.load import (
    ClosedNode,
    Explanation,
    Freshness,
    Mix,
    NodeReason,
    NodeRow,
    PolicyComparison,
    PolicyReason,
    ResourceRow,
    ScorePart,
    rounded_down,
)
from colocate.scheduler.loop.decision_log import Told
from colocate.scheduler.loop.refusal_log import RefusedPod

_BAR = 10
"""Cells of the bar of a node's pressure."""
_WARM, _HOT = 60, 80
"""Percent from which on a bar is yellow, and from which on it is red."""
_MOST_CLOSED = 20
"""How many nodes that are no candidates are listed one by one."""


def told(told: Told, width: int = 0) -> Iterator[str]:
    """One decision, with all its reasons."""
    yield from _heading(told.explanation)
    yield _outcome(told)
    if told.shadow:
        yield "shadow mode: kube-scheduler did not get these scores; all nodes got the same"
    if told.hot_count:
        yield f"every candidate was too hot; {told.hot_count} passed anyway (load.filter.allHot)"
    yield from _nodes(told.explanation.nodes, width)
    yield from _sieved("too hot", told.hot, told.hot_count)
    yield from _sieved("refused", told.refused, told.refused_count)


def _sieved(what: str, some: Sequence[RefusedPod | ClosedNode], count: int) -> Iterator[str]:
    if some:
        yield ""
    for one in some:
        yield f"{what} {one.node}: {one.reason}"
    if count > len(some):
        yield f"{what} … and {count - len(some)} more"


class Scored(Explanation, frozen=True):
    """How every node would be scored for a pod."""

    closed: tuple[ClosedNode, ...] = ()
    """Nodes that cannot take the pod, so they are no candidates."""


def scored(scored: Scored, width: int = 0) -> Iterator[str]:
    yield from explanation(scored, width)
    yield from _closed(scored.closed)


def _closed(closed: Sequence[ClosedNode]) -> Iterator[str]:
    yield from _sieved("no candidate", closed[:_MOST_CLOSED], len(closed))


def explanation(explained: Explanation, width: int = 0) -> Iterator[str]:
    yield from _heading(explained)
    yield from _nodes(explained.nodes, width)


def _heading(explained: Explanation) -> Iterator[str]:
    yield visible(explained.pod)
    if explained.refused:
        all_of = f"all {explained.candidates} candidates" if explained.candidates > 1 else "its one candidate"
        yield f"refused on {all_of} at {_moment(explained.at)}"
        return
    if explained.candidates == 1:
        yield f"judged by {policies(explained.mix)} at {_moment(explained.at)}: it had one candidate"
        return
    best = "was" if explained.equally_good == 1 else "were"
    yield (
        f"judged by {policies(explained.mix)} at {_moment(explained.at)}: {explained.equally_good} of "
        f"{explained.candidates} candidates {best} best"
    )


def _nodes(nodes: Sequence[NodeReason], width: int) -> Iterator[str]:
    """A line for each node, and the parts of its score below it."""
    if not nodes:
        return
    yield ""
    rows = [("SCORE", "NODE", "SAMPLE", "NOT YET MEASURED")]
    rows += [(_score(node), node.node, _sample(node), _unseen(node.unseen_pods)) for node in nodes]
    heading, *lines = aligned(rows)
    yield heading
    for node, line in zip(nodes, lines, strict=True):
        yield line
        for reason in node.policies:
            yield from _wrapped(_reason(reason, alone=len(node.policies) == 1), width)


def _reason(reason: PolicyReason, *, alone: bool) -> str:
    parts = [_part(part) for part in reason.parts if round(part.value, 2)] or ["all parts are 0"]
    if alone:
        return ", ".join(parts)
    scored = "" if reason.score is None else f" {reason.score}"
    return f"{reason.policy}{scored}: {', '.join(parts)}"


def _part(part: ScorePart) -> str:
    return f"{part.name} {part.value:.{1 if part.unit else 2}f}{part.unit}"


def _wrapped(text: str, width: int) -> Sequence[str]:
    indent = " " * 8
    # Break lines after a comma: a number stays with its name.
    bound = text.replace(" ", "\u00a0").replace(",\u00a0", ", ")
    return [line.replace("\u00a0", " ") for line in wrapped(bound, width, indent, indent)]


def _score(node: NodeReason) -> str:
    return "" if node.score is None else str(node.score)


def _sample(node: NodeReason | NodeRow) -> str:
    if node.freshness is None:
        return "no longer kept"
    if node.age is None:
        return "never"
    return f"{node.age:.0f} s old{', expired' if node.freshness is Freshness.EXPIRED else ''}"


def _unseen(pods: float) -> str:
    return f"{pods:.3g}" if pods else ""


def decisions(latest: Sequence[Told], width: int = 0) -> Iterator[str]:
    """A line for each decision; without room, leave out the runner-up, the day and the number of nodes."""
    if not latest:
        yield "There is no decision yet: no kube-scheduler has asked about a pod since this scheduler started."
        return
    rows: list[tuple[str, ...]] = [("DAY", "TIME (UTC)", "POD", "BEST", "RUNNER-UP", "OF", "WENT TO")]
    for one in latest:
        explained = one.explanation
        best = explained.nodes[0] if explained.nodes else None
        second = explained.runner_up
        rows.append(
            (
                *datetime.fromtimestamp(explained.at, UTC).strftime("%m-%d %H:%M:%S").split(),
                explained.pod,
                f"{best.node} {best.score}" if best else "refused on all" if explained.refused else "",
                f"{second.node} {second.score}" if second else "",
                f"{explained.candidates}{', all hot' if one.hot_count else ''}",
                _went(one),
            )
        )
    yield from _fitted(rows, width, "RUNNER-UP", "DAY", "OF")


def _fitted(rows: list[tuple[str, ...]], width: int, *spared: str) -> Sequence[str]:
    """Lines without as many of the spared columns, in their order, as do not fit."""
    lines = list(aligned(rows, gap=2))
    for column in spared:
        if column in rows[0] and width and max(map(len, lines)) > width:
            place = rows[0].index(column)
            rows = [(*row[:place], *row[place + 1 :]) for row in rows]
            lines = list(aligned(rows, gap=2))
    return lines


def top(rows: Sequence[NodeRow], width: int = 0, *, colours: bool = False) -> Iterator[str]:
    """A line for each node. Without room, leave out new pods and sample, then requests, then use; never the
    pressure, by which nodes are sorted. On a terminal the pressure is also a bar."""
    heading, *fitted = _fitted(_top_rows(rows, colours, _used_of_requested), width, "NEW", "SAMPLE")
    if width and max(map(len, (heading, *fitted)), default=0) > width:
        short = _top_rows(rows, colours, _used)
        heading, *fitted = _fitted(short, width, "NEW", "SAMPLE", "MEM", "CPU", "HEAT")
    for row, line in zip((None, *rows), (heading, *fitted), strict=True):
        line = _cut(line, width)
        yield painted(line, _bar(row.pressure), _colour(row.pressure)) if row and colours else line


def _top_rows(
    rows: Sequence[NodeRow], colours: bool, use: Callable[[ResourceRow], str]
) -> list[tuple[str, ...]]:
    of = " USED/REQ" if use is _used_of_requested else ""
    lines: list[tuple[str, ...]] = [("NODE", "PRESSURE", f"CPU{of}", f"MEM{of}", "NEW", "SAMPLE")]
    lines += [
        (
            row.node,
            f"{rounded_down(row.pressure):3.0f} %" + (f" {_bar(row.pressure)}" if colours else ""),
            use(row.cpu),
            use(row.memory),
            _unseen(row.unseen_pods),
            _sample(row),
        )
        for row in rows
    ]
    if any(row.heat is not None for row in rows):
        heats = ["HEAT", *("" if row.heat is None else str(row.heat) for row in rows)]
        lines = [(name, heat, *more) for (name, *more), heat in zip(lines, heats, strict=True)]
    return lines


def _cut(line: str, width: int) -> str:
    """A line whose first word, a name, is cut in the middle if the line does not fit."""
    excess = len(line) - width
    if not width or excess <= 0:
        return line
    name, blank, others = line.partition(" ")
    padding = len(others) - len(others.lstrip())
    if padding >= excess:
        return f"{name}{blank}{others[excess:]}"
    keep = max(3, len(name) - (excess - padding) - 1)
    return f"{name[: (keep + 1) // 2]}…{name[len(name) - keep // 2 :]}{blank}{others.lstrip()}"


def _bar(pressure: float) -> str:
    cells = min(_BAR, max(0, round(pressure / 100 * _BAR)))
    return "█" * cells + "░" * (_BAR - cells)


def _colour(pressure: float) -> str:
    return "31" if pressure >= _HOT else "33" if pressure >= _WARM else "32"


def comparison(compared: PolicyComparison, width: int = 0) -> Iterator[str]:
    """Without room for the names of the policies, call them the first and the second."""
    first, second = policies(compared.first), policies(compared.second)
    yield visible(compared.pod)
    yield _agreement(compared, first, second)
    if compared.nodes:
        yield ""
        yield from _compared(compared, first, second, width)
    yield from _closed(compared.closed)


def _compared(compared: PolicyComparison, first: str, second: str, width: int) -> Sequence[str]:
    cells = [
        (one.node, str(one.first), str(one.second), f"{one.second - one.first:+}") for one in compared.nodes
    ]
    lines = list(aligned([("NODE", first.upper(), second.upper(), "DIFFERENCE"), *cells]))
    if width and max(map(len, lines)) > width:
        return _fitted([("NODE", "FIRST", "SECOND", "DIFFERENCE"), *cells], width, "DIFFERENCE")
    return lines


def _agreement(compared: PolicyComparison, first: str, second: str) -> str:
    if len(compared.nodes) < 2:
        return f"there are not two nodes for {first} and {second} to choose from"
    by_first, by_second = {one.first for one in compared.nodes}, {one.second for one in compared.nodes}
    if len(by_first) == len(by_second) == 1:
        return f"{first} and {second} each give all nodes the same score"
    if len(by_first) == 1 or len(by_second) == 1:
        which = "first" if len(by_first) == 1 else "second"
        return f"of {first} and {second}, the {which} gives all nodes the same score, so it does not count"
    agree = "agree on a best node" if compared.agree else "have no best node in common"
    return (
        f"{first} and {second} {agree}; both put {100 * (compared.agreement or 0):.0f} % of the pairs of "
        "nodes that either ranks in the same order"
    )


def policies(mix: Mix) -> str:
    return ",".join(part.policy if len(mix) == 1 else f"{part.policy}={part.weight}" for part in mix)


def _outcome(told: Told) -> str:
    if told.node is None:
        return "not bound yet, as far as is known"
    if told.explanation.refused:
        return f"bound to {told.node} at {_moment(told.bound_at or 0)}: not by this answer"
    said = {
        True: "one of the best",
        False: "not one of the best: other plugins of kube-scheduler weighed more, or it did not ask again",
        None: "too many were best to tell whether this is one of them",
    }[told.followed]
    return f"bound to {told.node} at {_moment(told.bound_at or 0)}: {said}"


def _went(told: Told) -> str:
    if told.node is None:
        return "not bound yet"
    if told.followed is None:
        return told.node
    return "the best" if told.followed else f"another: {told.node}"


def _used_of_requested(row: ResourceRow) -> str:
    used = "  ?" if row.used is None else f"{rounded_down(row.used):3.0f}"
    return f"{used} /{row.requested:4.0f} %"


def _used(row: ResourceRow) -> str:
    return "  ?" if row.used is None else f"{rounded_down(row.used):3.0f} %"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
