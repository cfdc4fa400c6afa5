"""The parser of every command: its help ends with an example, and an error shows the usage of its own command."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from colocate.cli.examples import EXAMPLES

_LONGEST = 100
"""Characters of a word that are compared."""


class _Formatter(argparse.HelpFormatter):
    """Leaves room for the indented names of commands, which argparse does not count."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction) and action.choices:
            longest = max(map(len, action.choices))
            self._action_max_length = max(self._action_max_length, longest + 2 * self._indent_increment)


def _nearest(word: str, known: Iterable[str]) -> str:
    """The question whether a similar word was meant; empty if none is similar."""
    import difflib  # Only for a wrong word.

    found = difflib.get_close_matches(word[:_LONGEST], list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends with an example, and which reports its own errors."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            # Here, because the caller would print the usage of another command.
            near = _nearest(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """The error for a word that is no choice: a similar word, or all choices."""
        if action.choices is None or value in action.choices:
            return
        near = _nearest(str(value), map(str, action.choices))
        if not isinstance(action, argparse._SubParsersAction):
            there = "" if near else f"; choose from {', '.join(map(str, action.choices))}"
            raise argparse.ArgumentError(action, f"there is no {str(value)[:_LONGEST]!r}{near}{there}")
        listed = f"'{self.prog} --help' lists {'all' if near else 'what there is'}"
        raise argparse.ArgumentError(
            None, f"there is no command {str(value)[:_LONGEST]!r}{near or ';'} {listed}"
        )

    def _get_formatter(self) -> argparse.HelpFormatter:
        return _Formatter(self.prog)

    def format_help(self) -> str:
        lines = EXAMPLES.get(self.prog, ())
        shown = "".join(f"  $ {line}\n" for line in lines)
        return super().format_help() + (
            f"\nexample{'s' if len(lines) > 1 else ''}:\n{shown}" if lines else ""
        )

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}\n")
