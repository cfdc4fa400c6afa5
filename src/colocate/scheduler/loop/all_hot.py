"""Tells when the filter begins to find every candidate too hot, and when it does so no more: once each.

Pods differ in what they bring and in which candidates they have: one that finds a cool node does not end it. A minute
in which every pod has found one does.
"""

from colocate import telemetry
from colocate.load import Sifted
from colocate.telemetry import Event

_CALM = 60.0
"""Seconds without such an answer, after which it is over."""


class AllHotTold:
    """Hears of every answer of the filter."""

    def __init__(self, *, shadow: bool) -> None:
        self._shadow = shadow
        self._begun: float | None = None
        self._last = 0.0
        self._answers = 0

    def sifted(self, pod: str, sifted: Sifted, now: float) -> None:
        if sifted.all_hot:
            self._is_so(pod, sifted, now)
        elif self._begun is not None and now - self._last >= _CALM:
            telemetry.logger().info(
                Event.FILTER_COOLER,
                answers=self._answers,
                seconds=round(self._last - self._begun, 1),
                shadow=self._shadow,
            )
            self._begun = None

    def _is_so(self, pod: str, sifted: Sifted, now: float) -> None:
        outcome = "let through" if sifted.hot else "refused"
        telemetry.SCHEDULER_ALL_HOT.labels(outcome, str(self._shadow).lower()).inc()
        if self._begun is None:
            self._begun, self._answers = now, 0
            telemetry.logger().warning(
                Event.FILTER_ALL_HOT,
                pod=pod,
                candidates=len(sifted.passed) + len(sifted.refused),
                outcome=outcome,
                shadow=self._shadow,
            )
        self._last = now
        self._answers += 1
