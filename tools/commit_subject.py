"""Checks the first line of a commit message: `python3 tools/commit_subject.py FILE`, as the hook commit-msg does."""

import sys
from pathlib import Path

LONGEST = 72


def why_not(message: str) -> str:
    """What is wrong with a message; empty where nothing is."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return ""
    if not subject.strip():
        return "the subject is empty: say in one line what the commit does"
    if len(subject) > LONGEST:
        return (
            f"the subject has {len(subject)} characters, {LONGEST} are allowed: put the reasons into the body"
        )
    if not subject[0].isupper() or subject.endswith("."):
        return "write the subject as an order, such as 'Drop ids that no pod holds': a capital letter, no full stop"
    if len(lines) > 1 and lines[1].strip():
        return "leave the second line empty: the body begins on the third"
    return ""


def main(file: str) -> int:
    reason = why_not(Path(file).read_text())
    if reason:
        sys.stderr.write(f"commit message: {reason}\n")
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
