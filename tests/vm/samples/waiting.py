"""A test that waits for something that never comes."""

import time

import pytest

pytestmark = pytest.mark.vm("mini")


def test_waits() -> None:
    time.sleep(1000)
