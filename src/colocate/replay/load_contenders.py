"""The contenders of a replay (kube-scheduler alone, each policy and mix, taints, an oracle), and their syntax.

Write `balanced`, or `balanced=3+oversell=1` for a mix; options follow after colons: `load-aware:filter:points=1`.
"""

from enum import StrEnum

import msgspec

from colocate.errors import UserError
from colocate.load import LedgerSettings, LoadSettings, Mix, PolicyName, advised_weight, mix

POINTS = advised_weight().weight * 10
"""What one point of an extender's score adds, with the weight that `kube-config` prints."""
_WINDOW = 300.0
"""Seconds over which samples are averaged."""
_WITH_STATISTICS = {PolicyName.LOAD_VARIATION_RISK_BALANCING, PolicyName.LOW_RISK_OVERCOMMITMENT}
_HOW = "filter, nofilter, points=N, statistics, pods, nopods, noledger"


class ContenderKind(StrEnum):
    STOCK = "stock"
    ORACLE = "oracle"
    """Knows every pod's future use, and places pods for the least heat."""
    TAINTS = "taints"
    EXTENDER = "extender"


class Contender(msgspec.Struct, frozen=True):
    """One way to place all pods."""

    name: str
    kind: ContenderKind
    settings: LoadSettings = LoadSettings()
    mix: Mix = ()
    points: int = POINTS
    statistics: bool = False
    """Whether samples carry a percentile and a deviation."""
    pods: bool = True
    """Whether the use of single pods is measured, which `balanced` needs."""
    ledger: bool = True


STOCK = Contender("stock", ContenderKind.STOCK)
DEFAULT = (
    "stock,default,taints,balanced,load-aware,load-aware:filter:points=1,load-variation-risk-balancing,"
    "target-load-packing,low-risk-overcommitment,cpu-real-usage,mem-real-usage,oracle"
)


def contenders(text: str, settings: LoadSettings | None = None) -> list[Contender]:
    """The contenders in a comma-separated text; `settings` replace the policies' defaults."""
    base = settings or LoadSettings()
    base = msgspec.structs.replace(base, ledger=_windowed(base.ledger))
    named = [_contender(word.strip(), base) for word in text.split(",")]
    names = [one.name for one in named]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"--policy: {twice!r} is named twice; name each once")
    return named


def _windowed(ledger: LedgerSettings) -> LedgerSettings:
    usual = ledger.window == LedgerSettings().window
    return msgspec.structs.replace(ledger, window=_WINDOW) if usual else ledger


def _contender(word: str, settings: LoadSettings) -> Contender:
    name, *how = word.split(":")
    if name in (ContenderKind.STOCK, ContenderKind.ORACLE):
        if how:
            raise UserError(f"--policy: {name} takes nothing after a colon; write {name!r}")
        return Contender(name, ContenderKind(name))
    parts = settings.policy if name in ("default", ContenderKind.TAINTS) else mix(name.replace("+", ","))
    used = {part.policy for part in parts}
    wanted = settings.balanced.aggregation is not None or settings.balanced.deviations > 0
    balanced = PolicyName.BALANCED in used
    made = Contender(
        word,
        ContenderKind.TAINTS if name == ContenderKind.TAINTS else ContenderKind.EXTENDER,
        settings,
        parts,
        statistics=name != ContenderKind.TAINTS and (bool(used & _WITH_STATISTICS) or (balanced and wanted)),
        pods=balanced,
    )
    for one in how:
        made = _with(made, one, word)
    return made


def _with(made: Contender, how: str, word: str) -> Contender:
    replace = msgspec.structs.replace
    match how.split("="):
        case ["filter" | "nofilter"]:
            chosen = replace(made.settings.filter, enabled=how == "filter")
            return replace(made, settings=replace(made.settings, filter=chosen))
        case ["statistics"]:
            return replace(made, statistics=True)
        case ["pods" | "nopods"]:
            return replace(made, pods=how == "pods")
        case ["noledger"]:
            return replace(made, ledger=False)
        case ["points", number] if number.isascii() and number.isdigit() and 0 < int(number) <= 10_000:
            return replace(made, points=int(number))
    raise UserError(
        f"--policy: {how!r} in {word!r} is not an option of a policy; write any of {_HOW}, such as "
        f"'load-aware:filter:points=1'"
    )
