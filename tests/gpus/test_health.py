"""When a GPU is fit for new pods."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.gpus import FIT, GpuHealth, HealthSettings, after_look, after_xid, recovers_in

SETTINGS = HealthSettings()


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109])
def test_errors_of_programs_say_nothing_about_the_gpu(code: int) -> None:
    assert after_xid(FIT, code, 0, SETTINGS) == FIT


@pytest.mark.parametrize("code", [48, 62, 74, 79, 94, 95, 119, 999])
def test_any_other_error_makes_it_unfit(code: int) -> None:
    sick = after_xid(FIT, code, 10, SETTINGS)
    assert not sick.is_fit
    assert str(code) in sick.trouble


def test_which_errors_are_ignored_is_a_setting() -> None:
    settings = HealthSettings(ignored_xids=frozenset((48,)))
    assert after_xid(FIT, 48, 0, settings).is_fit
    assert not after_xid(FIT, 13, 0, settings).is_fit


def test_it_recovers_when_it_answers_and_was_quiet_for_five_minutes() -> None:
    sick = after_xid(FIT, 48, 100, SETTINGS)
    assert recovers_in(sick, 100, SETTINGS) == 300
    assert not after_look(sick, "", 399.9, SETTINGS).is_fit
    assert after_look(sick, "", 400, SETTINGS) == FIT


def test_another_error_starts_the_five_minutes_again() -> None:
    sick = after_xid(after_xid(FIT, 48, 100, SETTINGS), 79, 390, SETTINGS)
    assert not after_look(sick, "", 600, SETTINGS).is_fit
    assert after_look(sick, "", 690, SETTINGS).is_fit


def test_one_that_does_not_answer_stays_unfit_and_says_why() -> None:
    sick = after_look(FIT, "it fell off the bus", 100, SETTINGS)
    assert after_look(sick, "it fell off the bus", 1000, SETTINGS) == GpuHealth("it fell off the bus", 1000)
    assert not after_look(sick, "", 399, SETTINGS).is_fit
    assert after_look(sick, "", 400, SETTINGS).is_fit


def test_how_long_it_takes_is_a_setting() -> None:
    settings = HealthSettings(recovery=10)
    assert after_look(after_xid(FIT, 48, 0, settings), "", 10, settings).is_fit


@given(
    st.lists(
        st.tuples(
            st.floats(0, 200),
            st.sampled_from(["", "silent"]) | st.sampled_from([13, 48, 79]),
        ),
        max_size=30,
    )
)
def test_it_is_unfit_exactly_within_the_recovery_after_a_fault(events: list[tuple[float, str | int]]) -> None:
    """By a model that knows nothing but the time of the last fault."""
    health, now, fault = FIT, 0.0, None
    for pause, what in events:
        now += pause
        if isinstance(what, int):
            health = after_xid(health, what, now, SETTINGS)
            fault = fault if what == 13 else now
        else:
            quiet = fault is None or now - fault >= SETTINGS.recovery
            fault = now if what else None if quiet else fault
            health = after_look(health, what, now, SETTINGS)
        assert health.is_fit == (fault is None)
