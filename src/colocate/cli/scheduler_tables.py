"""How decisions and loads are printed for people."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from colocate.apps.scheduler.decisions import Told
from colocate.cli.output import aligned, visible
from colocate.load import Comparison, Explanation, Mix, NodeRow
from colocate.load.top import ResourceRow


def told(told: Told) -> Iterator[str]:
    """One decision, with all its reasons."""
    yield from explanation(told.explanation)
    for one in told.refused:
        yield f"refused  {one.node}: {one.reason}"
    if told.refused_count > len(told.refused):
        yield f"refused  … and {told.refused_count - len(told.refused)} more"
    if told.shadow:
        yield "shadow mode: the scheduler was told nothing of this; all nodes were answered alike"
    yield _outcome(told)


def explanation(explained: Explanation) -> Iterator[str]:
    yield (
        f"{visible(explained.pod)}: {explained.equally_good} of {explained.candidates} candidates best by "
        f"{policies(explained.mix)}, at {_moment(explained.at)}"
    )
    yield ""
    rows = [("NODE", "SCORE", "SAMPLE", "UNSEEN PODS", "WHY")]
    for node in explained.nodes:
        age = node.freshness.value if node.age is None else f"{node.age:.0f} s old"
        why = "; ".join(
            f"{reason.policy}{'' if reason.score is None else f' {reason.score}'}: "
            f"{', '.join(str(part) for part in reason.parts)}"
            for reason in node.policies
        )
        shown = "" if node.score is None else str(node.score)
        rows.append((node.node, shown, age, f"{node.unseen_pods:.3g}", why))
    yield from aligned(rows)


def decisions(latest: Sequence[Told]) -> Iterator[str]:
    rows = [("TIME", "POD", "BEST", "SCORE", "RUNNER-UP", "CANDIDATES", "NODE", "FOLLOWED")]
    for one in latest:
        explained = one.explanation
        best = explained.nodes[0] if explained.nodes else None
        second = explained.runner_up
        rows.append(
            (
                _moment(explained.at),
                explained.pod,
                best.node if best else "",
                "" if best is None else str(best.score),
                f"{second.node} {second.score}" if second else "",
                str(explained.candidates),
                one.node or "",
                _followed(one),
            )
        )
    yield from aligned(rows)


def top(rows: Sequence[NodeRow]) -> Iterator[str]:
    lines = [
        ("NODE", "PRESSURE", "CPU", "CPU REQUESTED", "MEMORY", "MEMORY REQUESTED", "UNSEEN PODS", "SAMPLE")
    ]
    for row in rows:
        sample = row.freshness.value if row.age is None else f"{row.age:.0f} s old"
        lines.append(
            (
                row.node,
                _percent(row.pressure),
                _used(row.cpu),
                _percent(row.cpu.requested),
                _used(row.memory),
                _percent(row.memory.requested),
                f"{row.unseen_pods:.3g}",
                sample,
            )
        )
    yield from aligned(lines)


def comparison(compared: Comparison) -> Iterator[str]:
    first, second = policies(compared.first), policies(compared.second)
    agree = "agree on a best node" if compared.agree else "have no best node in common"
    yield (
        f"{visible(compared.pod)}: {first} and {second} {agree}; of pairs of nodes, they order "
        f"{compared.agreement:.0%} alike"
    )
    yield ""
    rows = [("NODE", first.upper(), second.upper(), "DIFFERENCE")]
    rows += [
        (one.node, str(one.first), str(one.second), f"{one.second - one.first:+}") for one in compared.nodes
    ]
    yield from aligned(rows)


def policies(mix: Mix) -> str:
    return ",".join(part.policy if len(mix) == 1 else f"{part.policy}={part.weight}" for part in mix)


def _outcome(told: Told) -> str:
    if told.node is None:
        return "not seen bound yet"
    said = {
        True: "one of the best",
        False: "not one of the best: other plugins of the scheduler weighed more, or it did not ask again",
        None: "too many were best to say whether it is one of them",
    }[told.followed]
    return f"bound to {told.node} at {_moment(told.bound_at or 0)}: {said}"


def _followed(told: Told) -> str:
    if told.node is None:
        return ""
    return {True: "yes", False: "no", None: "unknown"}[told.followed]


def _used(row: ResourceRow) -> str:
    return "?" if row.used is None else _percent(row.used)


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
