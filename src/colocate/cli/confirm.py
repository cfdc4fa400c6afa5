"""Ask before something is changed: on a terminal a question, elsewhere the flag --yes."""

import argparse
import sys

from colocate.errors import UserError


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and change nothing")


def confirm(args: argparse.Namespace, question: str) -> None:
    """Return where the user agrees; a UserError where nobody can be asked, or the answer is no."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UserError("Not a terminal, so I cannot ask. Add --yes to continue.")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing was changed")
