"""The parser of every command: its help ends with an example, and its mistakes show its own usage."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from colocate.cli.examples import EXAMPLES


class _Formatter(argparse.HelpFormatter):
    """Leaves room for the names of commands, which are indented: argparse does not count that."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction) and action.choices:
            longest = max(map(len, action.choices))
            self._action_max_length = max(self._action_max_length, longest + 2 * self._indent_increment)


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends with an example, and which itself says what is wrong with its own words."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            # Here, for the caller would print its own usage, which is that of another command.
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

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
