"""The steps of a removal, told as they happen: on a terminal one line that moves, elsewhere a line now and then."""

from typing import TextIO

from colocate.apps.resources.steps import Changed, Patching, PutBack, Step, Trouble, Waiting, Watching
from colocate.cli.resource_table import span
from colocate.devices.extended_resources import GRACE

_BAR = 24
_EVERY = 30.0
"""Seconds of waiting between two plain lines."""


class Progress:
    """Shows steps."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._moving = out.isatty()
        self._open = False
        self._told: float | None = None
        self._watching = False

    def __call__(self, step: Step) -> None:
        match step:
            case Waiting(resource=resource, waited=waited):
                left = resource.remaining or 0.0
                words = f"waiting for the kubelet to let go of {resource.name}: at most {span(left)} more"
                self._move(1 - left / GRACE, words, waited)
            case Patching(early=True):
                self.line("removing it before the kubelet has let go: it will put it back with its next sync")
            case Patching():
                self.line("removing it from capacity")
            case Watching(watched=watched, needed=needed):
                words = "watching whether it stays away"
                if self._moving:
                    self._move(watched / needed, words, watched)
                elif not self._watching:
                    self.line(f"{words}, for {needed:g} s")
                self._watching = True
            case PutBack(resource=resource):
                self._watching = False
                self.line(f"it is back, with capacity {resource.capacity}")
            case Changed():
                self.line("somebody else has changed it meanwhile; looking again")
            case Trouble(error=error):
                self.line(f"{error}; trying again")

    def line(self, words: str) -> None:
        """A line of its own."""
        self.close()
        self._out.write(f"{words}\n")
        self._out.flush()

    def close(self) -> None:
        """End the moving line, if there is one."""
        if self._open:
            self._out.write("\n")
            self._open = False

    def _move(self, done: float, words: str, seconds: float) -> None:
        if not self._moving:
            if self._told is None or seconds - self._told >= _EVERY:
                self._told = seconds
                self.line(words)
            return
        full = round(min(1.0, max(0.0, done)) * _BAR)
        self._out.write(f"\r\x1b[K{'█' * full}{'░' * (_BAR - full)} {words}")
        self._out.flush()
        self._open = True
