"""What follows from one round of samples: levels, terms and scores, each worked out when it is first asked for."""

from collections.abc import Iterable

from colocate.load.building import Levels
from colocate.load.demand import Demand
from colocate.load.scoring import Columns
from colocate.load.settings import Mix, PolicyName
from colocate.load.terms import NodeTerms
from colocate.load.typical import Typical
from colocate.model.load import NodeLoad


class Round:
    """The table has one, and while new samples are worked in, another that nobody is answered by yet."""

    def __init__(self, loads: dict[str, NodeLoad]) -> None:
        self.loads = loads
        self.levels: dict[str, Levels] = {}
        self.typical: Typical | None = None
        self.next_stale = float("inf")
        self.terms: dict[str, NodeTerms] = {}
        self.log: list[NodeTerms] = []
        """All terms of nodes that were made since everything changed: see `candidates`."""
        self.columns: Columns[tuple[Mix, Demand], int] = Columns()
        """Scores, by what the pod brings."""
        self.values: Columns[PolicyName, int | None] = Columns()
        """What policies rank candidates by, whatever the pod brings."""

    def drop(self, names: Iterable[str]) -> None:
        """What is known of these nodes is no longer so."""
        for name in names:
            self.terms.pop(name, None)
        self.columns.drop(names)
        self.values.drop(names)

    def clear(self) -> None:
        """Nothing but the samples is left."""
        self.typical = None
        self.terms.clear()
        self.log = []
        self.columns.clear()
        self.values.clear()
