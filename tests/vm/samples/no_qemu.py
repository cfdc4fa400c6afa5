"""A plugin for pytest: as on a machine without QEMU."""

from tests.support import components

components.PROGRAMS["qemu"] = "no-such-program"
