"""What holds whatever the samples say: the settings, the nodes, their pods, the ledger, and what time it is."""

from colocate.load.calibration import Calibration
from colocate.load.ledger import Ledger
from colocate.load.placing import Pods
from colocate.load.scoring import Scorer
from colocate.load.settings import Mix, Settings
from colocate.model.load import NodeFacts


class Standing:
    """The table writes it; every round reads it as it is at that moment."""

    def __init__(self, settings: Settings, calibration: Calibration) -> None:
        self.settings = settings
        self.now = 0.0
        self.nodes: dict[str, NodeFacts] = {}
        self.pods = Pods(settings, calibration)
        self.ledger = Ledger(settings.ledger)
        self.scorers: dict[Mix, Scorer] = {}
        """Of every mix that was asked for."""

    def scorer(self, mix: Mix) -> Scorer:
        scorer = self.scorers.get(mix)
        if scorer is None:
            scorer = self.scorers[mix] = Scorer(mix, self.settings)
        return scorer
