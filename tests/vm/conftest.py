"""What tests in VMs share."""

import os

import pytest

from tests.vm.guest import TOPOLOGY
from tests.vm.topology import TOPOLOGIES, Topology


@pytest.fixture(scope="session")
def topology() -> Topology:
    """The hardware that the test runs on."""
    return TOPOLOGIES[os.environ[TOPOLOGY]]
