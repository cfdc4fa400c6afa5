"""Real components that tests run against: which program stands for each, and the package it comes in."""

import shutil

PROGRAMS = {"promtool": "promtool"}
"""By component, the program that must be on the PATH; tools/install-components knows the packages."""


def missing(*names: str) -> str:
    """The first of the components that this machine lacks, or nothing."""
    return next((name for name in names if shutil.which(PROGRAMS[name]) is None), "")
