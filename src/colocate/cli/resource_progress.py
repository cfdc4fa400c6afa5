"""Prints the steps of a removal: on a terminal one line that is redrawn, elsewhere a line now and then.

The redrawn line is never wider than the terminal, even after a resize: a wrapped line could not be erased.
"""

import os
from typing import TextIO

from colocate.cli.output import visible
from colocate.cli.resource_table import span
from colocate.devices.extended_resources import GRACE
from colocate.devices.resources.steps import Changed, Patching, PutBack, Step, Trouble, WaitingStep, Watching

_BAR = 24
_SHORT_BAR = 8
_USUAL_WIDTH = 80
_EVERY = 30.0
"""Seconds of waiting between two plain lines."""


class Progress:
    """Prints steps."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._moving = out.isatty()
        self._open = False
        self._told: float | None = None
        self._watching = False

    def __call__(self, step: Step) -> None:
        match step:
            case WaitingStep(resource=resource, waited=waited):
                left = resource.remaining or 0.0
                words = f"at most {span(left)} until the kubelet forgets {resource.name}"
                self._move(1 - left / GRACE, words, waited)
            case Patching(early=True):
                self.line(
                    "removing it before the kubelet forgets it: the kubelet will put it back with its next sync"
                )
            case Patching():
                self._complete("the kubelet has forgotten it")
                self.line("removing it from capacity")
            case Watching(watched=watched, needed=needed):
                words = "checking that it stays away"
                if self._moving:
                    self._move(watched / needed, words, watched)
                elif not self._watching:
                    self.line(f"{words}, for {needed:g} s")
                self._watching = True
            case PutBack(resource=resource):
                self._watching = False  # It did not stay away: leave the bar as drawn.
                self.line(f"it is back, with capacity {resource.capacity}")
            case Changed():
                self.line("something else changed it in the meantime; looking again")
            case Trouble(error=error):
                self.line(f"{error}; trying again")

    def line(self, words: str) -> None:
        """Print a line; a check that was running until now is complete."""
        if self._watching:
            self._complete("it stayed away")
        self.close()
        self._out.write(f"{visible(words)}\n")
        self._out.flush()

    def _complete(self, words: str) -> None:
        """Complete the redrawn line."""
        if self._open:
            self._out.write(f"\r\x1b[K{fitting(1.0, words, self._width())}")

    def close(self) -> None:
        """End the redrawn line, if there is one."""
        if self._open:
            self._out.write("\n")
            self._open = False

    def _move(self, done: float, words: str, seconds: float) -> None:
        if not self._moving:
            if self._told is None or seconds - self._told >= _EVERY:
                self._told = seconds
                self.line(words)
            return
        self._out.write(f"\r\x1b[K{fitting(done, words, self._width())}")
        self._out.flush()
        self._open = True

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or _USUAL_WIDTH
        except OSError:
            return _USUAL_WIDTH


def fitting(done: float, words: str, width: int) -> str:
    """A bar and words in less than this many columns: a terminal wraps once the last column is filled.

    First the bar gets shorter, then the words are cut, then the bar is left out.
    """
    room = max(0, width - 1)
    bar = min(_BAR, max(_SHORT_BAR, room - len(words) - 1))
    full = round(min(1.0, max(0.0, done)) * bar)
    return _cut(f"{'█' * full}{'░' * (bar - full)} {words}", room)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(0, room - 1)]}…"[:room]
