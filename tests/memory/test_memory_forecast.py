"""What is expected of online work, by each forecast."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.memory.forecast import (
    Instant,
    Koordinator,
    KoordinatorPolicy,
    Peak,
    Safety,
    WindowMax,
    remember,
)
from colocate.memory.settings import MemorySettings
from colocate.memory.usage import MemoryUsage, OnlinePod, UsageView
from colocate.model.pod import QosClass
from colocate.model.values import decode, encode
from tests.memory.nodes import GIB

PODS = (
    OnlinePod("lazy", QosClass.BURSTABLE, 2 * GIB, 8 * GIB),
    OnlinePod("busy", QosClass.BURSTABLE, 6 * GIB, 4 * GIB),
    OnlinePod("unread", QosClass.GUARANTEED, None, 3 * GIB),
)
USAGE = MemoryUsage(
    capacity=100 * GIB,
    near=100 * GIB,
    system=2 * GIB,
    online_pods=PODS,
    colocated={},
    far={},
    view=UsageView.KERNEL,
    reasons=(),
)
SAFETY = Safety(eviction=GIB, reserved=5 * GIB, unfilled=2 * GIB, margin=10 * GIB, reasons=())


def test_instant_expects_what_is_used() -> None:
    expected = Instant().expect(USAGE, SAFETY, ())
    assert (expected.online, expected.safety) == (13 * GIB, 13 * GIB)


def test_window_max_expects_the_most_of_its_window_or_of_now() -> None:
    forecast = WindowMax(window=3600)
    assert forecast.expect(USAGE, SAFETY, (Peak(0, 40 * GIB), Peak(9, GIB))).online == 40 * GIB
    assert forecast.expect(USAGE, SAFETY, (Peak(0, GIB),)).online == 13 * GIB


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        (0, "the maximum of the last 24 h, of which the agent saw only now (forecast"),
        (3, "the maximum of the last 24 h, of which the agent saw 3 h (forecast"),
        (30, "the maximum of the last 24 h (forecast"),
    ],
)
def test_window_max_says_how_much_of_its_window_was_seen(hours: int, said: str) -> None:
    forecast, history = WindowMax(), tuple[Peak, ...]()
    for minute in range(hours * 60 + 1):
        history = remember(history, GIB, minute * 60.0, forecast.remembers)
    assert said in forecast.expect(USAGE, SAFETY, history).reasons[0]


@pytest.mark.parametrize(
    ("policy", "pods"),
    [
        (KoordinatorPolicy.USAGE, 2 + 6 + 3),
        (KoordinatorPolicy.REQUEST, 8 + 4 + 3),
        (KoordinatorPolicy.MAX_USAGE_REQUEST, 8 + 6 + 3),
    ],
)
def test_koordinator_is_capacity_less_margin_less_system_less_online_pods(
    policy: KoordinatorPolicy, pods: int
) -> None:
    expected = Koordinator(policy=policy).expect(USAGE, SAFETY, ())
    published = USAGE.capacity - expected.online - expected.safety
    margin, system = 35 * GIB, max(2 * GIB, 5 * GIB)
    assert published == 100 * GIB - margin - system - pods * GIB


def test_koordinator_never_sells_what_the_kubelet_evicts_by() -> None:
    assert Koordinator(threshold=100).expect(USAGE, SAFETY, ()).safety == SAFETY.eviction + SAFETY.margin


@given(st.lists(st.tuples(st.floats(0, 4000), st.integers(0, 99)), max_size=60), st.floats(1, 20_000))
def test_what_was_used_within_the_window_is_never_forgotten(
    steps: list[tuple[float, int]], window: float
) -> None:
    now, history = 0.0, tuple[Peak, ...]()
    seen: list[tuple[float, int]] = []
    for pause, online in steps:
        now += pause
        history = remember(history, online, now, window)
        seen.append((now, online))
        assert max(peak.online for peak in history) >= max(use for at, use in seen if now - at <= window)
        assert len(history) <= 291


@pytest.mark.parametrize(
    "forecast", [Instant(), WindowMax(window=60), Koordinator(policy=KoordinatorPolicy.REQUEST)]
)
def test_a_forecast_is_chosen_by_its_name(forecast: Instant | WindowMax | Koordinator) -> None:
    settings = MemorySettings(forecast=forecast)
    assert (
        msgspec.json.decode(
            msgspec.json.encode(settings, enc_hook=encode), type=MemorySettings, dec_hook=decode
        )
        == settings
    )
